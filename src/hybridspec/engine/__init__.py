# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Floor 4: rounds, the host loop around them, and what users call."""
