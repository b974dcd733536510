# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A profile on CUDA: measured as captured graphs, taken by the engine, and of no use elsewhere."""

import json

import pytest

pytest.importorskip("triton")
pytest.importorskip("cyclopts")

from hybridspec import LLM, SamplingParams
from hybridspec.cli import main
from hybridspec.core.errors import TableError

pytestmark = pytest.mark.gpu


def test_a_profile_is_taken_by_the_engine_and_refused_on_another_device(tmp_path):
    path = tmp_path / "latency.json"
    arguments = ["--device", "cuda", "--contexts", "64,512", "--output", str(path)]
    assert main(["profile", *arguments]) == 0
    prices = json.loads(path.read_text(encoding="utf-8"))["routing"]
    assert prices["seconds_per_expert"] >= 0
    assert prices["layers"] == 8
    hybrid = LLM(device="cuda", latency=path)
    params = SamplingParams(max_new_tokens=64)
    plain = hybrid.using(policy="plain").generate("def area(r):", params)
    assert hybrid.generate("def area(r):", params).token_ids == plain.token_ids
    with pytest.raises(TableError, match="another device"):
        LLM(device="cpu", latency=path)
