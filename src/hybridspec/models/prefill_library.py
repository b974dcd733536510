# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a prompt's pass asks of libraries: convolution, delta rule, product over sorted experts.

The first two are flash-linear-attention's, on a CUDA device alone, and are imported where they are
called; the third is PyTorch's. Tests give a Library of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from torch.nn import functional as F

from hybridspec.core.errors import OptionError


def require_fla() -> None:
    """Raise OptionError unless flash-linear-attention can be imported."""
    try:
        import fla.ops.gated_delta_rule  # noqa: F401  # pyright: ignore
    except ModuleNotFoundError as error:
        raise OptionError(
            f"device cuda reads prompts with flash-linear-attention, and module {error.name} is "
            "missing: install hybridspec[cuda] or give --device cpu."
        ) from None


def convolved(x: Tensor, before: Tensor, weight: Tensor) -> Tensor:
    """A causal convolution of each channel, and SiLU.

    x [N, C] float, rows of any stride; before [W-1, C]: the inputs ahead, oldest first;
    weight [W, C]
    returns [N, C] of x's dtype, rounded once
    """
    from fla.modules.causal_conv1d import causal_conv1d  # pyright: ignore

    convolve = cast("Callable[..., tuple[Tensor, Tensor]]", causal_conv1d)
    # the library keeps W inputs, the oldest of which no row reads
    state = F.pad(before, (0, 0, 1, 0)).T.contiguous()[None]
    y, _ = convolve(x[None], weight.T.contiguous(), initial_state=state, activation="silu")
    return y[0]


def chunked(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule in chunks of 64 rows.

    q, k            [N, H, K]    float; neither normalised nor scaled yet
    v               [N, HV, V]   float, of the same dtype
    log_decay, beta [N, HV]      float32
    memory          [HV, K, V]   float32, K fastest in memory
    returns         [N, HV, V] of v's dtype, and the memory after all rows, like memory
    """
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # pyright: ignore

    rule = cast("Callable[..., tuple[Tensor, Tensor]]", chunk_gated_delta_rule)
    y, after = rule(
        q[None],
        k[None],
        v[None],
        log_decay[None],
        beta[None],
        scale=q.shape[-1] ** -0.5,
        initial_state=memory.mT[None],
        output_final_state=True,
        state_v_first=True,
        use_qk_l2norm_in_kernel=True,
    )
    return y[0], after[0].mT


def grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows of each group times that group's matrix.

    x [M, D] bfloat16, groups in order; weight [E, O, D]; ends [E] int32: row behind each group
    returns [M, O]
    """
    return F.grouped_mm(x, weight.mT, offs=ends)


@dataclass(frozen=True, slots=True)
class Library:
    """Three calls, each with the contract of the function that is its default."""

    convolve: Callable[[Tensor, Tensor, Tensor], Tensor] = convolved
    delta: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = (
        chunked
    )
    grouped: Callable[[Tensor, Tensor, Tensor], Tensor] = grouped


LIBRARY = Library()
