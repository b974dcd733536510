# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`python -m hybridspec.bench decode ...`, without the extras of the terminal."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of `python -m hybridspec.bench` with `arguments`, those of the process if None."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        from hybridspec.core import ending
    except KeyboardInterrupt:
        return 130
    return ending.run(lambda: _bench(given), is_last=arguments is None)


def _bench(arguments: list[str]) -> int:
    import shlex  # all here: Ctrl-C is heard from the start

    from hybridspec.bench.flags import Parser, add_flags
    from hybridspec.bench.options import DecodeOptions

    parser = Parser(
        prog="python -m hybridspec.bench", description="Measure decoding.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="decode")
    decode = commands.add_parser(
        "decode", help="the same prompts through each policy", allow_abbrev=False
    )
    decode.add_argument("--json", action="store_true", help="print one JSON object")
    add_flags(decode, DecodeOptions)
    given = vars(parser.parse_args(arguments))
    del given["command"]
    is_json = given.pop("json")
    options = DecodeOptions(**given)

    # torch is loaded only when all flags are right
    from hybridspec.bench.decode import show
    from hybridspec.bench.run import run

    command = f"python -m hybridspec.bench {shlex.join(arguments)}"
    return show(lambda: run(options, command=command), is_json=is_json)


if __name__ == "__main__":
    sys.exit(main())
