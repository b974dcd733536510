# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a scripted text must give, by hand."""


def rounds_by_table(accepted: list[list[bool]], *, context: int, tokens: int, rows: int):
    """Tokens that each round of fixed rows emits, from the table of accepted drafts alone."""
    place, left, emitted = context, tokens - 1, list[int]()
    while left:
        run = 0
        while run < rows - 1 and accepted[place][run]:
            run += 1
        emitted.append(min(run + 1, left))
        place += emitted[-1]
        left -= emitted[-1]
    return emitted
