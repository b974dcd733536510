# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridspec.core.errors import TableError
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.latency import Latency
from hybridspec.policy.routing import RoutingCosts
from hybridspec.policy.tables import check_key, read_table, write_table

KEY = {"target": "aa", "drafter": "bb"}
HUGE = 10**400
"""a whole number that JSON may hold and no float can"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table.json"


def write(path, **table):
    path.write_text(json.dumps({"key": KEY} | table), encoding="utf-8")


def test_a_pair_without_coefficients_trusts_the_drafter():
    own_word = Acceptance(slope=1.0, intercepts=(0.0, 0.0), is_informed=False)
    assert Acceptance.uninformed(2) == own_word


def test_acceptance_is_read_as_it_was_written(path):
    write(path, slope=0.75, intercepts=[0.5, -1, 2])
    assert Acceptance.load(path, key=KEY, drafts=3) == Acceptance(
        slope=0.75, intercepts=(0.5, -1.0, 2.0)
    )


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"slope": -0.1, "intercepts": [0, 0, 0]}, "-0.1"),
        ({"slope": True, "intercepts": [0, 0, 0]}, "True"),
        ({"slope": float("nan"), "intercepts": [0, 0, 0]}, "nan"),
        ({"slope": HUGE, "intercepts": [0, 0, 0]}, str(HUGE)[:9]),
        ({"slope": 1e39, "intercepts": [0, 0, 0]}, "1e+39"),
        ({"slope": 1, "intercepts": [0, -1e300, 0]}, "-1e+300"),
        ({"intercepts": [0, 0, 0]}, "None"),
        ({"slope": 1, "intercepts": [0, 0]}, "2 intercepts, the drafter drafts 3"),
        ({"slope": 1, "intercepts": [0, "0", 0]}, "'0'"),
        ({"slope": 1, "intercepts": [0, float("inf"), 0]}, "inf"),
        ({"slope": 1, "intercepts": {}}, "{}"),
        ({"slope": 1}, "None"),
    ],
)
def test_a_bad_acceptance_table_is_named(path, table, named):
    write(path, **table)
    with pytest.raises(TableError, match=re.escape(named)) as caught:
        Acceptance.load(path, key=KEY, drafts=3)
    assert str(path) in str(caught.value)


def test_latency_is_read_as_it_was_written(path):
    latency = Latency.measured({0: [1.0, 2.0], 512: [1.5, 2.5]}, plain={0: 0.8, 512: 1.2})
    latency.save(path, key=KEY)
    assert Latency.load(path, key=KEY, rows=2) == latency
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_measured_table_never_falls():
    latency = Latency.measured(
        {64: [3.0, 2.0, 4.0, 3.5], 0: [1.0, 1.0, 0.5, 2.0]}, plain={64: 2.0, 0: 1.0}
    )
    assert list(latency.seconds) == list(latency.plain) == [0, 64]
    assert latency.seconds[0] == pytest.approx((2.5 / 3, 2.5 / 3, 2.5 / 3, 2.0))
    assert latency.seconds[64] == pytest.approx((2.5, 2.5, 3.75, 3.75))


@given(st.lists(st.floats(0.001, 9), min_size=1, max_size=16))
def test_noise_in_a_measured_table_is_pooled_not_hoarded(row):
    """Never falling, of the same sum, and what rises already stays as it is."""
    (found,) = Latency.measured({0: row}, plain={0: 1.0}).seconds.values()
    assert all(a <= b or a == pytest.approx(b) for a, b in pairwise(found))
    assert sum(found) == pytest.approx(sum(row))
    assert Latency.measured({0: sorted(row)}, plain={0: 1.0}).seconds[0] == pytest.approx(
        sorted(row)
    )


def test_prices_of_a_row_are_kept_with_the_table(path):
    prices = RoutingCosts(seconds_per_row=1e-4, seconds_per_expert=2e-6, layers=40, correlation=0.3)
    latency = Latency.measured({0: [1.0, 2.0]}, plain={0: 0.8}, routing=prices)
    latency.save(path, key=KEY)
    assert Latency.load(path, key=KEY, rows=2) == latency


@pytest.mark.parametrize(
    ("prices", "named"),
    [
        ({"seconds_per_row": 1}, "seconds_per_expert"),
        ([1, 2], "[1, 2]"),
        ({"seconds_per_row": -1, "seconds_per_expert": 0, "layers": 1, "correlation": 0}, "-1"),
        ({"seconds_per_row": 1, "seconds_per_expert": 0, "layers": 1, "correlation": 2}, "2"),
    ],
)
def test_bad_prices_are_named(path, prices, named):
    write(path, seconds={"0": [1, 2]}, plain={"0": 1}, routing=prices)
    with pytest.raises(TableError, match=re.escape(named)):
        Latency.load(path, key=KEY, rows=2)


@pytest.mark.parametrize(
    ("context", "want"),
    [(0, [1, 2]), (100, [1, 2]), (150, [2, 4]), (200, [3, 6]), (300, [4, 7]), (999, [5, 8])],
)
def test_time_is_linear_between_contexts_and_flat_outside(context, want):
    rows = {100: [1, 2], 200: [3, 6], 400: [5, 8]}
    latency = Latency.measured(rows, plain={c: row[0] for c, row in rows.items()})
    assert [latency.drafted_at(context, rows=rows) for rows in (1, 2)] == want
    assert latency.plain_at(context) == want[0]
    assert latency.block_size == 2


@pytest.mark.parametrize(
    ("seconds", "named"),
    [
        ({"0": [1.0, -2.0]}, "-2.0"),
        ({"0": [0, 1]}, "from 1e-09"),
        ({"0": [1, 1e39]}, "1e+39"),
        ({"0": [1.0, 2.0, 3.0]}, "3 timings at context 0, the block has 2 rows"),
        ({"0": [1.0, 2.0], "9": [1.0]}, "1 timings at context 9"),
        ({"0": [1.0, HUGE]}, str(HUGE)[:9]),
        ({"0": 1.0}, "1.0"),
        ({"-4": [1.0, 2.0]}, "'seconds'"),
        ({"\u00b2": [1.0, 2.0]}, "'seconds'"),
        ({}, "'seconds'"),
        ([[1.0, 2.0]], "'seconds'"),
        (None, "'seconds'"),
    ],
)
def test_a_bad_latency_table_is_named(path, seconds, named):
    write(path, seconds=seconds, plain={"0": 1.0})
    with pytest.raises(TableError, match=re.escape(named)) as caught:
        Latency.load(path, key=KEY, rows=2)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("plain", [None, {}, 1.0, {"9": 1.0}, {"0": 1.0, "9": 1.0}, {"0": -1.0}])
def test_a_latency_table_tells_what_a_plain_step_takes(path, plain):
    write(path, seconds={"0": [1.0, 2.0]}, plain=plain)
    with pytest.raises(TableError, match=r"'plain' must map the contexts|-1\.0") as caught:
        Latency.load(path, key=KEY, rows=2)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("other", [{"target": "cc"}, {"drafter": "bb"}, {}])
def test_a_table_of_another_key_is_named(path, other):
    write_table(path, {"key": other, "seconds": {"0": [1.0]}})
    with pytest.raises(TableError, match=f"another target: {other.get('target')!r}, .* 'aa'"):
        Latency.load(path, key=KEY, rows=1)
    check_key(path, read_table(path), other)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"key": {},\n}', "line 2, column 1"),
        ("[]", "JSON object"),
        ("{}", "'key'"),
        ('{"key": 1}', "'key'"),
        ("", "line 1"),
    ],
)
def test_a_damaged_table_is_named_with_its_place(path, content, named):
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TableError, match=re.escape(named)):
        read_table(path)


def test_a_missing_or_unreadable_table_is_named(path):
    with pytest.raises(TableError, match="does not exist"):
        read_table(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TableError, match="cannot be read"):
        read_table(path)
    with pytest.raises(TableError, match="cannot be read"):
        read_table(path.parent)


def test_several_threads_may_write_one_table_and_a_reader_never_sees_half(path):
    def write_often(slope):
        for _ in range(60):
            write_table(path, {"key": KEY, "slope": slope, "intercepts": [slope] * 15})

    write_table(path, {"key": KEY, "slope": 0.0, "intercepts": [0.0] * 15})
    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write_often, float(slope)) for slope in range(3)]
        while not all(writer.done() for writer in writers):
            found = Acceptance.load(path, key=KEY, drafts=15)
            assert set(found.intercepts) == {found.slope}
        for writer in writers:
            writer.result()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_cannot_be_written_leaves_nothing_behind(path):
    path.mkdir()
    with pytest.raises(OSError):  # noqa: PT011  # which one depends on the system
        write_table(path, {"key": KEY})
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_damaged_file_is_not_repeated_whole(path):
    write(path, slope=["x" * 10**6], intercepts=[0])
    with pytest.raises(TableError) as of_value:
        Acceptance.load(path, key=KEY, drafts=1)
    path.write_text(json.dumps({"key": {"target": "x" * 10**6}}), encoding="utf-8")
    with pytest.raises(TableError) as of_key:
        check_key(path, read_table(path), KEY)
    assert max(len(str(caught.value)) for caught in (of_value, of_key)) < 500
