# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The chunked prompt pass on a CUDA device: against rows one by one, and rounds that go on."""

import pytest
import torch

pytest.importorskip("triton")

from hybridspec import LLM, SamplingParams
from hybridspec.core.errors import PromptError
from hybridspec.models import prefill, prefill_library
from hybridspec.models.embedded import heldout_prompts
from tests.models.fused_cases import LAYERS, commit, read, twins
from tests.models.prefill_cases import PLAIN
from tests.tolerances import PREFILL, PREFILL_BF16, distance

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(device="cuda")


def differences(ours, theirs) -> dict[str, float]:
    ours, theirs = ours.committed(), theirs.committed()
    assert int(ours.pop("length")) == int(theirs.pop("length"))
    return {name: distance(ours[name].cpu(), x.cpu()) for name, x in theirs.items()}


@torch.inference_mode()
def test_the_shipped_target_leaves_what_rows_one_by_one_do(llm):
    target = llm.pair.target
    ids = llm.pair.tokenizer.encode("\n".join(heldout_prompts("test")))[:1000]
    assert len(ids) == 1000
    judge, found = target.empty_state(1016), {}
    for row, token in enumerate(ids):
        read(target, [token], 1, judge)
        commit(judge, 1)
        if row + 1 <= 130 or row + 1 == 1000:
            ours = target.empty_state(1016)
            target.read_prompt(torch.tensor(ids[: row + 1], device=CUDA), ours)
            of_length = differences(ours, judge)
            found[row + 1] = max((value, name) for name, value in of_length.items())
    worst = sorted(((*value, length) for length, value in found.items()), reverse=True)
    print("worst:", worst[:5])
    assert worst[0][0] < PREFILL_BF16


@pytest.mark.parametrize("layers", LAYERS)
@torch.inference_mode()
def test_in_full_precision_the_reference_is_met(layers, tmp_path):
    pair = twins(tmp_path, "cuda", torch.float32, "exact", layers)
    for length in (1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200):
        plain, fused = pair.states(256)
        tokens = torch.randint(256, (length,), generator=torch.Generator().manual_seed(length))
        for piece in tokens.split(64):
            want = pair.reference.read_prompt(piece, plain)
        found = prefill.read_prompt(pair.fused, tokens.to(CUDA), fused, chunk=64, library=PLAIN)
        assert torch.equal(found.tokens.cpu(), want.tokens)
        assert max(differences(fused, plain).values()) < PREFILL, length


@pytest.mark.parametrize("sizes", [(2, 4, 128, 128), (1, 2, 16, 32)])
@torch.inference_mode()
def test_the_chunked_delta_rule_equals_the_reference(sizes):
    (H, HV, K, V), draw = sizes, torch.Generator(CUDA).manual_seed(0)

    def normal(*size):
        return torch.randn(size, generator=draw, device=CUDA)

    for N in (1, 2, 3, 16, 63, 64, 65, 128, 130):
        q, k = (normal(N, H, K).bfloat16() for _ in "qk")
        v, memory = normal(N, HV, V).bfloat16(), normal(HV, V, K).mT
        log_decay, beta = -normal(N, HV).abs(), normal(N, HV).sigmoid()
        y, after = prefill_library.chunked(q, k, v, log_decay, beta, memory)
        want_y, want_after = PLAIN.delta(q, k, v, log_decay, beta, memory)
        assert distance(after, want_after) < 1e-2, N
        assert distance(y, want_y) < 1e-2, N


@torch.inference_mode()
def test_the_convolution_reads_rows_of_any_stride_and_what_came_before():
    draw = torch.Generator(CUDA).manual_seed(0)
    before, weight = torch.randn(2, 4, 96, generator=draw, device=CUDA).bfloat16()
    for N in (1, 2, 3, 4, 63, 64, 65, 130):
        x = torch.randn(N, 160, generator=draw, device=CUDA).bfloat16()[:, :96]
        want = PLAIN.convolve(x.float(), before[1:].float(), weight.float())
        assert distance(prefill_library.convolved(x, before[1:], weight), want) < 1e-2, N


@pytest.mark.parametrize("start", [0, 1, 100, 128])
@torch.inference_mode()
def test_attention_of_wide_heads_equals_full_precision(start):
    draw = torch.Generator(CUDA).manual_seed(start)
    keys, values = torch.randn(2, 4, 2, 128, 256, generator=draw, device=CUDA).bfloat16()
    q = torch.randn(300, 16, 256, generator=draw, device=CUDA).bfloat16()
    want = prefill.attend(*(x.float() for x in (q, keys, values)), start)
    assert distance(prefill.attend(q, keys, values, start), want) < 1e-2


@torch.inference_mode()
def test_the_grouped_product_takes_empty_groups_and_any_number_of_rows():
    draw = torch.Generator(CUDA).manual_seed(0)
    weight = torch.randn(8, 64, 128, generator=draw, device=CUDA).bfloat16()
    for rows in (1, 2, 3, 15, 200):
        x = torch.randn(rows, 128, generator=draw, device=CUDA).bfloat16()
        group = torch.randint(1, 7, (rows,), generator=draw, device=CUDA).sort()[0]
        numbers = torch.arange(8, device=CUDA)
        ends = torch.searchsorted(group, numbers, right=True).to(torch.int32)
        want = PLAIN.grouped(x.float(), weight.float(), ends)
        assert distance(prefill_library.grouped(x, weight, ends), want) < 1e-2


@torch.inference_mode()
def test_a_prompt_read_twice_leaves_the_same_bits_whatever_the_mode(llm):
    target, state = llm.pair.target, []
    tokens = torch.randint(200, (700,), device=CUDA)
    for mode in ("exact", "fast", "exact"):
        state.append(target.using(mode).empty_state(720))
        target.using(mode).read_prompt(tokens, state[-1])
    for name, tensor in state[0].committed().items():
        for other in state[1:]:
            assert torch.equal(other.committed()[name], tensor), name


@torch.inference_mode()
def test_where_a_chunk_ends_does_not_matter(llm):
    target, tokens = llm.pair.target, torch.randint(200, (260,), device=CUDA)
    whole = target.empty_state(300)
    target.read_prompt(tokens, whole)
    for chunk in (1, 63, 64, 65, 129, 259):
        parts = target.empty_state(300)
        prefill.read_prompt(target, tokens, parts, chunk=chunk)
        assert max(differences(parts, whole).values()) < PREFILL_BF16, chunk


def test_drafted_rounds_write_what_plain_ones_do_from_a_chunked_prompt(llm):
    text, params = "\n".join(heldout_prompts("test")), SamplingParams(max_new_tokens=64)
    for length in (1, 2, 3, 4, 65, 1000, 5000):
        want = llm.using(policy="plain").generate(text[:length], params)
        for policy in ("fixed", "hybrid"):
            found = llm.using(policy=policy).generate(text[:length], params)
            assert found.token_ids == want.token_ids


def test_a_prompt_that_fills_the_positions_ends_with_length_and_a_longer_one_is_refused(llm):
    positions, tokenizer = llm.pair.target.config.max_position_embeddings, llm.pair.tokenizer
    text = "a b" * positions
    room = next(n for n in range(1, len(text)) if len(tokenizer.encode(text[:n])) == positions)
    for policy in ("plain", "fixed"):
        done = llm.using(policy=policy).generate(text[:room])
        assert (len(done.token_ids), done.finish_reason) == (1, "length")
        with pytest.raises(PromptError, match="positions"):
            llm.using(policy=policy).generate(text[: room + 8])
