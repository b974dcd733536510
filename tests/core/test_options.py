# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import dataclasses

import pytest

from hybridspec.core.errors import HybridSpecError, OptionError
from hybridspec.core.options import MAX_ROWS, EngineOptions, SamplingParams


@pytest.mark.parametrize("tokens", [0, -1, 1.5, True, "8", None])
def test_a_budget_is_a_whole_number_from_1(tokens):
    with pytest.raises(OptionError, match=f"max_new_tokens.*{tokens!r}"):
        SamplingParams(max_new_tokens=tokens)


@pytest.mark.parametrize("temperature", [0.5, -1, 1e-9])
def test_sampling_is_refused_until_it_lands(temperature):
    with pytest.raises(OptionError, match="greedy"):
        SamplingParams(temperature=temperature)


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "greedy"},
        {"mode": "quick"},
        {"device": "tpu"},
        {"policy": "fixed", "length": 0},
        {"policy": "fixed", "length": MAX_ROWS + 1},
        {"policy": "fixed", "length": 2.0},
        {"policy": "fixed", "length": True},
    ],
)
def test_an_option_outside_its_range_is_named(options):
    name, value = list(options.items())[-1]
    with pytest.raises(OptionError, match=name) as caught:
        EngineOptions(**options)
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("policy", ["hybrid", "plain"])
def test_a_length_belongs_to_fixed(policy):
    with pytest.raises(OptionError, match=f"length.*{policy}"):
        EngineOptions(policy=policy, length=4)


@pytest.mark.parametrize("length", [None, 1, MAX_ROWS])
def test_fixed_takes_every_length_of_a_block_or_none(length):
    assert EngineOptions(policy="fixed", length=length).length == length


def test_an_unknown_option_raises_and_none_changes_later():
    with pytest.raises(TypeError, match="top_k"):
        SamplingParams(top_k=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineOptions().mode = "fast"


def test_users_can_catch_every_error_of_theirs_at_once():
    assert issubclass(OptionError, HybridSpecError)
    assert issubclass(OptionError, ValueError)
