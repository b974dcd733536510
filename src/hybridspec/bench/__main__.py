# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`python -m hybridspec.bench decode ...`, without the extras of the terminal."""

import json
import shlex
import sys
from collections.abc import Sequence

from hybridspec.bench.flags import Parser, add_flags
from hybridspec.bench.options import DecodeOptions
from hybridspec.core import ending


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of `python -m hybridspec.bench` with `arguments`, those of the process if None."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return ending.run(lambda: _bench(given))


def _bench(arguments: list[str]) -> int:
    parser = Parser(prog="python -m hybridspec.bench", description="Measure decoding.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="decode")
    decode = commands.add_parser("decode", help="the same prompts through each policy")
    decode.add_argument("--json", action="store_true", help="print one JSON object")
    add_flags(decode, DecodeOptions)
    given = vars(parser.parse_args(arguments))
    del given["command"]
    is_json = given.pop("json")
    options = DecodeOptions(**given)

    from hybridspec.bench.decode import run_decode  # torch is loaded only when all flags are right

    report = run_decode(options, command=f"python -m hybridspec.bench {shlex.join(arguments)}")
    print(json.dumps(report.to_json()) if is_json else report.table(), end="\n" if is_json else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
