# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Which acceptance and latency tables a pair decodes with.

A table that the user names must fit, or it is refused. One that is found (beside the drafter, in
the cache) and belongs to something else is left aside, which is said once.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from hybridspec.core import device as devices
from hybridspec.core.errors import TableError
from hybridspec.core.options import Mode
from hybridspec.core.version import __version__
from hybridspec.engine.cache import cache_dir
from hybridspec.engine.loading import Pair
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.latency import Latency

log = logging.getLogger("hybridspec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of a pair in one mode on one device, and those that the user named instead."""

    pair: Pair
    mode: Mode
    device: torch.device
    named_acceptance: Path | None
    named_latency: Path | None

    @property
    def learns(self) -> bool:
        """Nothing is learnt of drafts beside a table that the user names: a run repeats itself."""
        return self.named_acceptance is None and self.named_latency is None

    def acceptance(self) -> Acceptance:
        """From the named file, else what was learnt, else from beside the drafter.

        Without any of these, the drafter's own confidence.
        """
        drafts, directory = self.pair.block_size - 1, self.pair.draft_directory
        assert directory is not None, "only a pair with a drafter has a policy that asks"
        if self.learns and (learnt := self._learnt_acceptance(drafts)) is not None:
            return learnt
        path = self.named_acceptance or directory / "acceptance.json"
        try:
            return Acceptance.load(path, key=self.pair.names, drafts=drafts)
        except TableError as error:
            if self.named_acceptance is not None:
                raise _named(error) from None
            log.warning("%s The drafter's own confidence is taken at its word.", error)
            return Acceptance.uninformed(drafts)

    def _learnt_acceptance(self, drafts: int) -> Acceptance | None:
        path = self.kept_acceptance()
        try:
            if path.exists():
                return Acceptance.load(path, key=self.pair.names, drafts=drafts)
        except TableError as error:
            log.warning("%s It is learnt anew.", error)
        except OSError as error:
            log.warning("%s cannot be opened: %s. It is learnt anew.", path, error.strerror)
        return None

    def keep_acceptance(self, learnt: Acceptance) -> bool:
        """Keep what was learnt for the next run; False if that fails, which is said."""
        try:
            learnt.save(self.kept_acceptance(), key=self.pair.names)
        except OSError as error:
            log.warning("What was learnt could not be kept for the next run: %s.", error)
            return False
        return True

    def kept_acceptance(self) -> Path:
        """Where what was learnt of target and drafter is found."""
        names = self.pair.names
        folder = f"{names['target']}-{names.get('drafter', 'none')}"
        return cache_dir() / folder / "acceptance.json"

    def latency(self) -> Latency | None:
        """From the named file, else from the cache; None if it has to be measured."""
        path = self.named_latency or self.kept()
        try:
            if self.named_latency is None and not path.exists():
                return None
            return Latency.load(path, key=self.key(), rows=self.pair.block_size)
        except TableError as error:
            if self.named_latency is not None:
                raise _named(error) from None
            log.warning("%s It is measured anew.", error)
            return None
        except OSError as error:
            log.warning("%s cannot be opened: %s. It is measured anew.", path, error.strerror)
            return None

    def keep(self, latency: Latency) -> None:
        """Keep a measured table for the next run; if that fails it is said, no more."""
        try:
            latency.save(self.kept(), key=self.key())
        except OSError as error:
            log.warning("The latency table could not be kept for the next run: %s.", error)

    def kept(self) -> Path:
        """Where the latency table is found by itself."""
        names, place = self.pair.names, self.device.type
        if place == "cpu":  # each number of threads has a table of its own
            place += str(torch.get_num_threads())
        folder = f"{names['target']}-{names.get('drafter', 'none')}-{place}-{self.mode}"
        return cache_dir() / folder / "latency.json"

    def key(self) -> dict[str, str]:
        """What a latency table belongs to."""
        return {
            **self.pair.names,
            "mode": self.mode,
            "device": devices.describe(self.device),
            "driver": devices.driver(self.device) or "none",
            "dtype": "bfloat16" if self.device.type == "cuda" else "float32",
            "torch": torch.__version__,
            "hybridspec": __version__,
        }


def _named(error: TableError) -> TableError:
    return TableError(f"{error} Name a table that fits, or none.")
