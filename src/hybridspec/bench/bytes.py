# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Bytes that a round needs in bfloat16: the least that any implementation moves.

Weights count once a pass, states and keys as read once; what a commit writes is not in it.
"""

from hybridspec.models.draft_config import SLIDING, DraftConfig
from hybridspec.models.target_config import TargetConfig

BANDWIDTH = 4.0e12
"""bytes a second: long reads on an H200"""
BF16 = 2


def fixed_bytes(config: TargetConfig, context: int) -> int:
    """Bytes of a pass beside routed experts: dense weights, shared experts, states, keys, head."""
    D, hidden = config.head_dim, config.hidden_size
    H, HKV = config.num_attention_heads, config.num_key_value_heads
    HV, V = config.linear_num_value_heads, config.linear_value_head_dim
    gdn = hidden * (config.conv_width + HV * V + 2 * HV) + hidden * HV * V
    attention = hidden * 2 * (H + HKV) * D + hidden * H * D
    shared = 3 * hidden * config.shared_expert_intermediate_size + hidden
    router = hidden * config.num_experts
    weights = (
        config.num_gdn_layers * gdn
        + config.num_attention_layers * attention
        + sum(config.routed_layers) * (shared + router)
        + config.vocab_size * hidden
    )
    state = config.num_gdn_layers * HV * config.linear_key_head_dim * V * 4
    cache = config.num_attention_layers * context * 2 * HKV * D * BF16
    return weights * BF16 + state + cache


def expert_bytes(config: TargetConfig) -> int:
    """Bytes of one routed expert."""
    return 3 * config.hidden_size * config.moe_intermediate_size * BF16


def draft_bytes(config: DraftConfig, context: int) -> int:
    """Bytes of drafting a block: the injection's and the layers' weights, keys, the head."""
    D, hidden, layers = config.head_dim, config.hidden_size, config.num_hidden_layers
    H, HKV = config.num_attention_heads, config.num_key_value_heads
    taps = len(config.target_layer_ids)
    injection = taps * hidden * hidden + layers * 2 * HKV * D * hidden
    layer = (2 * H + 2 * HKV) * D * hidden + 3 * hidden * config.intermediate_size
    window = min(context, config.sliding_window)
    seen = sum(window if kind == SLIDING else context for kind in config.layer_types)
    cache = seen * 2 * HKV * D
    return (injection + layers * layer + config.vocab_size * hidden + cache) * BF16
