# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What the GDN kernels do not take is refused before a launch, by the name of the tensor."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.kernels import gdn
from hybridspec.kernels.launch import ShapeError
from tests.kernels.gdn_cases import Sizes, case, counts, mapped

BASE = case(Sizes(), "cpu", torch.float32, requests=(2,), rows=1)


def changed(part, **tensors):
    return {part: replace(getattr(BASE, part), **tensors)}


def of(sizes=None, **arguments):
    return case(sizes or Sizes(), "cpu", torch.float32, rows=1, **arguments)


def spread(x):
    """The same numbers, no longer contiguous."""
    return torch.stack((x, x), dim=-1)[..., 0]


WEIGHTS, STATE, RECORDS = BASE.weights, BASE.state, BASE.records
VERIFY = {
    "qkv must be": {"qkv": BASE.qkv[..., 1:]},
    "a must be": {"a": BASE.a[:, :-1]},
    "b must be": {"b": BASE.b[..., :-1]},
    "rows must be (2,)": {"rows": BASE.rows[:1]},
    "rows must be int32 and contiguous, got torch.int64": {"rows": BASE.rows.long()},
    "weights_conv must be (4,": changed("weights", conv=WEIGHTS.conv[:3]),
    "weights_conv must be contiguous": changed("weights", conv=spread(WEIGHTS.conv)),
    "weights_decay_rate must be": changed("weights", decay_rate=WEIGHTS.decay_rate[:1]),
    "weights_dt_bias must be": changed("weights", dt_bias=WEIGHTS.dt_bias[:1]),
    "state_conv must be (2, 3,": changed("state", conv=STATE.conv[:, :2]),
    "state_conv must be torch.float32": changed("state", conv=STATE.conv.half()),
    "convolution's state must be contiguous": changed("state", conv=spread(STATE.conv)),
    "state_recurrent must be": changed("state", recurrent=STATE.recurrent[:1]),
    "strides (1024, 512, 32, 1)": changed("state", recurrent=STATE.recurrent.contiguous()),
    "got torch.float64": changed("state", recurrent=STATE.recurrent.double()),
    "records_inputs must be (2, 16,": changed("records", inputs=RECORDS.inputs[:, 1:]),
    "records_inputs must be torch.float32": changed("records", inputs=RECORDS.inputs.half()),
    "records_keys must be torch.float32": changed("records", keys=RECORDS.keys.double()),
    "records_updates must be (2, 16,": changed("records", updates=RECORDS.updates[..., 1:]),
    "records_log_decays must be (2, 16,": changed("records", log_decays=RECORDS.log_decays[:1]),
    "records_updates must be torch.float32 and contiguous": changed(
        "records", updates=spread(RECORDS.updates)
    ),
    "qkv, a and b must be contiguous along a row": {"qkv": spread(BASE.qkv)},
    "a and b laid out alike": {"a": torch.cat((BASE.a, BASE.a), dim=-1)[..., :2]},
}
WHOLE = {
    "3 value heads are no multiple of 2 key heads": of(Sizes(H=2, HV=3)),
    "keys are 48 wide; the kernels take 16, 32, 64, 128, 256": of(Sizes(K=48)),
    "values are 8 wide": of(Sizes(V=8)),
}


@pytest.mark.parametrize("verify", [gdn.verify_exact, gdn.verify_block], ids=["exact", "block"])
@pytest.mark.parametrize("message", [*VERIFY, *WHOLE])
def test_verify_refuses_what_it_does_not_take(verify, message):
    given = WHOLE[message] if message in WHOLE else replace(BASE, **VERIFY[message])
    with pytest.raises(ShapeError) as refusal:
        verify(*given.arguments())
    assert message in str(refusal.value)


@pytest.mark.parametrize("N", [3, 6, 15])
def test_rows_that_do_not_fill_a_program_are_refused(N):
    with pytest.raises(ShapeError, match=f"qkv holds {N} rows"):
        gdn.verify_exact(*of(N=N).arguments())


@pytest.mark.parametrize("N", [1, 8, 32])
def test_block_form_takes_sixteen_rows_alone(N):
    given = of(N=N)
    with pytest.raises(ShapeError, match=f"qkv holds {N}: pad it"):
        gdn.verify_block(*given.arguments())
    with pytest.raises(ShapeError, match=f"records of 16 rows, got {N}"):
        commits(gdn.commit_block, given.state, given.records, given.rows)


COMMIT = {
    "records_inputs must be (1, 2, 16,": changed("records", inputs=RECORDS.inputs[:1]),
    "records_updates must be (1, 2, 16,": changed("records", updates=RECORDS.updates[..., :8]),
    "records_log_decays must be (1, 2, 16,": changed("records", log_decays=RECORDS.log_decays[:1]),
    "records_inputs must be torch.float16": changed("state", conv=STATE.conv.half()),
    "conv must be (1, 2, 3,": changed("state", conv=STATE.conv[:, :2]),
    "recurrent must be (1, 2,": changed("state", recurrent=STATE.recurrent[:1]),
    "recurrent must be (1, 3,": {"rows": counts([1, 1, 1], "cpu")},
    "rows must be int32 and contiguous, got torch.int64": {"rows": BASE.rows.long()},
    "lie as [..., HV, V, K]": changed("state", recurrent=STATE.recurrent.contiguous()),
    "convolution's state must be contiguous": changed("state", conv=spread(STATE.conv)),
    "records_keys must be torch.float32 and contiguous": changed(
        "records", keys=spread(RECORDS.keys)
    ),
}


def commits(commit, state, records, rows):
    layer = mapped(records, lambda x: x[None])
    commit(state.conv[None], state.recurrent[None], layer, rows)


@pytest.mark.parametrize("commit", [gdn.commit, gdn.commit_block], ids=["exact", "block"])
@pytest.mark.parametrize("message", [*COMMIT, *WHOLE])
def test_commit_refuses_what_it_does_not_take(commit, message):
    given = WHOLE[message] if message in WHOLE else replace(BASE, **COMMIT[message])
    with pytest.raises(ShapeError) as refusal:
        commits(commit, given.state, given.records, given.rows)
    assert message in str(refusal.value)
