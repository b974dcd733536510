# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A text that was written in bfloat16 parts from float32 on a CPU at near ties alone.

The judge reads the other's text, so each of its tokens has the judge's opinion on what precedes it:
how far the token's logit is below the best one. At the first token that differs, as at any other,
that is at least the gap of the judge's two best.
"""

from contextlib import nullcontext

import pytest
import torch

from tests.decoding import finished, logits_of, read_text
from tests.shipped import begun_plain, prompt_of, shipped, tapped
from tests.tolerances import BF16_NEAR_TIE
from tests.watching import Rounding

pytestmark = pytest.mark.usefixtures("inference")


@pytest.fixture(scope="module")
def judge():
    return tapped("cpu")


def written(pair, number, tokens, how=None):
    """A held-out prompt and its plain text."""
    prompt = prompt_of(pair, number)
    with how or nullcontext():
        ids, _, _ = finished(begun_plain(pair, prompt, budget=tokens))
    return prompt, ids


def shortfalls(judge, prompt, ids):
    """By how much the judge's logit of each token is below its best one."""
    reading = read_text(judge, torch.tensor([*prompt, *ids[:-1]]))
    logits = logits_of(judge, reading)[len(prompt) - 1 :]
    assert torch.equal(logits[-1:].argmax(1), reading.tokens[-1:])
    own = logits.gather(1, torch.tensor(ids)[:, None])
    return logits.max(1).values - own.squeeze(1)


@pytest.mark.gpu
def test_a_text_of_the_gpu_parts_from_the_cpu_at_near_ties_alone(judge):
    pair = shipped("cuda")
    short = [shortfalls(judge, *written(pair, number, 96)) for number in range(12)]
    short = torch.cat(short)
    assert short.max() < BF16_NEAR_TIE, short[short > 0].sort().values
    assert (short > 0).double().mean() < 0.05


def test_products_in_bfloat16_part_from_float32_at_near_ties_alone(judge):
    rounding = Rounding(torch.bfloat16)
    short = shortfalls(judge, *written(shipped("cpu"), 4, 48, rounding))
    assert rounding.products > 1000
    assert 0 < short.max() < BF16_NEAR_TIE  # one token of this text differs
    assert (short > 0).sum() <= 2


def test_products_of_three_bits_are_told_from_near_ties(judge):
    short = shortfalls(judge, *written(shipped("cpu"), 0, 24, Rounding(torch.float8_e4m3fn)))
    assert short.max() > 2 * BF16_NEAR_TIE


def test_a_text_of_the_judge_itself_never_parts(judge):
    assert shortfalls(judge, *written(shipped("cpu"), 4, 16)).max() == 0
