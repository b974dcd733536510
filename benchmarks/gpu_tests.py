# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Run the tests that need a CUDA device and record what they showed.

    python benchmarks/gpu_tests.py [--output results/gpu_tests.json] [arguments of pytest]

What failed is printed as it fails. A run that is stopped (SIGTERM, as by `timeout`) leaves what it
has shown, with `exit_code` null.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

import pytest
import torch

from hybridspec.bench.circumstances import observe

RESULT = Path(__file__).parent / "results" / "gpu_tests.json"


class Count:
    """A pytest plugin that keeps each test's outcome."""

    def __init__(self, path: Path, command: str) -> None:
        self.outcomes: dict[str, str] = {}
        self._path, self._command = path, command

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test counts by its call, or by the stage that kept it from being called."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome
        if report.failed:
            print(f"\n{report.outcome}: {report.nodeid}\n{report.longreprtext[-600:]}", flush=True)

    def write(self, exit_code: int | None) -> None:
        """The result file."""
        result = {
            "benchmark": "gpu_tests",
            "exit_code": exit_code,
            "outcomes": self.outcomes,
            **observe(torch.device("cuda"), self._command).to_json(),
        }
        self._path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Leave what is known, and end."""
        self.write(None)
        os._exit(128 + number)  # pytest would take an exception for its own


def main() -> int:
    """Exit code of pytest; nothing is recorded without a device."""
    if not torch.cuda.is_available():
        print("no CUDA device is visible here: these tests need one", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=RESULT)
    asked, others = parser.parse_known_args()
    count = Count(asked.output, " ".join(["python benchmarks/gpu_tests.py", *others]))
    signal.signal(signal.SIGTERM, count.stop)
    code = int(pytest.main(["-m", "gpu", *others], plugins=[count]))
    count.write(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
