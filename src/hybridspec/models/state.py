# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What the target remembers of the tokens that it has read.

One object for all of it, so that no part is rolled back without the others. Reading a block leaves
every committed part as it was: it writes keys and values beyond the committed length, and records.
After the prompt there is one way forward: `settle` moves the length, which is the ledger's tensor
as well, and `commit` rebuilds by as many rows what a length alone does not roll forward.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference import gdn
from hybridspec.kernels.reference.attention import PAGE
from hybridspec.kernels.reference.gdn import GdnRecords, GdnState
from hybridspec.models.target_config import TargetConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """State of one request. All tensors are written in place."""

    length: Tensor
    """[] int32: tokens read and committed; the ledger of the request holds this very tensor"""
    keys: Tensor
    """[layers, pages, HKV, PAGE, D]: attention layers in order; stale from `length` on"""
    values: Tensor
    """as keys"""
    conv: Tensor
    """[layers, CONV - 1, C]: last inputs of each GDN layer's convolution"""
    recurrent: Tensor
    """[layers, HV, K, V] float32"""
    records: GdnRecords
    """of the last block that was read, all GDN layers"""

    @classmethod
    def empty(
        cls,
        config: TargetConfig,
        positions: int,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> "TargetState":
        """A state that has read nothing, with room for `positions` and one block beyond.

        dtype: of keys, values and inputs of the convolution
        """
        layers, C = config.num_gdn_layers, config.conv_width
        H, K = config.linear_num_key_heads, config.linear_key_head_dim
        HV, V = config.linear_num_value_heads, config.linear_value_head_dim
        pages = (positions + MAX_ROWS + PAGE - 1) // PAGE
        cache = (
            config.num_attention_layers,
            pages,
            config.num_key_value_heads,
            PAGE,
            config.head_dim,
        )

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            length=torch.zeros((), dtype=torch.int32, device=device),
            keys=zeros(*cache, dtype=dtype),
            values=zeros(*cache, dtype=dtype),
            conv=zeros(layers, config.linear_conv_kernel_dim - 1, C, dtype=dtype),
            recurrent=zeros(layers, HV, K, V),
            records=GdnRecords(
                inputs=zeros(layers, MAX_ROWS, C, dtype=dtype),
                keys=zeros(layers, MAX_ROWS, H, K),
                updates=zeros(layers, MAX_ROWS, HV, V),
                log_decays=zeros(layers, MAX_ROWS, HV),
            ),
        )

    def reset(self) -> None:
        """Forget all that was read, in place: recorded rounds go on with it."""
        for tensor in (self.length, self.keys, self.values, self.conv, self.recurrent):
            tensor.zero_()

    def commit(self, rows: Tensor) -> None:
        """Accept the first `rows` rows of the block that was read last, 0 after the end.

        The length is not touched: there is one for this state and the ledger of its request, and
        whoever settled how many rows count has moved it already.
        """
        gdn.commit(self.conv, self.recurrent, self.records, rows)

    def gdn(self, layer: int) -> GdnState:
        """State of the GDN layer with this index among GDN layers."""
        return GdnState(conv=self.conv[layer], recurrent=self.recurrent[layer])

    def gdn_records(self, layer: int) -> GdnRecords:
        """Records of the same layer."""
        return gdn.part(self.records, layer)

    def committed(self) -> dict[str, Tensor]:
        """Every tensor that later tokens depend on, by name; the cache without its stale part."""
        length = int(self.length)
        named: dict[str, Tensor] = {"length": self.length}
        for name in ("keys", "values"):
            for layer, pages in enumerate(getattr(self, name)):
                rows = pages.transpose(1, 2).flatten(0, 1)  # [positions, HKV, D]
                named[f"{name}.{layer}"] = rows[:length]
        for name in ("conv", "recurrent"):
            named |= {f"{name}.{layer}": x for layer, x in enumerate(getattr(self, name))}
        return named
