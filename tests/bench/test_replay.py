# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A replay over a trace says what the engine would have done on the same text."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hybridspec import LLM, SamplingParams
from hybridspec.bench.ground import Costs, Ground
from hybridspec.bench.record import record
from hybridspec.bench.replay import Engine, compare, oracle, run
from hybridspec.bench.trace import Trace
from hybridspec.core.errors import TraceError
from hybridspec.models.embedded import heldout_prompts
from hybridspec.policy.alternatives import Always
from hybridspec.policy.latency import Latency
from hybridspec.policy.routing import RoutingCosts

TOKENS = 40
PROMPTS = heldout_prompts()[:4]
ROWS = [1e-3 + 1e-4 * max(n, 3) for n in range(1, 17)]


@pytest.fixture(scope="module")
def llm():
    """The embedded pair."""
    return LLM(policy="fixed", device="cpu")


@pytest.fixture(scope="module")
def trace(llm):
    """Of those that do not end with their first token."""
    return record(llm, [("code", prompt) for prompt in PROMPTS], max_new_tokens=TOKENS)


@pytest.fixture(scope="module")
def ground(llm, trace):
    """With a table that is a staircase, and a plain step that is cheap."""
    latency = Latency.measured({64: ROWS, 200: [2 * t for t in ROWS]}, plain={64: 9e-4, 200: 2e-3})
    return Ground(
        trace=trace,
        acceptance=llm.tables.acceptance(),
        costs=Costs.of_35b(trace),
        latency=latency,
    )


def decoded(llm):
    """Tokens of every round of each prompt that has rounds, as the engine decodes."""
    found = []
    for prompt in PROMPTS:
        chunks = list(llm.stream(prompt, SamplingParams(max_new_tokens=TOKENS)))
        found.append([chunk.token_ids for chunk in chunks[1:]])
    return [rounds for rounds in found if rounds]


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_fixed_over_a_trace_is_the_engines_fixed_round_for_round(llm, trace, ground, rows):
    replayed = iter(run("fixed", Always(rows), ground).rounds)
    tokens = trace.tokens.tolist()
    for (_, begin, end), rounds in zip(
        trace.texts(), decoded(llm.using(policy="fixed", length=rows)), strict=True
    ):
        place = begin
        for ids in rounds:
            assert next(replayed) == (rows, len(ids))
            assert tuple(tokens[place : place + len(ids)]) == ids
            place += len(ids)
        assert place == end
    assert next(replayed, None) is None


def test_hybrid_over_a_trace_chooses_what_the_engine_chose(llm, ground, tmp_path):
    path = tmp_path / "latency.json"
    ground.latency.save(path, key=llm.tables.key())
    engine = LLM(device="cpu", latency=path)
    replayed, chosen = Engine(ground), []
    for prompt in PROMPTS:
        before = {}
        for chunk in list(engine.stream(prompt, SamplingParams(max_new_tokens=TOKENS)))[1:]:
            drafted = chunk.stats.rounds_drafted - before.get("drafted", 0)
            rows = chunk.stats.rows_read - before.get("rows", 0)
            chosen.append((rows if drafted else 0, len(chunk.token_ids)))
            before = {"drafted": chunk.stats.rounds_drafted, "rows": chunk.stats.rows_read}
    assert list(run("hybrid", replayed, ground).rounds) == chosen
    assert len({rows for rows, _ in chosen}) > 2, "a rule that always reads as many proves little"


def test_no_rule_is_quicker_than_the_oracle_of_the_same_clock(ground, trace):
    for own in (ground, Ground(trace=trace, acceptance=ground.acceptance, costs=ground.costs)):
        runs = compare(own)
        assert runs[-2].name == "oracle by table"
        for one in runs:
            assert one.tokens == len(trace.tokens)
            assert one.table_seconds >= runs[-2].table_seconds * (1 - 1e-12)
            assert one.model_seconds >= runs[-1].model_seconds * (1 - 1e-12)


def test_the_oracle_reads_no_row_that_is_not_accepted(ground, trace):
    for rows, tokens in oracle("oracle", ground, clock=1).rounds:
        assert rows <= tokens + 1  # one more only where the text ends inside the block


@pytest.mark.parametrize(("correction", "below", "above"), [("one", 0, 1), ("window", 2, 2)])
def test_a_corrected_length_is_within_its_reach(ground, correction, below, above):
    """And with dear experts it is not always the one that was chosen."""
    dear = RoutingCosts(seconds_per_row=0, seconds_per_expert=1e-3, layers=8, correlation=1.0)
    engine, corrected = Engine(ground), Engine(ground, correction, dear)
    engine.begin()
    corrected.begin()
    moved = set()
    for place in range(8):
        look = ground.look(0, 0, place)
        rows, more = engine.rows(look), corrected.rows(look)
        assert max(rows - below, 1) <= more <= min(rows + above, 16)
        moved.add(more - rows)
        engine.see(look, rows, 1)
        corrected.see(look, rows, 1)
    assert moved != {0}


def test_unions_are_the_distinct_experts_of_the_first_rows(trace):
    for place in (0, 7, len(trace.tokens) - 1):
        for rows in (1, 2, 9, 16):
            ids = trace.experts[place, :rows]
            by_hand = [len(set(ids[:, layer].flatten().tolist())) for layer in range(ids.shape[1])]
            assert int(trace.unions()[place, rows - 1]) == sum(by_hand)
            assert int(trace.unions(3)[place, rows - 1]) == by_hand[3]


def test_a_trace_is_read_as_it_was_written(trace, tmp_path):
    path = tmp_path / "trace.safetensors"
    trace.save(path)
    read = Trace.load(path)
    assert (read.key, read.classes) == (trace.key, trace.classes)
    for name in ("begins", "prompts", "budgets", "tokens", "accepted", "log_odds", "experts"):
        assert torch.equal(getattr(read, name), getattr(trace, name))


def rewritten(path, change):
    """The file with its tensors and metadata changed."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    change(tensors, metadata)
    save_file(tensors, path, metadata=metadata)


DAMAGE = {
    "version": lambda tensors, told: told.update(version="2"),
    "key": lambda tensors, told: told.update(trace="{}"),
    "log_odds": lambda tensors, told: tensors.pop("log_odds"),
    "experts": lambda tensors, told: tensors.update(experts=tensors["experts"][:-1].clone()),
    "tokens": lambda tensors, told: tensors.update(tokens=tensors["tokens"].long()),
    "seconds": lambda tensors, told: tensors.update(seconds=tensors["seconds"][:, :2].clone()),
    "damaged": lambda tensors, told: tensors["begins"].neg_(),
    "texts": lambda tensors, told: tensors["accepted"].fill_(200),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_trace_or_one_of_another_version_is_refused_by_name(trace, tmp_path, name):
    path = tmp_path / "trace.safetensors"
    trace.save(path)
    rewritten(path, DAMAGE[name])
    with pytest.raises(TraceError, match=rf"trace\.safetensors.*{name}|{name}.*record it anew"):
        Trace.load(path)


@pytest.mark.parametrize("kept", [0, 4, 300, -1])
def test_a_short_trace_is_refused_by_name(trace, tmp_path, kept):
    path = tmp_path / "trace.safetensors"
    trace.save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(TraceError, match=r"trace\.safetensors cannot be read"):
        Trace.load(path)
