# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The file's own numbers are computed with, in float32 (`models/weights.py` states the policy)."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from hybridspec.kernels.reference.activation import softplus
from tests.decoding import load, load_tapped, logits_of, read_text
from tests.models.test_parity import TOKENS, assert_close, logits_of_theirs
from tests.tiny import FAMILIES, write_laid_out, write_target
from tests.tiny_target import Layout, target_tensors

AS_3_5 = Layout(
    prefix="model.language_model.",
    dtype=torch.bfloat16,
    kept=("A_log", "linear_attn.norm.weight"),
    has_extras=True,
)
"""two kinds of tensors in F32 beside bf16 weights"""
OFFICIAL = {
    "qwen3_5_moe": AS_3_5,
    "qwen3_next": replace(AS_3_5, prefix="model.", experts="one by one"),
}
ROUNDING = 2.0**-8
"""largest relative error of a number that is rounded to bf16"""


def logits(directory):
    target = load_tapped(directory)
    return logits_of(target, read_text(target, TOKENS))


@pytest.mark.parametrize("family", FAMILIES)
def test_F32_tensors_among_bf16_ones_read_what_transformers_reads_in_float32(family, tmp_path):  # noqa: N802
    directory = write_target(tmp_path, family=family, layout=OFFICIAL[family])
    stored = load_file(directory / "model.safetensors")
    assert {x.dtype for x in stored.values()} == {torch.float32, torch.bfloat16}
    assert_close(logits(directory), logits_of_theirs(directory))


def test_every_stored_digit_is_kept_and_none_is_invented(tmp_path):
    config = FAMILIES["qwen3_5_moe"]
    tensors = target_tensors(config, 0)
    mixed = load(write_laid_out(tmp_path / "mixed", tensors, config, AS_3_5))
    assert mixed.embedding.dtype == mixed.layers[0].mlp.router.dtype == torch.float32
    name = "model.layers.0.linear_attn."
    assert torch.equal(mixed.layers[0].mixer.weights.decay_rate, tensors[f"{name}A_log"].exp())
    assert torch.equal(mixed.layers[0].mixer.norm, tensors[f"{name}norm.weight"])
    assert torch.equal(mixed.embedding, tensors["model.embed_tokens.weight"].bfloat16().float())
    rounded = {n: x if n.endswith(AS_3_5.kept) else x.bfloat16() for n, x in tensors.items()}
    wide = {n: x.float() for n, x in rounded.items()}
    directory = write_laid_out(tmp_path / "wide", wide, config, Layout())
    assert torch.equal(logits(tmp_path / "mixed"), logits(directory))


def test_transformers_rounds_A_log_when_it_loads_in_bf16(tmp_path):  # noqa: N802
    from transformers import AutoModelForCausalLM

    directory = write_target(tmp_path, layout=AS_3_5)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    theirs = model.model.layers[0].linear_attn.A_log
    ours = load(directory).layers[0].mixer.weights.decay_rate
    assert theirs.dtype == torch.bfloat16
    stored = load_file(directory / "model.safetensors")
    exact = stored["model.language_model.layers.0.linear_attn.A_log"]
    assert torch.equal(theirs, exact.bfloat16())
    assert torch.equal(ours, exact.exp())
    assert not torch.equal(theirs.float().exp(), ours)


def test_rounding_A_log_to_bf16_moves_a_decay_by_no_more_than_the_bound():  # noqa: N802
    """g = -exp(A_log) softplus(a + dt_bias): rounding A_log scales g by exp(+-|A_log| 2^-8)."""
    A_log = torch.linspace(-4.0, 4.0, 2001, dtype=torch.float64)
    rounded = A_log.bfloat16().double()
    inputs = torch.linspace(-12.0, 12.0, 49, dtype=torch.float64)[:, None]
    g, moved = (-(x.exp()) * softplus(inputs) for x in (A_log, rounded))
    most = A_log.abs() * ROUNDING
    assert ((moved / g).log().abs() <= most + 1e-12).all()
    assert (rounded != A_log).any()
    # x exp(-x) is at most 1/e, so the decay itself moves by at most most.expm1() / e
    assert ((moved.exp() - g.exp()).abs() <= most.exp() * most.expm1() / torch.e + 1e-12).all()
