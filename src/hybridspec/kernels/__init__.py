# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Floor 2: the operations of a decode step, one a file.

`kernels/reference` holds each in plain PyTorch. Twins in Triton share file name and signature.
"""
