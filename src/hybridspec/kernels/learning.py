# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""All that a settled round teaches, in one launch of three programs of one warp.

Rate, acceptance, and time with the price of an expert: none reads what another writes. Each stands
beside what reads it (kernels/length.py, acceptance.py, clock.py, correction.py). Replaces some
hundred launches of the reference and its questions to the host, and moves under 4 KiB.

What a reader gets wrong: one warp is not a matter of speed (kernels/length.py).
"""

from operator import attrgetter

import triton
import triton.language as tl
from torch import Tensor, float32, int32, int64
from torch import bool as torch_bool
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.acceptance import check_acceptance, fit_acceptance
from hybridspec.kernels.clock import check_clock, seconds_taken
from hybridspec.kernels.correction import check_correction, fit_price
from hybridspec.kernels.launch import check_tensor, overlaps
from hybridspec.kernels.length import check_state, learn_rate
from hybridspec.kernels.reference import acceptance as fit
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.kernels.reference.acceptance import AcceptanceState
from hybridspec.kernels.reference.clock import CLOCK_MEMORY, LARGEST_RATIO, Clock
from hybridspec.kernels.reference.correction import (
    LARGEST_MISS,
    PRICE_MEMORY,
    PRIOR_SQUARES,
    Correction,
)
from hybridspec.kernels.reference.length import RATE_MEMORY, LengthState

PROGRAMS = 3
FITTED = (
    "slope", "intercepts", "residual", "served", "prior_slope", "prior_intercepts", "curve_slope",
    "curve_cross", "curve", "gap", "spread", "weight", "distrusted", "warm_up",
    "exploration.whole", "exploration.purse", "labels", "survivals", "judged",
    "exploration.reached", "exploration.trial",
)  # fmt: skip
TIMED = ("begun", "expected", "ratios", "weights", "taken")
PRICED = ("prior", "price", "products", "squares", "beyond")
"""what the launch takes of a record, in its order"""


@triton.jit
def learn_kernel(
    log_odds, chosen, rows, committed, is_done, length, settled, rate_tokens, rate_seconds, costs,
    slope, intercepts, residual, served, prior_slope, prior_intercepts, curve_slope, curve_cross,
    curve, gap, spread, weight, distrusted, warm_up, whole, purse, labels, survivals, judged,
    reached, trial, begun, expected, ratios, weights, taken, prior, price, products, squares,
    beyond,
    BLOCK: tl.constexpr, N: tl.constexpr, ADAPTS: tl.constexpr, IS_TIMED: tl.constexpr,
    CORRECTS: tl.constexpr, RATE: tl.constexpr, BINS: tl.constexpr, MEMORY: tl.constexpr,
    MEMORY_IF_OFF: tl.constexpr, PRIOR_SLOPE: tl.constexpr, PRIOR_INTERCEPT: tl.constexpr,
    ODDS: tl.constexpr, STEP: tl.constexpr, RESIDUAL_MEMORY: tl.constexpr,
    RESIDUAL_STEP: tl.constexpr, JUDGED: tl.constexpr, TRUSTED: tl.constexpr,
    RESUMED: tl.constexpr, LEAST: tl.constexpr, SHARE: tl.constexpr, CLOCK: tl.constexpr,
    RATIO: tl.constexpr, PRICE: tl.constexpr, SQUARES: tl.constexpr, MISS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """A program a part; those that are not asked for have nothing to do."""
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    part = tl.program_id(0)
    if part == 0:
        learn_rate(rows, committed, rate_tokens, rate_seconds, costs, RATE)
    if ADAPTS:  # noqa: SIM102  # a constant, and what is not one
        if part == 1:
            fit_acceptance(
                log_odds, chosen, rows, committed, is_done, length,
                slope, intercepts, residual, served, prior_slope, prior_intercepts, curve_slope,
                curve_cross, curve, gap, spread, weight, distrusted, warm_up, whole, purse, labels,
                survivals, judged, costs, reached, trial,
                BLOCK - 1, N, BINS, MEMORY, MEMORY_IF_OFF, PRIOR_SLOPE, PRIOR_INTERCEPT, ODDS,
                STEP, RESIDUAL_MEMORY, RESIDUAL_STEP, JUDGED, TRUSTED, RESUMED, LEAST, SHARE,
            )  # fmt: skip
    if IS_TIMED:  # noqa: SIM102
        if part == 2:
            seconds = seconds_taken(
                begun, settled, expected, ratios, weights, taken, rows, BLOCK, N, CLOCK, RATIO
            )  # fmt: skip
            if CORRECTS:
                fit_price(
                    rows, seconds, costs, prior, price, products, squares, beyond,
                    PRICE, SQUARES, MISS,
                )  # fmt: skip


def learn(
    log_odds: Tensor,
    chosen: Tensor,
    rows: Tensor,
    ledger: Ledger,
    state: LengthState,
    acceptance: AcceptanceState | None,
    clock: Clock | None,
    correction: Correction | None,
) -> None:
    """Contract of the reference. Raises ShapeError that names what does not fit."""
    block = state.costs.numel()
    _check(log_odds, chosen, rows, ledger, state)
    if acceptance is not None:
        check_acceptance(acceptance)
        check_tensor("intercepts", acceptance.intercepts, (block - 1,), float32)
    if clock is not None:
        check_clock(clock, block)
    if correction is not None:
        check_correction(correction)
    overlapping = overlaps(rows.device)
    learn_kernel[(PROGRAMS,)](
        log_odds, chosen, rows, ledger.committed, ledger.is_done, ledger.length, ledger.settled,
        state.tokens, state.seconds, state.costs, *_given(acceptance, FITTED, rows),
        *_given(clock, TIMED, rows), *_given(correction, PRICED, rows),
        BLOCK=block, N=MAX_ROWS, ADAPTS=acceptance is not None, IS_TIMED=clock is not None,
        CORRECTS=correction is not None, RATE=RATE_MEMORY, BINS=fit.BINS, MEMORY=fit.MEMORY,
        MEMORY_IF_OFF=fit.MEMORY_IF_OFF, PRIOR_SLOPE=fit.PRIOR_SLOPE,
        PRIOR_INTERCEPT=fit.PRIOR_INTERCEPT, ODDS=fit.LARGEST_ODDS, STEP=fit.LARGEST_STEP,
        RESIDUAL_MEMORY=fit.RESIDUAL_MEMORY, RESIDUAL_STEP=fit.RESIDUAL_STEP, JUDGED=fit.JUDGED,
        TRUSTED=fit.TRUSTED, RESUMED=fit.RESUMED, LEAST=fit.LEAST_JUDGED, SHARE=fit.EXPLORED_SHARE,
        CLOCK=CLOCK_MEMORY, RATIO=LARGEST_RATIO, PRICE=PRICE_MEMORY, SQUARES=PRIOR_SQUARES,
        MISS=LARGEST_MISS, OVERLAPS=overlapping, launch_pdl=overlapping, num_warps=1,
    )  # fmt: skip


def _check(
    log_odds: Tensor, chosen: Tensor, rows: Tensor, ledger: Ledger, state: LengthState
) -> None:
    check_state(state, state.costs.numel())
    check_tensor("log_odds", log_odds, (state.costs.numel() - 1,), float32)
    counts = {"chosen": chosen, "rows": rows}
    counts |= {name: getattr(ledger, name) for name in ("committed", "length")}
    for name, count in counts.items():
        check_tensor(name, count, (), int32)
    check_tensor("is_done", ledger.is_done, (), torch_bool)
    check_tensor("settled", ledger.settled, (), int64)


def _given(record: object, parts: tuple[str, ...], beside: Tensor) -> tuple[Tensor, ...]:
    """Arguments from a record; where there is none, something that is not touched."""
    return (beside,) * len(parts) if record is None else attrgetter(*parts)(record)
