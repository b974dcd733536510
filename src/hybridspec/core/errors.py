# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a user can get wrong. Each message names the value and the way out.

`assert` is for our own mistakes; these are for theirs. The command line turns every
`HybridSpecError` into one sentence and exit code 2.
"""


class HybridSpecError(Exception):
    """Base of all errors that a user can mend."""


class OptionError(HybridSpecError, ValueError):
    """An option, or a combination of options, that is not supported."""


class PromptError(HybridSpecError, ValueError):
    """A prompt that cannot be decoded: empty, unreadable or too long."""


class CheckpointError(HybridSpecError):
    """A checkpoint directory that is missing, damaged, or of a model that is not supported."""


class TableError(HybridSpecError):
    """An acceptance or latency file that is damaged or belongs to something else."""
