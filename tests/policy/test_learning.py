# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Hybrid over drafters that change: what it learns, what that costs, and when it drafts.

Rounds are simulated: drafts are right by chances that the policy does not know.
"""

from dataclasses import dataclass, field

import pytest
import torch

from hybridspec.core.records import Block
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.kernels.reference.acceptance import EXPLORED_SHARE, TRUSTED, AcceptanceState
from hybridspec.kernels.reference.exploration import EXPLORED_ROWS
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Hybrid

BLOCK = 8
PLAIN, FIRST, MORE = 1.0, 1.3, 0.15
"""seconds of a plain step, of a drafted round of one row, and of each row more"""
GOOD, BAD = 1.5, -3.0
CPU = torch.device("cpu")


@dataclass
class Run:
    """A request without end."""

    policy: Hybrid
    gen: torch.Generator
    context: int = 0
    seconds: float = 0.0
    drafted_seconds: float = 0.0
    rows: list[int] = field(default_factory=list)
    """of each round; 0: a plain step"""

    def go(self, rounds, *, intercept, slope=1.0):
        """Drafts are right with sigmoid(slope f + intercept). Returns the rows of these rounds."""
        begun = len(self.rows)
        for _ in range(rounds):
            if self.policy.wants_drafts(self.context, 999):
                self.drafted(intercept, slope)
            else:
                self.policy.see_plain(self.context)
                self.context += 1
                self.seconds += PLAIN
                self.rows.append(0)
        return self.rows[begun:]

    def drafted(self, intercept, slope):
        odds = torch.randn(BLOCK - 1, generator=self.gen) * 1.5
        chance = torch.sigmoid(slope * odds + intercept)
        right = int((torch.rand(BLOCK - 1, generator=self.gen) < chance).int().cumprod(0).sum())
        block = Block(tokens=torch.zeros(BLOCK, dtype=torch.int64), log_odds=odds)
        length = torch.tensor(self.context, dtype=torch.int32)
        ledger = Ledger.opened(torch.tensor(0), length=length, budget=999, slots=1)
        chosen, _ = self.policy.choose(block, ledger)
        rows = int(chosen)
        tokens = min(right + 1, rows)
        ledger.committed.fill_(tokens)
        ledger.length.add_(tokens)
        self.policy.learn(block, chosen, chosen, ledger)
        self.policy.see_drafted(self.context, rows=rows, tokens=tokens)
        self.context += tokens
        took = self.policy.latency.drafted_at(0, rows=rows)
        self.seconds += took
        self.drafted_seconds += took
        self.rows.append(rows)


def begun(loaded, seed=0, plain=PLAIN):
    learning = AcceptanceState.begun(1.0, (loaded,) * (BLOCK - 1), warm_up=0, device=CPU)
    seconds = [FIRST + MORE * n for n in range(BLOCK)]
    policy = Hybrid(
        acceptance=Acceptance(slope=1.0, intercepts=(loaded,) * (BLOCK - 1)),
        latency=Latency.measured({0: seconds}, plain={0: plain}),
        learning=learning,
    )
    return Run(policy, torch.Generator().manual_seed(seed)), learning


def mean(rows):
    return sum(rows) / len(rows)


@pytest.mark.parametrize("seed", range(3))
def test_a_drafter_that_turns_bad_is_followed_within_200_rounds(seed):
    run, _ = begun(GOOD, seed)
    before = run.go(400, intercept=GOOD)
    assert mean(before) > 4
    run.go(200, intercept=BAD)
    after = run.go(400, intercept=BAD)
    assert sum(rows > 0 for rows in after) <= 8, "drafting rests but for probes"


@pytest.mark.parametrize("seed", range(3))
def test_where_drafting_still_pays_a_worse_drafter_is_read_less_far(seed):
    """Plain steps are so dear that drafting never rests: only the length can follow."""
    run, learning = begun(GOOD, seed, plain=9.0)
    before = run.go(400, intercept=GOOD)
    run.go(200, intercept=BAD)
    after = run.go(200, intercept=BAD)
    assert 0 not in after
    assert mean(after) < mean(before) / 2
    assert int(learning.distrusted) == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_drafter_that_turns_good_while_drafting_rests_is_found_within_3000_rounds(seed):
    run, learning = begun(BAD, seed)
    rested = run.go(600, intercept=BAD)
    assert sum(rows > 0 for rows in rested[100:]) <= 8
    run.go(3000, intercept=GOOD)
    found = run.go(200, intercept=GOOD)
    assert 0 not in found
    assert mean(found) > 4
    assert torch.sigmoid(learning.served[0]) > torch.sigmoid(torch.tensor(GOOD)) - 0.15


@pytest.mark.parametrize("seed", range(3))
def test_chances_that_are_off_lead_to_whole_blocks_and_back(seed):
    run, learning = begun(-0.5, seed, plain=9.0)
    kinds = []
    for _ in range(400):
        (rows,) = run.go(1, intercept=3.0)
        kinds.append(int(learning.distrusted))
        if len(kinds) > 1 and kinds[-2]:
            assert rows == BLOCK
    assert sum(kinds) >= 10
    assert not any(kinds[-50:])
    gap = (learning.gap.abs() - learning.spread.sqrt()).clamp_min(0).sum()
    assert float(gap / learning.weight) < TRUSTED


@pytest.mark.parametrize(("seed", "intercept"), [(0, 0.0), (1, -1.0), (2, 0.7)])
def test_exploration_spends_at_most_half_a_percent_of_the_time(seed, intercept):
    run, learning = begun(intercept, seed, plain=9.0)
    run.go(1500, intercept=intercept)
    exploration = learning.exploration
    assert int(exploration.explored) > 5
    spent = float(exploration.spent)
    assert 0.5 * EXPLORED_SHARE * run.seconds < spent <= EXPLORED_SHARE * run.drafted_seconds
    assert spent <= int(exploration.explored) * EXPLORED_ROWS * MORE * 1.001


def test_loaded_coefficients_that_fit_stay_as_good_as_they_are():
    """Learning costs a good table little: the tokens a second of one that knows all beforehand."""
    paces = []
    for learns in (True, False):
        run, _ = begun(0.7, seed=5, plain=9.0)
        if not learns:
            run.policy = Hybrid(acceptance=run.policy.acceptance, latency=run.policy.latency)
        run.go(3000, intercept=0.7)
        paces.append(run.context / run.seconds)
    assert paces[0] > 0.985 * paces[1]
