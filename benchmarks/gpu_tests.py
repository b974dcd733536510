# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Run the tests that need a CUDA device and record what they showed.

python benchmarks/gpu_tests.py [--output results/gpu_tests.json] [arguments of pytest]
"""

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch

from hybridspec.bench.circumstances import observe

RESULT = Path(__file__).parent / "results" / "gpu_tests.json"


class Count:
    """A pytest plugin that keeps each test's outcome."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test counts by its call, or by the stage that kept it from being called."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome


def main() -> int:
    """Exit code of pytest; nothing is recorded without a device."""
    if not torch.cuda.is_available():
        print("no CUDA device is visible here: these tests need one", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=RESULT)
    asked, others = parser.parse_known_args()
    count = Count()
    code = int(pytest.main(["-m", "gpu", *others], plugins=[count]))
    result = {
        "benchmark": "gpu_tests",
        "exit_code": code,
        "outcomes": count.outcomes,
        **observe(
            torch.device("cuda"), " ".join(["python benchmarks/gpu_tests.py", *others])
        ).to_json(),
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
