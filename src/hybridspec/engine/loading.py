# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""From names to a loaded pair: directories, configurations, weights, tokenizer; and do they fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hybridspec.core.errors import CheckpointError, OptionError
from hybridspec.core.jsonfile import is_there
from hybridspec.engine.memory import Memory, free_bytes
from hybridspec.engine.tokenizer import Tokenizer, first_difference, open_backend
from hybridspec.models import embedded, weights
from hybridspec.models.dflash import Drafter, load_drafter
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.fingerprint import fingerprint
from hybridspec.models.operations import of_mode
from hybridspec.models.reading import Outline, Staged, Widened
from hybridspec.models.target_config import TargetConfig
from hybridspec.models.target_layout import target_of
from hybridspec.models.weights import require_directory

if TYPE_CHECKING:
    from hybridspec.core.options import Mode
    from hybridspec.models.fused import FusedTarget
    from hybridspec.models.fused_draft import FusedDrafter
    from hybridspec.models.reading import TensorReader
    from hybridspec.models.target import Target

CUDA_DTYPE = torch.bfloat16
Progress = Callable[[str, int, int], None]
"""told what is read (target, drafter), its bytes so far, and all of its bytes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target with its tokenizer and, unless decoding is plain, its drafter."""

    target: Target | FusedTarget
    tokenizer: Tokenizer
    drafter: Drafter | FusedDrafter | None
    draft_directory: Path | None
    names: dict[str, str]
    """fingerprints by role: what measured tables belong to"""
    memory: Memory
    """what it takes; its models are outlines"""

    @property
    def block_size(self) -> int:
        """Rows of the drafter's block, anchor included; 1 without a drafter."""
        return self.drafter.config.block_size if self.drafter else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Directories of a target and its drafter, and their configurations."""

    directory: Path
    config: TargetConfig
    draft_directory: Path | None
    draft_config: DraftConfig | None

    @classmethod
    def found(
        cls, model: str | Path | None, draft_model: str | Path | None, *, needs_drafter: bool
    ) -> Checkpoint:
        """What the names mean; the embedded pair if neither is given."""
        directory = embedded.TARGET if model is None else find(model, "model")
        draft_directory = _draft_directory(model, draft_model, needs_drafter=needs_drafter)
        draft_config = DraftConfig.load(draft_directory) if draft_directory else None
        return cls(
            directory=directory,
            config=TargetConfig.load(directory),
            draft_directory=draft_directory,
            draft_config=draft_config,
        )

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers that the drafter reads."""
        return self.draft_config.target_layer_ids if self.draft_config else ()

    def memory(self, mode: Mode, device: torch.device) -> Memory:
        """What the pair takes on a device; reads headers, no weights."""
        if device.type == "cuda":
            target, drafter = self.fused(mode, Outline(CUDA_DTYPE))
        else:
            target, drafter = self.plain(mode, Outline(torch.float32))
        return Memory(target=target, drafter=drafter, device=device)

    def plain(
        self, mode: Mode, read: TensorReader, progress: Progress | None = None
    ) -> tuple[Target, Drafter | None]:
        """The pair in plain operations."""
        target = target_of(
            self.directory,
            self.config,
            of_mode(mode),
            taps=self.taps,
            read=read,
            progress=_named(progress, "target"),
        )
        if self.draft_directory is None or self.draft_config is None:
            return target, None
        drafter = load_drafter(
            self.draft_directory,
            config=self.draft_config,
            target=target.config,
            embedding=target.embedding,
            head=target.head,
            read=read,
            progress=_named(progress, "drafter"),
        )
        return target, drafter

    def fused(
        self, mode: Mode, read: TensorReader, progress: Progress | None = None
    ) -> tuple[FusedTarget, FusedDrafter | None]:
        """The pair in launches of kernels/.

        Raises OptionError without Triton, and where the kernels lack a width.
        """
        try:
            from hybridspec.models.fused_loading import load_fused_drafter, load_fused_target
        except ModuleNotFoundError as error:
            raise OptionError(
                f"device cuda needs Triton, and module {error.name} is missing: "
                "install triton or give --device cpu."
            ) from None
        target = load_fused_target(
            self.directory,
            self.config,
            mode=mode,
            taps=self.taps,
            read=read,
            progress=_named(progress, "target"),
        )
        if self.draft_directory is None or self.draft_config is None:
            return target, None
        drafter = load_fused_drafter(
            self.draft_directory,
            self.draft_config,
            target,
            read=read,
            progress=_named(progress, "drafter"),
        )
        return target, drafter


def load_pair(
    model: str | Path | None,
    draft_model: str | Path | None,
    *,
    needs_drafter: bool,
    mode: Mode,
    device: torch.device,
    max_context: int = 1,
    progress: Progress | None = None,
) -> Pair:
    """Load a checkpoint and its drafter, or the embedded pair if neither is named.

    Plain operations in float32 on a CPU, launches in CUDA_DTYPE on a CUDA device. Raises
    OptionError, before a weight is read, where memory is too little for `max_context` positions.
    """
    found = Checkpoint.found(model, draft_model, needs_drafter=needs_drafter)
    memory = found.memory(mode, device)
    memory.check(max_context, free_bytes(device))
    tokenizer = Tokenizer(
        found.directory,
        vocab_size=found.config.vocab_size,
        eos_in_config=found.config.eos_token_ids,
    )
    names = {"target": fingerprint(found.directory)}
    if found.draft_directory is not None:
        _check_tokenizers(found.directory, found.draft_directory)
        names["drafter"] = fingerprint(found.draft_directory)
    if device.type == "cuda":
        target, drafter = found.fused(mode, Staged(device, CUDA_DTYPE), progress)
        torch.cuda.empty_cache()  # what the packed layers were read into
    else:
        target, drafter = found.plain(mode, Widened(device), progress)
    return Pair(
        target=target,
        tokenizer=tokenizer,
        drafter=drafter,
        draft_directory=found.draft_directory,
        names=names,
        memory=memory,
    )


def _named(progress: Progress | None, what: str) -> weights.Progress | None:
    if progress is None:
        return None
    return lambda done, total: progress(what, done, total)


def _draft_directory(
    model: str | Path | None, draft_model: str | Path | None, *, needs_drafter: bool
) -> Path | None:
    if draft_model is not None:
        return find(draft_model, "draft model")
    if model is None:
        return embedded.DRAFTER
    if needs_drafter:
        raise OptionError(
            f"model {model} is given without a draft model: give --draft-model or --policy plain."
        )
    return None


def find(name: str | Path, what: str) -> Path:
    """A local directory, or a hub id (`owner/name`) through huggingface_hub."""
    if not isinstance(name, str | Path) or not str(name):
        raise OptionError(f"{what} must be a directory or a hub id, got {name!r}.")
    path = Path(name)
    is_hub_id = (
        isinstance(name, str) and name.count("/") == 1 and not name.startswith((".", "/", "~"))
    )
    try:
        if path.exists() or not is_hub_id:
            return require_directory(path, what)
    except OSError as error:
        raise CheckpointError(f"{what} {name} cannot be opened: {error.strerror}.") from None
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name), allow_patterns=["*.json", "*.safetensors"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{what} {name} is no directory here and could not be fetched from the hub: {reason}"
        ) from None


def _check_tokenizers(directory: Path, draft_directory: Path) -> None:
    """A drafter may ship a tokenizer; then it must be the target's."""
    if not is_there(draft_directory / "tokenizer.json"):
        return
    difference = first_difference(open_backend(directory), open_backend(draft_directory))
    if difference is not None:
        raise CheckpointError(
            f"drafter {draft_directory} has another tokenizer than the target: {difference}; "
            "give the drafter that was trained for this target."
        )
