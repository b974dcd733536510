# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tables of prompts, contexts and loading in docs/measured.md."""

from typing import Any

from table import circumstances, markdown

Result = dict[str, Any]
ROWS = (1, 4, 8, 16)
"""lengths of a round in the table of contexts"""


def tables(prompts: Result, contexts: Result, loading: Result) -> str:
    """What was measured of each, as Markdown."""
    parts = [
        "**Prompts**, read in chunks of "
        f"{prompts['chunk']}; median (least..most) of the repeats after a warm-up; memory: "
        "the peak beyond weights, the request's own states included.",
        _prompts(prompts),
        circumstances(prompts),
        f"**Long contexts** ({contexts['mode']} mode): a plain step, rounds of n rows with "
        "their draft, ms; the experts are the router's own choice.",
        _contexts(contexts),
        _prices(contexts),
        circumstances(contexts),
        f"**Loading** {loading['layers']} layers of the shape, "
        f"{loading['bytes'] / 1e9:.1f} GB in shards of at most "
        f"{loading['largest_shard_bytes'] / 1e9:.1f} GB, from the page cache straight into "
        "the engine's layout; the first run of a process also starts CUDA.",
        _loading(loading),
        circumstances(loading),
    ]
    return "\n\n".join(part for part in parts if part)


def _prompts(run: Result) -> str:
    rows = [
        (
            f"{r['tokens']:,}",
            f"{r['median_s']:.3f} ({r['min_s']:.3f}..{r['max_s']:.3f})",
            f"{r['tokens_per_second']:,.0f}",
            f"{r['peak_over_weights_gib']:.2f}",
        )
        for r in run["lengths"]
    ]
    return markdown(("tokens", "s", "tokens/s", "GiB over weights"), rows)


def _contexts(run: Result) -> str:
    latency = run["latency"]
    first = next(iter(latency["plain"].values()))
    rows = [
        (
            f"{int(context):,}",
            f"{1e3 * plain:.2f}",
            f"{plain / first:.2f}",
            f"{1e3 * latency['draft'][context]:.2f}",
            *(f"{1e3 * latency['seconds'][context][n - 1]:.2f}" for n in ROWS),
        )
        for context, plain in latency["plain"].items()
    ]
    lengths = [f"{n} row{'s' * (n > 1)}" for n in ROWS]
    return markdown(("context", "plain", "x the first", "draft", *lengths), rows)


def _prices(run: Result) -> str:
    """Nothing of a run of an older script, which priced none and watched no memory."""
    prices = run["latency"].get("routing")
    if prices is None:
        return ""
    return (
        f"A distinct expert takes {prices['seconds_per_expert'] * 1e6:.2f} us, a row that adds "
        f"none {prices['seconds_per_row'] * 1e6:.0f} us (least squares over blocks of random "
        f"tokens). Peak memory with states for {int(max(run['latency']['plain'], key=int)):,} "
        f"positions: weights and {run['peak_over_weights_gib']:.2f} GiB."
    )


def _loading(run: Result) -> str:
    rows = [
        (
            way["way"],
            ", ".join(f"{r['gigabytes_a_second']:.1f}" for r in way["runs"]),
            f"{max(r['host_peak_bytes'] for r in way['runs']) / 2**30:.2f}",
            f"{max(r['device_peak_over_weights_bytes'] for r in way['runs']) / 2**30:.2f}",
        )
        for way in run["ways"]
    ]
    head = ("way", "GB/s, run by run", "host's peak, GiB", "device's peak over weights, GiB")
    return markdown(head, rows)
