# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The one place that knows the version."""

__version__ = "0.1.0"
