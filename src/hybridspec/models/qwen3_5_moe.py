# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Qwen3.5 / 3.6 mixture of experts: what this family alone stores.

The projections into a GDN layer are four tensors, each with the heads in order.

Tensor names: modeling_qwen3_5_moe.py of Transformers 5.17.
"""

import torch
from torch import Tensor

from hybridspec.models.target_config import TargetConfig
from hybridspec.models.weights import Weights


def take_gdn_projections(weights: Weights, config: TargetConfig, name: str) -> Tensor:
    """[C + HV V + 2 HV, D]: queries, keys and values of all heads; z; b; a."""
    D, C = config.hidden_size, config.conv_width
    HV, V = config.linear_num_value_heads, config.linear_value_head_dim
    parts = (("qkv", C), ("z", HV * V), ("b", HV), ("a", HV))
    return torch.cat([weights.take(f"{name}in_proj_{part}.weight", n, D) for part, n in parts])
