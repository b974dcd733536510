# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Floor 1: what every other floor may name: version, errors, options, records, device facts."""
