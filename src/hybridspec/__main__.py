# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`python -m hybridspec`, the same as the command `hybridspec`."""

import sys

from hybridspec.cli import main

if __name__ == "__main__":
    sys.exit(main())
