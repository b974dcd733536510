# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Qwen3-Next and Qwen3-Coder-Next: what this family alone stores.

The projections into a GDN layer are two tensors, grouped by key head: each group holds the rows of
one key head and of the HV / H value heads that it serves. Ungrouped, the heads stand in the order
of the other families.

Tensor names and grouping: modeling_qwen3_next.py of Transformers 5.17.
"""

import torch
from torch import Tensor

from hybridspec.models.target_config import TargetConfig
from hybridspec.models.weights import Weights


def take_gdn_projections(weights: Weights, config: TargetConfig, name: str) -> Tensor:
    """[C + HV V + 2 HV, D]: queries, keys and values of all heads; z; b; a."""
    D, H, K = config.hidden_size, config.linear_num_key_heads, config.linear_key_head_dim
    served = config.linear_num_value_heads // H
    values = served * config.linear_value_head_dim
    qkvz = (K, K, values, values)
    ba = (served, served)
    groups = [
        *weights.take(f"{name}in_proj_qkvz.weight", H * sum(qkvz), D)
        .view(H, -1, D)
        .split(qkvz, dim=1),
        *weights.take(f"{name}in_proj_ba.weight", H * sum(ba), D).view(H, -1, D).split(ba, dim=1),
    ]
    return torch.cat([group.reshape(-1, D) for group in groups])
