# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Floor 5: measuring. `python -m hybridspec.bench` runs without the extras of the terminal."""
