# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A checkpoint straight into the tensors that launches read, a layer at a time.

Never two copies: a layer is read onto its device, packed, and freed before the next one is read.
Beside what stays, a device holds one layer, or one tensor, and pieces of STAGE_BYTES. By an Outline
the same code makes models of shapes alone, from which memory is estimated (`engine/memory.py`).
"""

from pathlib import Path

from hybridspec.core.options import Mode
from hybridspec.models import prefill_library
from hybridspec.models.dflash import read_drafter
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.fused import FusedTarget, empty_buffers
from hybridspec.models.fused_draft import FusedDrafter, fuse_draft
from hybridspec.models.fused_layers import Destination, check_widths, fuse
from hybridspec.models.reading import TensorReader
from hybridspec.models.target_config import TargetConfig
from hybridspec.models.target_layout import read_target
from hybridspec.models.weights import Progress


def load_fused_target(
    directory: Path,
    config: TargetConfig,
    *,
    mode: Mode,
    taps: tuple[int, ...],
    read: TensorReader,
    progress: Progress | None = None,
) -> FusedTarget:
    """A target on the reader's device, matrices in its dtype.

    Raises CheckpointError that names the tensor, and OptionError where the kernels lack a width or,
    on CUDA, flash-linear-attention is missing.
    """
    check_widths(config)
    if read.device.type == "cuda":
        prefill_library.require_fla()
    to, width = Destination(read.device, read.dtype), config.moe_intermediate_size
    parts = read_target(
        directory,
        config,
        taps=taps,
        read=read,
        pack=lambda layer: fuse(layer, width, to),
        progress=progress,
    )
    return FusedTarget(
        config=config,
        mode=mode,
        taps=parts.taps,
        embedding=parts.embedding,
        layers=parts.layers,
        norm=parts.norm,
        head=parts.head,
        rotary=parts.rotary,
        buffers=empty_buffers(config, len(taps), read.dtype, read.device),
    )


def load_fused_drafter(
    directory: Path,
    config: DraftConfig,
    target: FusedTarget,
    *,
    read: TensorReader,
    progress: Progress | None = None,
) -> FusedDrafter:
    """A drafter beside its target. Raises CheckpointError where they do not belong together."""
    to, embedding, head = Destination(read.device, read.dtype), target.embedding, target.head
    parts = read_drafter(
        directory,
        config=config,
        target=target.config,
        embedding=embedding,
        head=head,
        read=read,
        pack=lambda layer: fuse_draft(layer, to),
        progress=progress,
    )
    return FusedDrafter.assembled(config, parts, embedding=embedding, head=head)
