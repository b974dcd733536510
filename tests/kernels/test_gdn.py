# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference import gdn
from hybridspec.kernels.reference.gdn import GdnRecords, GdnState, GdnWeights
from tests.tolerances import GDN_BLOCK, GDN_WALK, distance

H, HV, K, V, TAPS = 2, 6, 16, 24, 4
C = 2 * H * K + HV * V


def random_layer(seed):
    """Weights and a state that has seen something."""
    gen = torch.Generator().manual_seed(seed)
    weights = GdnWeights(
        conv=torch.randn(TAPS, C, generator=gen) * 0.5,
        decay_rate=torch.rand(HV, generator=gen) * 2 + 0.1,
        dt_bias=torch.randn(HV, generator=gen) * 0.5,
    )
    state = GdnState(
        conv=torch.randn(TAPS - 1, C, generator=gen),
        recurrent=torch.randn(HV, K, V, generator=gen) * 0.3,
    )
    return weights, state


def random_rows(seed, rows=MAX_ROWS):
    gen = torch.Generator().manual_seed(seed + 1000)
    return tuple(torch.randn(rows, width, generator=gen) for width in (C, HV, HV))


def hard_rows(seed, correlation, beta, alpha):
    """Rows and weights with the key correlation, write strength and decay asked for.

    The convolution passes the current row alone, and inputs are small, where SiLU is nearly linear.
    """
    gen = torch.Generator().manual_seed(seed)
    shared = torch.randn(1, H * K, generator=gen)
    keys = correlation * shared + (1 - correlation**2) ** 0.5 * torch.randn(
        MAX_ROWS, H * K, generator=gen
    )
    queries = torch.randn(MAX_ROWS, H * K, generator=gen)
    values = torch.randn(MAX_ROWS, HV * V, generator=gen)
    qkv = torch.cat((0.05 * queries, 0.05 * keys, values), dim=1)
    betas = beta[0] + (beta[1] - beta[0]) * torch.rand(MAX_ROWS, HV, generator=gen)
    betas = betas.clamp_max(1 - 1e-6)
    # with decay_rate 1 and dt_bias 0, softplus(a) is -log(alpha)
    minus_log = -torch.log(torch.tensor(alpha)) * (
        1 + 0.1 * torch.rand(MAX_ROWS, HV, generator=gen)
    )
    a = torch.log(torch.expm1(minus_log.double())).float()
    conv = torch.zeros(TAPS, C)
    conv[-1] = 1
    weights = GdnWeights(conv=conv, decay_rate=torch.ones(HV), dt_bias=torch.zeros(HV))
    return qkv, a, torch.logit(betas), weights


def empty_records(*leading):
    def stale(*shape):
        return torch.full((*leading, MAX_ROWS, *shape), 7.0)

    return GdnRecords(inputs=stale(C), keys=stale(H, K), updates=stale(HV, V), log_decays=stale(HV))


def copy(state):
    return GdnState(conv=state.conv.clone(), recurrent=state.recurrent.clone())


def judge(qkv, a, b, weights, state):
    """The recurrence token by token in float64, written from the formulas alone."""
    qkv, a, b = qkv.double(), a.double(), b.double()
    history = torch.cat((state.conv.double(), qkv))
    memory = state.recurrent.double().clone()
    outputs, states = [], []
    for row in range(len(qkv)):
        mixed = sum(history[row + tap] * weights.conv[tap].double() for tap in range(TAPS))
        mixed = mixed / (1 + torch.exp(-mixed))
        q, k = (x.view(H, K) for x in mixed[: 2 * H * K].chunk(2))
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        v = mixed[2 * H * K :].view(HV, V)
        dt = torch.log1p(torch.exp(a[row] + weights.dt_bias.double()))
        alpha = torch.exp(-weights.decay_rate.double() * dt)
        beta = 1 / (1 + torch.exp(-b[row]))
        y = torch.empty(HV, V, dtype=torch.float64)
        for head in range(HV):
            group = head // (HV // H)
            memory[head] *= alpha[head]
            update = beta[head] * (v[head] - memory[head].T @ k[group])
            memory[head] += torch.outer(k[group], update)
            y[head] = memory[head].T @ q[group] / K**0.5
        outputs.append(y)
        states.append(memory.clone())
    return torch.stack(outputs), states


def one_row(x, row):
    """A 16-row buffer that holds `row` of x in front and zeros after it."""
    buffer = torch.zeros_like(x)
    buffer[0] = x[row]
    return buffer


def walk(rows, weights, state, count):
    """Plain decoding: `count` rounds of one row. Outputs and the state after each."""
    state, outputs, states = copy(state), [], []
    for row in range(count):
        records = empty_records(1)
        layer = GdnRecords(**{name: getattr(records, name)[0] for name in records.__slots__})
        y = gdn.verify_exact(*(one_row(x, row) for x in rows), weights, state, layer, 1)
        gdn.commit(state.conv[None], state.recurrent[None], records, 1)
        outputs.append(y[0])
        states.append(copy(state))
    return outputs, states


@pytest.mark.parametrize("seed", range(3))
def test_walk_and_block_equal_the_recurrence(seed):
    weights, state = random_layer(seed)
    rows = random_rows(seed)
    want, states = judge(*rows, weights, state)
    for verify, bound in ((gdn.verify_exact, GDN_WALK), (gdn.verify_block, GDN_BLOCK)):
        y = verify(*rows, weights, state, empty_records(), MAX_ROWS)
        assert distance(y, want) < bound
    moved = copy(state)
    assert distance(gdn.prefill(*rows, weights, moved), want) < GDN_BLOCK
    assert distance(moved.recurrent, states[-1]) < GDN_BLOCK
    assert torch.equal(moved.conv, rows[0][-(TAPS - 1) :])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("beta", [(0.0, 1.0), (0.9, 1.0)])
@pytest.mark.parametrize("alpha", [0.9999, 0.5, 1e-8])
def test_correlated_keys_and_strong_writes_cost_no_digits(correlation, beta, alpha):
    _, state = random_layer(1)
    *rows, weights = hard_rows(2, correlation, beta, alpha)
    want, states = judge(*rows, weights, state)
    for verify, bound in ((gdn.verify_exact, GDN_WALK), (gdn.verify_block, GDN_BLOCK)):
        records, moved = empty_records(), copy(state)
        y = verify(*rows, weights, state, records, MAX_ROWS)
        assert distance(y, want) < bound
        leading = GdnRecords(**{n: getattr(records, n)[None] for n in records.__slots__})
        gdn.commit(moved.conv[None], moved.recurrent[None], leading, MAX_ROWS)
        assert distance(moved.recurrent, states[-1]) < bound


def test_the_hard_inputs_are_what_they_say():
    for correlation in (0.0, 0.5, 0.9, 1.0):
        *rows, weights = hard_rows(2, correlation, (0.9, 1.0), 0.9999)
        x = gdn.prepare(*rows, weights, random_layer(1)[1])
        cosines = torch.einsum("shk,thk->hst", x.keys, x.keys).mean()
        assert abs(float(cosines) - (correlation**2 + (1 - correlation**2) / MAX_ROWS)) < 0.2
        assert x.beta.min() > 0.89
        assert x.log_decay.exp().min() > 0.999


@pytest.mark.parametrize("rows", range(1, MAX_ROWS + 1))
def test_commit_equals_the_walk_bit_for_bit_in_every_layer(rows):
    layers = 3
    records, parts = empty_records(layers), [random_layer(seed) for seed in range(layers)]
    conv = torch.stack([state.conv for _, state in parts])
    recurrent = torch.stack([state.recurrent for _, state in parts])
    for number, (weights, state) in enumerate(parts):
        layer = GdnRecords(**{n: getattr(records, n)[number] for n in records.__slots__})
        gdn.verify_exact(*random_rows(number), weights, state, layer, MAX_ROWS)
    gdn.commit(conv, recurrent, records, rows)
    for number, (weights, state) in enumerate(parts):
        _, states = walk(random_rows(number), weights, state, rows)
        assert torch.equal(conv[number], states[-1].conv)
        assert torch.equal(recurrent[number], states[-1].recurrent)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 16])
def test_outputs_of_a_block_equal_the_walk_bit_for_bit(rows):
    weights, state = random_layer(4)
    inputs = tuple(x.clone() for x in random_rows(4))
    outputs, _ = walk(inputs, weights, state, rows)
    for x in inputs:
        x[rows:] = 0
    y = gdn.verify_exact(*inputs, weights, state, empty_records(), rows)
    assert torch.equal(y[:rows], torch.stack(outputs))
    assert torch.equal(y[rows:], torch.zeros_like(y[rows:]))


@pytest.mark.parametrize("verify", [gdn.verify_exact, gdn.verify_block])
def test_verify_writes_nothing_but_records(verify):
    weights, state = random_layer(5)
    rows, before = random_rows(5), copy(state)
    held = [x.clone() for x in (*rows, weights.conv, weights.decay_rate, weights.dt_bias)]
    records = empty_records()
    verify(*rows, weights, state, records, MAX_ROWS)
    assert torch.equal(state.conv, before.conv)
    assert torch.equal(state.recurrent, before.recurrent)
    for x, y in zip((*rows, weights.conv, weights.decay_rate, weights.dt_bias), held, strict=True):
        assert torch.equal(x, y)
    assert torch.equal(records.inputs, rows[0])


@pytest.mark.parametrize("verify", [gdn.verify_exact, gdn.verify_block])
@pytest.mark.parametrize("rows", [1, 2, 5, 15])
def test_commit_of_a_short_block_ignores_stale_records(verify, rows):
    weights, state = random_layer(6)
    inputs = tuple(x[:rows] for x in random_rows(6))
    if verify is gdn.verify_exact:
        inputs = tuple(torch.cat((x, torch.zeros(MAX_ROWS - rows, x.shape[1]))) for x in inputs)
    _, states = judge(*(x[:rows] for x in inputs), weights, state)
    records, moved = empty_records(1), copy(state)
    layer = GdnRecords(**{n: getattr(records, n)[0] for n in records.__slots__})
    verify(*inputs, weights, state, layer, rows)
    gdn.commit(moved.conv[None], moved.recurrent[None], records, rows)
    assert distance(moved.recurrent, states[-1]) < GDN_BLOCK
    assert torch.equal(moved.conv, torch.cat((state.conv, inputs[0][:rows]))[-(TAPS - 1) :])


@pytest.mark.parametrize("split", [[1] * 40, [2, 3, 35], [16, 16, 8], [39, 1], [1, 39]])
def test_prefill_in_pieces_equals_prefill_at_once(split):
    weights, state = random_layer(7)
    rows, whole, pieces = random_rows(7, 40), copy(state), copy(state)
    want = gdn.prefill(*rows, weights, whole)
    parts = zip(*(x.split(split) for x in rows), strict=True)
    found = torch.cat([gdn.prefill(*part, weights, pieces) for part in parts])
    assert distance(found, want) < GDN_BLOCK
    assert distance(pieces.recurrent, whole.recurrent) < GDN_BLOCK
    assert torch.equal(pieces.conv, whole.conv)


@pytest.mark.parametrize("rows", [1, 2, 9, 16])
def test_commit_as_a_product_equals_the_recurrence(rows):
    for hard in ((0.0, (0.0, 1.0), 0.5), (1.0, (0.9, 1.0), 0.9999), (0.9, (0.9, 1.0), 1e-8)):
        *inputs, weights = hard_rows(8, *hard)
        state, records = random_layer(8)[1], empty_records(1)
        layer = GdnRecords(**{n: getattr(records, n)[0] for n in records.__slots__})
        gdn.verify_exact(*inputs, weights, state, layer, MAX_ROWS)
        _, states = judge(*inputs, weights, state)
        kept = torch.cat((state.conv, inputs[0][:rows]))[-(TAPS - 1) :]
        gdn.commit_block(state.conv[None], state.recurrent[None], records, rows)
        assert distance(state.recurrent, states[rows - 1]) < GDN_BLOCK
        assert torch.equal(state.conv, kept)


@pytest.mark.parametrize("verify", [gdn.verify_exact, gdn.verify_block])
@pytest.mark.parametrize("commit", [gdn.commit, gdn.commit_block])
def test_requests_are_served_as_if_each_were_alone(verify, commit):
    rows = torch.tensor([3, 16, 1], dtype=torch.int32)
    weights, _ = random_layer(10)
    states = [random_layer(10 + i)[1] for i in range(3)]
    inputs = [random_rows(10 + i) for i in range(3)]
    together = GdnState(
        conv=torch.stack([x.conv for x in states]),
        recurrent=torch.stack([x.recurrent for x in states]),
    )
    records = empty_records(1, 3)
    layer = GdnRecords(**{n: getattr(records, n)[0] for n in records.__slots__})
    y = verify(*(torch.stack(x) for x in zip(*inputs, strict=True)), weights, together, layer, rows)
    commit(together.conv[None], together.recurrent[None], records, rows)
    for i, state in enumerate(states):
        own = empty_records(1)
        alone = GdnRecords(**{n: getattr(own, n)[0] for n in own.__slots__})
        assert torch.equal(y[i], verify(*inputs[i], weights, state, alone, rows[i]))
        commit(state.conv[None], state.recurrent[None], own, rows[i])
        assert torch.equal(together.conv[i], state.conv)
        assert torch.equal(together.recurrent[i], state.recurrent)


def test_rows_beyond_the_count_do_not_enter_a_block():
    weights, state = random_layer(12)
    rows = tuple(x.clone() for x in random_rows(12))
    want = gdn.verify_block(*(x[:5] for x in rows), weights, state, empty_records(), 5)
    for x in rows:
        x[5:] = torch.nan
    records = empty_records()
    y = gdn.verify_block(*rows, weights, state, records, 5)
    assert torch.equal(y, torch.cat((want, torch.zeros(MAX_ROWS - 5, HV, V))))
    for name in records.__slots__:
        assert torch.equal(getattr(records, name)[5:], getattr(empty_records(), name)[5:])


@pytest.mark.parametrize("verify", [gdn.verify_exact, gdn.verify_block])
@pytest.mark.parametrize("commit", [gdn.commit, gdn.commit_block])
@pytest.mark.parametrize("width", [0, MAX_ROWS])
def test_a_round_of_no_rows_changes_nothing(verify, commit, width):
    weights, state = random_layer(13)
    rows = [x[:width] for x in random_rows(13)]
    moved = GdnState(conv=state.conv.clone(), recurrent=state.recurrent.clone())
    records = empty_records(1)
    layer = GdnRecords(**{n: getattr(records, n)[0] for n in records.__slots__})
    y = verify(*rows, weights, moved, layer, 0)
    assert torch.equal(y, torch.zeros(width, HV, V))
    commit(moved.conv[None], moved.recurrent[None], records, 0)
    assert torch.equal(moved.conv, state.conv)
    assert torch.equal(moved.recurrent, state.recurrent)
