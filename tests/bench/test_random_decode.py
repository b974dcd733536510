# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Decoding with random weights, in sizes that the interpreter can take."""

import json
import signal

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.bench import random_decode
from hybridspec.bench.__main__ import main
from hybridspec.bench.bytes import draft_bytes, expert_bytes, fixed_bytes
from hybridspec.bench.decode import Interrupted
from hybridspec.bench.options import DecodeOptions
from hybridspec.bench.phases import PHASES
from hybridspec.bench.random_decode import Costs, run_random_decode
from hybridspec.bench.worlds import draw_acceptances
from hybridspec.core.errors import OptionError
from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Stats
from tests.bench.scripts import rounds_by_table
from tests.bench.tiny_shape import TOP, tiny_shape
from tests.kernels.gdn_cases import interpreted
from tests.models.fused_cases import few_programs  # noqa: F401

SHAPE = ["--shape", "qwen3.6-35b-a3b", "--random-weights"]
CONTEXT, TOKENS, BLOCK = 37, 5, 3


def asked(**changes):
    given = {"context": CONTEXT, "max_new_tokens": TOKENS, "repeats": 1} | changes
    return DecodeOptions(shape="qwen3.6-35b-a3b", random_weights=True, **given)


@interpreted
@pytest.mark.usefixtures("few_programs")
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_every_policy_writes_the_script_in_the_real_engine(tmp_path, monkeypatch):
    """That the text is the script's is asserted wherever one is decoded."""
    monkeypatch.setattr("hybridspec.engine.measure.REPEATS", 1)
    shape = tiny_shape(tmp_path, block_size=BLOCK)
    options = asked(policies="plain,fixed,hybrid", acceptance_world="agentic", device="cpu")
    report = run_random_decode(options, command="as typed", shape=shape)
    plain, fixed, hybrid = report.arms
    table = draw_acceptances(
        "agentic", positions=CONTEXT + TOKENS + 2 * MAX_ROWS, drafts=BLOCK - 1
    ).accepted.tolist()
    emitted = rounds_by_table(table, context=CONTEXT, tokens=TOKENS, rows=BLOCK)
    assert (plain.rounds, plain.rounds_drafted, plain.lengths) == (TOKENS - 1, 0, {1: TOKENS - 1})
    assert (fixed.rounds, fixed.lengths) == (len(emitted), {BLOCK: len(emitted)})
    assert fixed.tokens_per_round == (TOKENS - 1) / len(emitted) > 1
    assert hybrid.rounds == sum(hybrid.lengths.values())
    assert plain.experts_a_layer == TOP
    assert TOP < fixed.experts_a_layer <= 2 * TOP
    layers = len(shape.target.layer_types)
    places = range(CONTEXT, CONTEXT + TOKENS - 1)
    moved = sum(fixed_bytes(shape.target, place) for place in places) / len(places)
    moved += layers * TOP * expert_bytes(shape.target)
    assert plain.gigabytes_a_round * 1e9 == pytest.approx(moved)
    assert fixed.gigabytes_a_round * 1e9 > moved + draft_bytes(shape.drafter, CONTEXT)
    assert set(plain.phases_ms) == set(PHASES)
    assert plain.phases_ms["draft"] == 0 < plain.phases_ms["verify"]
    assert fixed.phases_ms["draft"] > 0 < hybrid.phases_ms["policy"]
    assert report.latency is not None
    assert list(report.latency["plain"]) == [str(CONTEXT)]
    assert report.latency["routing"]["layers"] > 0
    assert report.circumstances.command == "as typed"


def test_a_device_without_cuda_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["decode", *SHAPE]) == 2
    assert "needs a CUDA device, and the device here is cpu" in capsys.readouterr().err
    assert main(["decode", *SHAPE, "--device", "cpu"]) == 2
    assert main(["decode", *SHAPE, "--device", "cuda"]) == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"policies": "fixed:4"}, "length 4 exceeds the drafter's block of 3 rows"),
        ({"policies": "fixed,fixed:3"}, "name one policy twice"),
        ({"policies": "plain", "context": 500}, "need 537 positions, shape tiny has 512"),
    ],
)
def test_what_does_not_fit_the_shape_is_refused(changes, named, tmp_path):
    shape = tiny_shape(tmp_path, block_size=BLOCK)
    with pytest.raises(OptionError, match=named):
        run_random_decode(asked(**changes), shape=shape)


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """Lanes of two tokens a round of 2 ms (plain: 1 a ms), 4 GB each, without a model."""
    pressed = []

    class Lane:
        def __init__(self, rounds, pair, scene):
            self.step = 1 if rounds.policy == "plain" else 2

        def costs(self):
            phases = dict.fromkeys(PHASES, 0.5)
            return Costs(phases_ms=phases, experts=16.0, bytes=4e9)

        def decoded(self):
            pressed.append(None)
            if len(pressed) == faked.interrupted_at:
                signal.raise_signal(signal.SIGINT)
            rounds = 8 // self.step
            return Stats(
                rounds=rounds,
                rounds_drafted=rounds,
                tokens=9,
                rows_read=8,
                drafts_accepted=8 - rounds,
                lengths={self.step: rounds},
                seconds=rounds * (1e-3 if self.step == 1 else 1.6e-3),
            )

    class Pair:
        @classmethod
        def made(cls, shape, scene, device):
            faked.scenes.append(scene)
            pair = cls()
            pair.shape, pair.target = shape, type("Target", (), {"head": torch.empty(0)})
            return pair

        def rounds(self, arm, latency):
            return arm

    class Faked:
        shape = tiny_shape(tmp_path, block_size=16)
        scenes: list[object] = []  # noqa: RUF012
        interrupted_at = 0

        def report(self, **changes):
            options = asked(max_new_tokens=9, **changes)
            return run_random_decode(options, shape=self.shape)

    monkeypatch.setattr(random_decode, "Lane", Lane)
    monkeypatch.setattr(random_decode, "RandomPair", Pair)
    faked = Faked()
    return faked


def test_figures_follow_from_the_rounds(faked):
    report = faked.report(policies="plain,fixed:4", repeats=3)
    plain, fixed = report.arms
    assert plain.tokens_per_second.median == pytest.approx(1000)
    assert fixed.tokens_per_second.median == pytest.approx(1250)
    assert fixed.over_plain is not None
    assert fixed.over_plain.median == pytest.approx(1.25)
    assert fixed.ms_per_round.median == pytest.approx(1.6)
    assert (plain.tokens_per_round, fixed.tokens_per_round) == (1, 2)
    assert fixed.experts_a_layer == 8
    assert plain.share_of_bandwidth == pytest.approx(1)
    assert fixed.share_of_bandwidth == pytest.approx(1 / 1.6)
    assert report.repeats == 3
    assert faked.report(policies="fixed:4").arms[0].over_plain is None


def test_flags_set_the_scene(faked):
    faked.report(policies="plain", acceptance_world="maths", persistence=0.2, mode="exact")
    faked.report(policies="plain", own_router=True)
    first, second = faked.scenes
    assert (first.world, first.persistence, first.mode) == ("maths", 0.2, "exact")
    assert (second.world, second.persistence, second.mode) == ("chat", None, "fast")
    assert (first.context, first.max_new_tokens) == (CONTEXT, 9)


def test_every_number_says_that_weights_are_random(faked):
    report = faked.report(policies="plain,fixed:4,fixed", acceptance_world="mixed")
    found = json.loads(json.dumps(report.to_json()))
    assert found["weights"] == "random"
    assert [arm["weights"] for arm in found["arms"]] == ["random"] * 3
    assert {"device", "versions", "commit", "date", "command", "latency"} <= set(found)
    assert (found["acceptance_world"], found["persistence"]) == ("mixed", 0.4)
    table = report.table()
    assert all(len(line) <= 100 for line in table.split("\n\n")[0].splitlines())
    for name in ("plain fast", "fixed:4 fast", "fixed:16 fast"):
        rows = [line for line in table.splitlines() if line.startswith(f"{name} ")]
        assert len(rows) == 2
        assert all("random" in row for row in rows)
    assert "acceptance is not measured but drawn: world mixed" in table


@pytest.mark.parametrize(("at", "repeats"), [(2, None), (5, 2), (6, 2)])
def test_ctrl_c_reports_the_repeats_that_are_complete(faked, at, repeats):
    faked.interrupted_at = at
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(Interrupted, match=f"after {at - 1} of 6 texts") as caught:
            faked.report(policies="plain,fixed:4", repeats=3)
    finally:
        signal.signal(signal.SIGINT, before)
    found = caught.value.report
    assert (None if found is None else found.repeats) == repeats
