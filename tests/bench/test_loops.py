# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from hypothesis import given
from hypothesis import strategies as st

from hybridspec.bench.loops import LONGEST_PERIOD, WINDOW, loop_start


def by_definition(token_ids):
    for index in range(WINDOW - 1, len(token_ids)):
        window = token_ids[index - WINDOW + 1 : index + 1]
        for period in range(1, LONGEST_PERIOD + 1):
            if window[period:] == window[:-period]:
                return index
    return None


@given(
    head=st.lists(st.integers(0, 2), max_size=60),
    cycle=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    times=st.integers(0, 60),
    tail=st.lists(st.integers(0, 2), max_size=5),
)
def test_a_loop_starts_where_its_definition_says(head, cycle, times, tail):
    token_ids = head + (cycle * times)[:150] + tail
    assert loop_start(token_ids) == by_definition(token_ids)


def test_the_first_token_of_a_loop_is_the_one_that_fills_the_window():
    assert loop_start([7] * 47) is None
    assert loop_start([7] * 48) == 47
    assert loop_start([1, 2] + [7] * 60) == 49


def test_a_period_of_24_loops_and_one_of_25_does_not():
    assert loop_start(list(range(24)) * 2) == 47
    assert loop_start(list(range(25)) * 8) is None
