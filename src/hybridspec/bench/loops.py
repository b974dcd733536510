# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Where a continuation begins to repeat itself.

Greedy decoding of a small model ends in loops, which any drafter guesses in full. Tokens of a loop
would flatter a drafter, so they count in no figure about tokens a round.
"""

from collections.abc import Sequence

WINDOW = 48
"""Tokens that must repeat."""
LONGEST_PERIOD = 24
"""Longest period that counts as a loop: the window holds it twice."""


def loop_start(token_ids: Sequence[int]) -> int | None:
    """Index of the first token whose last WINDOW tokens, itself included, have a short period.

    Tokens before the index count, tokens from it on do not; None where nothing loops.
    """
    agreed = [0] * (LONGEST_PERIOD + 1)  # by period: how many last tokens equal the one before it
    for index, token in enumerate(token_ids):
        for period in range(1, min(LONGEST_PERIOD, index) + 1):
            same = token == token_ids[index - period]
            agreed[period] = agreed[period] + 1 if same else 0
            if agreed[period] >= WINDOW - period and index + 1 >= WINDOW:
                return index
    return None
