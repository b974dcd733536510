# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""From names to a loaded pair: directories, configurations, weights, tokenizer; and do they fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hybridspec.core.errors import CheckpointError, OptionError
from hybridspec.core.jsonfile import is_there
from hybridspec.engine.tokenizer import Tokenizer, first_difference, open_backend
from hybridspec.models import embedded
from hybridspec.models.dflash import Drafter, load_drafter
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.fingerprint import fingerprint
from hybridspec.models.operations import of_mode
from hybridspec.models.target import Target
from hybridspec.models.target_layout import load_target
from hybridspec.models.weights import require_directory

if TYPE_CHECKING:
    from hybridspec.core.options import Mode
    from hybridspec.models.fused import FusedTarget
    from hybridspec.models.fused_draft import FusedDrafter


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target with its tokenizer and, unless decoding is plain, its drafter."""

    target: Target | FusedTarget
    tokenizer: Tokenizer
    drafter: Drafter | FusedDrafter | None
    draft_directory: Path | None
    names: dict[str, str]
    """fingerprints by role: what measured tables belong to"""

    @property
    def block_size(self) -> int:
        """Rows of the drafter's block, anchor included; 1 without a drafter."""
        return self.drafter.config.block_size if self.drafter else 1

    def fused(self, mode: Mode, device: torch.device) -> Pair:
        """The same pair in launches of kernels/, in bfloat16 on a device.

        Raises OptionError without Triton, and where the kernels lack a width.
        """
        try:
            from hybridspec.models.fused import FusedTarget
            from hybridspec.models.fused_draft import FusedDrafter
        except ModuleNotFoundError as error:
            raise OptionError(
                f"device cuda needs Triton, and module {error.name} is missing: "
                "install triton or give --device cpu."
            ) from None
        assert isinstance(self.target, Target)
        target = FusedTarget.of(self.target, mode=mode, dtype=torch.bfloat16, device=device)
        drafter = self.drafter
        if isinstance(drafter, Drafter):
            drafter = FusedDrafter.of(drafter, embedding=target.embedding, head=target.head)
        return replace(self, target=target, drafter=drafter)


def load_pair(
    model: str | Path | None,
    draft_model: str | Path | None,
    *,
    needs_drafter: bool,
    mode: Mode,
    device: torch.device,
) -> Pair:
    """Load a checkpoint and its drafter, or the embedded pair if neither is named."""
    directory = embedded.TARGET if model is None else find(model, "model")
    draft_directory = _draft_directory(model, draft_model, needs_drafter=needs_drafter)
    config = DraftConfig.load(draft_directory) if draft_directory else None
    taps = config.target_layer_ids if config else ()
    target = load_target(directory, operations=of_mode(mode), taps=taps, device=device)
    tokenizer = Tokenizer(
        directory,
        vocab_size=target.config.vocab_size,
        eos_in_config=target.config.eos_token_ids,
    )
    names, drafter = {"target": fingerprint(directory)}, None
    if draft_directory is not None and config is not None:
        _check_tokenizers(directory, draft_directory)
        drafter = load_drafter(
            draft_directory,
            config=config,
            target=target.config,
            embedding=target.embedding,
            head=target.head,
        )
        names["drafter"] = fingerprint(draft_directory)
    return Pair(
        target=target,
        tokenizer=tokenizer,
        drafter=drafter,
        draft_directory=draft_directory,
        names=names,
    )


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
