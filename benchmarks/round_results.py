# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tables and the figure of docs/measured.md, from round_time.json and decode_random.json."""

from typing import Any

from figure import Line, lines
from table import circumstances, markdown

OWN = "own"
PEERS = (
    ("vLLM 0.26.0, DFlash", 1, 4.21),
    ("vLLM 0.26.0, DFlash", 4, 8.66),
    ("vLLM 0.26.0, DFlash", 8, 8.73),
    ("vLLM 0.26.0, DFlash", 16, 8.14),
    ("SGLang 0.5.16, DFlash", 16, 9.27),
    ("Transformers 5.17.0 and fla 0.6.0, forward alone", 1, 93.0),
    ("Transformers 5.17.0 and fla 0.6.0, forward alone", 16, 137.0),
)
"""rows and ms of a round, random weights; one row: a plain step"""
COMPARED = (1, 4, 8, 16)

Result = dict[str, Any]


def tables(run: Result, decode: Result) -> str:
    """All of docs/measured.md that was measured, as Markdown."""
    modes = run["modes"]
    parts = [
        "![Time of a verification by rows](round_time.svg)",
        "**A plain step, a draft, a commit**, median us (tenth..ninetieth percentile):",
        _steps(modes),
        "**Verification** of n rows, T(n); experts: distinct routed ones a layer; floor: the bytes "
        f"that these need at {run['bandwidth'] / 1e12:g} TB/s. Experts are the router's own "
        "choice, or steered: kept from the position before with the chance that is named.",
        _verification(modes),
        f"From 4 to 16 rows T grows by {_growth(modes['fast']):.0f} % (fast, own choice), where "
        "arXiv 2611.04055 reports 71 % for real text.",
        circumstances(run),
        "**Side by side** (the same kind of card, the same shape, random weights, context 1 K), ms "
        "of a plain step and of rounds with draft and acceptance. Peers: 30 November 2026; their "
        "drafts share experts, so that real ones cost more. HybridSpec: exact mode, drafts that "
        "share none but by chance, the sum of a draft, a verification and a commit above.",
        _side_by_side(modes["exact"]),
    ]
    parts += [_decoding(decode), circumstances(decode)]
    return "\n" + "\n\n".join(parts) + "\n\n"


def figure(run: Result) -> str:
    """T(n) and its floor, beside the peers' rounds, as SVG."""
    colours = {"fast": "#0b7a3b", "exact": "#5bbf7e"}
    series = []
    for mode, colour in colours.items():
        found = _arms(run["modes"][mode], "verify", OWN)
        points = [(r["rows"], r["median_us"] / 1e3) for r in found]
        series.append(Line(name=mode, colour=colour, points=points))
    floor = [(r["rows"], r["floor_us"] / 1e3) for r in _arms(run["modes"]["fast"], "verify", OWN)]
    series.append(Line(name="floor", colour="#777777", points=floor, is_dashed=True))
    vllm = [(float(rows), ms) for name, rows, ms in PEERS if name.startswith("vLLM")]
    series.append(Line(name="vLLM", colour="#1d4ed8", points=vllm))
    sglang = [(float(rows), ms) for name, rows, ms in PEERS if name.startswith("SGLang")]
    series.append(Line(name="SGLang", colour="#c2410c", points=sglang))
    return lines("ms by rows read; the peers' include draft and acceptance", series, 2)


def _arms(results: list[Result], arm: str, choice: str = OWN) -> list[Result]:
    return [r for r in results if r["arm"] == arm and r["choice"] == choice]


def _steps(modes: dict[str, list[Result]]) -> str:
    rows = []
    for mode, results in modes.items():
        for arm in ("plain", "draft", "commit"):
            for r in _arms(results, arm):
                floor = (f"{r['floor_us']:.0f}", _over(r)) if "floor_us" in r else ("", "")
                rows.append((mode, arm, _spread(r), *floor))
    return markdown(("mode", "what", "us", "floor", "x floor"), rows)


def _verification(modes: dict[str, list[Result]]) -> str:
    rows = [
        (
            mode,
            r["choice"],
            str(r["rows"]),
            _spread(r),
            f"{r['experts_a_layer']:.1f}",
            f"{r['floor_us']:.0f}",
            _over(r),
        )
        for mode, results in modes.items()
        for r in results
        if r["arm"] == "verify"
    ]
    return markdown(("mode", "choice", "rows", "us", "experts", "floor", "x floor"), rows)


def _spread(r: Result) -> str:
    return f"{r['median_us']:.0f} ({r['p10_us']:.0f}..{r['p90_us']:.0f})"


def _over(r: Result) -> str:
    return f"{r['over_floor']:.2f}"


def _growth(results: list[Result]) -> float:
    """Per cent."""
    times = {r["rows"]: r["median_us"] for r in _arms(results, "verify")}
    return 100 * (times[16] / times[4] - 1)


def _side_by_side(ours: list[Result]) -> str:
    """Rounds by engine; one row is a plain step."""
    draft, commit = (_arms(ours, arm)[0]["median_us"] / 1e3 for arm in ("draft", "commit"))
    plain = _arms(ours, "plain")[0]["median_us"] / 1e3
    rounds = {r["rows"]: draft + r["median_us"] / 1e3 + commit for r in _arms(ours, "verify")}
    times = {"HybridSpec": {**rounds, 1: plain}}
    for name, rows, ms in PEERS:
        times.setdefault(name, {})[rows] = ms
    rows = [
        (name, *(f"{own[n]:.2f}" if n in own else "" for n in COMPARED))
        for name, own in times.items()
    ]
    head = ("plain", *(f"{n} rows" for n in COMPARED[1:]))
    return markdown(("engine", *head), rows)


def _decoding(run: Result) -> str:
    head = ("policy", "tok/s", "x plain", "ms a round", "tokens", "rows", "experts", "GB", "TB/s")
    rows = []
    for arm in run["arms"]:
        speed, over = arm["tokens_per_second"], arm["over_plain"]
        moved = arm["gigabytes_a_round"] / arm["ms_per_round"]["median"]
        rows.append(
            (
                arm["name"],
                f"{speed['median']:.0f} ({speed['low']:.0f}..{speed['high']:.0f})",
                "" if over is None else f"{over['median']:.2f}",
                f"{arm['ms_per_round']['median']:.2f}",
                f"{arm['tokens_per_round']:.2f}",
                f"{arm['mean_length']:.1f}",
                f"{arm['experts_a_layer']:.1f}",
                f"{arm['gigabytes_a_round']:.2f}",
                f"{moved:.2f}",
            )
        )
    words = (
        f"**Decoding** {run['max_new_tokens']} tokens after {run['context']} ({run['mode']} mode, "
        f"random weights, acceptance drawn from the world `{run['acceptance_world']}`, experts "
        f"{choice(run)}); median (least..most):"
    )
    return words + "\n\n" + markdown(head, rows)


def choice(run: Result) -> str:
    """How the experts of a decoded text were chosen."""
    persistence = run["persistence"]
    if persistence is None:
        return "chosen by the router itself"
    return f"steered with persistence {persistence}"
