# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Statistics of a stream in words: at its end, or as far as it came."""

from collections.abc import Sequence

from hybridspec.core.records import Chunk, Stats

BAR = 40
"""columns of the longest bar"""


def describe(chunks: Sequence[Chunk]) -> str:
    """The statistics in a sentence and a picture, of a whole stream or as far as it came."""
    if not chunks:
        return "interrupted before the first token"
    last = chunks[-1]
    ending = f"ended by {last.finish_reason}" if last.finish_reason else "interrupted"
    return "\n".join([f"{_counts(last.stats)}; {ending}", *_histogram(last.stats.lengths)])


def _counts(stats: Stats) -> str:
    if not stats.rounds:
        return "1 token, the prompt's own, and no round"
    plain = stats.rounds - stats.rounds_drafted
    some = f" ({plain} not drafted)" if 0 < plain < stats.rounds else ""
    return (
        f"{stats.tokens} tokens, all but the first in {stats.rounds} rounds{some}: "
        f"{stats.tokens_per_round:.2f} tokens and {stats.mean_length:.2f} rows a round, "
        f"{stats.tokens_per_second:.1f} tokens/s"
    )


def _histogram(lengths: dict[int, int]) -> list[str]:
    """Rounds by rows read, one bar a length; a single length needs no picture."""
    if len(lengths) < 2:
        return []
    most = max(lengths.values())
    return [
        f"{rows:4d} rows {'#' * max(1, round(BAR * count / most))} {count}"
        for rows, count in sorted(lengths.items())
    ]
