# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The operations in plain PyTorch: contract, and what runs on a CPU.

Every operation takes rows as the first dimension, N of them, of which the first `rows` are read.
Exact mode always passes N = MAX_ROWS, so that no product, sum or transcendental sees another shape
when another number of rows is read; a row of the result then depends on neither the row count nor
the row's place in the block.
"""
