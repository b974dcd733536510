# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Exact verification and commit equal plain decoding bit for bit, whatever the length."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.kernels import gdn
from tests.kernels.gdn_cases import (
    EVERYWHERE,
    ON_CUDA,
    case,
    committed,
    copied,
    counts,
    equal,
    hard_case,
    mapped,
    move,
    stale,
    usual,
)

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
everywhere = pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)


def longest(device):
    """Rows that a test walks; the interpreter is slow."""
    return 16 if device == "cuda" else 5


def inputs(device, dtype, kind):
    if kind == "gaussian":
        return case(usual(device), device, dtype, seed=11)
    return hard_case(usual(device), device, dtype, 0.9, (0.9, 1.0), 0.9999, seed=11)


def repeated(given, requests):
    """The same request several times; `requests` are their counts."""

    def several(x):
        return torch.stack([x] * len(requests))

    state = mapped(given.state, several)
    return replace(
        given,
        **{name: several(getattr(given, name)) for name in ("qkv", "a", "b")},
        state=copied(state),
        records=mapped(given.records, several),
        rows=counts(requests, given.qkv.device),
    )


def plain_decoding(given, count):
    """Outputs [count, HV, V] of rounds of one row, and the state after each."""
    at = given.with_rows(1)
    outputs, states = [], []
    for row in range(count):
        shifted = {x: getattr(given, x).roll(-row, 0) for x in ("qkv", "a", "b")}
        y = gdn.verify_exact(*replace(at, **shifted).arguments())
        move(gdn.commit, at.state, at.records, at.rows)
        outputs.append(y[0].clone())
        states.append(copied(at.state))
    return torch.stack(outputs), states


@everywhere
@pytest.mark.parametrize("kind", ["gaussian", "hard"])
def test_verify_and_commit_equal_plain_decoding_at_every_length(device, dtype, kind):
    given = inputs(device, dtype, kind)
    outputs, states = plain_decoding(given, longest(device))
    for n in range(1, longest(device) + 1):
        block = given.with_rows(n)
        y = gdn.verify_exact(*block.arguments())
        assert torch.equal(y[:n], outputs[:n]), n
        assert equal(committed(gdn.commit, block, block.records, n), states[n - 1]), n
    for r in range(1, longest(device) + 1):  # of the longest block
        assert equal(committed(gdn.commit, block, block.records, r), states[r - 1]), r


@everywhere
def test_a_row_depends_on_neither_the_length_nor_the_requests_beside_it(device, dtype):
    given = inputs(device, dtype, "gaussian")
    lengths = [longest(device), *range(1, longest(device)), 1]
    together = repeated(given, lengths)
    y = gdn.verify_exact(*together.arguments())
    assert torch.equal(
        gdn.verify_exact(*given.with_rows(lengths[0]).arguments())[: lengths[0]], y[0, : lengths[0]]
    )
    for i, n in enumerate(lengths):
        assert torch.equal(y[i, :n], y[0, :n]), n
        for name in ("keys", "updates", "log_decays"):
            x = getattr(together.records, name)
            assert torch.equal(x[i, :n], x[0, :n]), (name, n)


@everywhere
def test_rounds_of_any_acceptance_equal_plain_decoding(device, dtype):
    """Verify, commit some rows, verify from there: state and outputs of the same rows decoded."""
    given = inputs(device, dtype, "gaussian")
    count = 12 if device == "cuda" else 4
    outputs, states = plain_decoding(given, count)
    at, done = replace(given, **given.fresh()), 0
    for accepted in (1, 2, 1, 3, 5):
        if done + accepted > count:
            break
        shifted = {x: getattr(given, x).roll(-done, 0) for x in ("qkv", "a", "b")}
        at = replace(at, **shifted, records=stale(given.records), rows=counts(accepted + 1, device))
        y = gdn.verify_exact(*at.arguments())
        assert torch.equal(y[:accepted], outputs[done : done + accepted])
        done += accepted
        at = replace(at, state=committed(gdn.commit, at, at.records, accepted))
        assert equal(at.state, states[done - 1])
    assert done == count


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "block"])
def test_fifty_repeats_are_equal_bit_for_bit(device, dtype, exact):
    verify = gdn.verify_exact if exact else gdn.verify_block
    commit = gdn.commit if exact else gdn.commit_block
    given = case(usual(device), device, dtype, seed=12, requests=(4,)).with_rows([16, 3, 8, 1])

    def once():
        given_now = given.with_rows(given.rows)
        y = verify(*given_now.arguments())
        for i, n in enumerate(given.rows.tolist()):
            y[i, n:] = 0
        return y, given_now.records, committed(commit, given_now, given_now.records, given.rows)

    y, records, state = once()
    for _ in range(50):
        again = once()
        assert torch.equal(again[0], y)
        assert equal(again[1], records)
        assert equal(again[2], state)
