# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The same prompts through each policy, one after the other, so that drift of the machine hits all.

The policies take turns in an order that is drawn anew for every prompt: rotated, each would always
follow the same other one, and the same policy measured twice differed by 3 %. Plain decoding is
measured in exact and in fast mode whatever is asked for: a slow plain would flatter every other
figure.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridspec.bench.circumstances import observe
from hybridspec.bench.loops import loop_start
from hybridspec.bench.options import Arm, DecodeOptions, read_prompts
from hybridspec.bench.report import ArmReport, DecodeReport, Report, Spread
from hybridspec.core import ending
from hybridspec.core.errors import OptionError, PromptError
from hybridspec.core.options import PolicyName, SamplingParams
from hybridspec.core.records import Chunk, Stats
from hybridspec.engine.llm import LLM
from hybridspec.models.embedded import demo_prompts

PLAIN_EXACT = Arm(policy="plain", mode="exact")
PLAIN_FAST = Arm(policy="plain", mode="fast")
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One prompt decoded once."""

    token_ids: tuple[int, ...]
    counted: Stats
    """statistics up to the last round that ends before the text loops"""


Runs = dict[Arm, list[list[Run]]]
"""runs by arm, repeat and prompt"""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while decoding."""

    def __init__(self, sentence: str, report: Report | None) -> None:
        super().__init__(sentence)
        self.report = report
        """of the repeats that are complete; None if none is"""


def show(measure: Callable[[], Report], *, is_json: bool) -> int:
    """Print the report, as far as it came before Ctrl-C; returns the exit code."""
    code = 0
    try:
        report = measure()
    except KeyboardInterrupt as interrupt:
        ending.begin()
        code = ending.INTERRUPTED
        report = interrupt.report if isinstance(interrupt, Interrupted) else None
        ending.say(str(interrupt) or "interrupted before the first text")
    if report is not None:
        print(json.dumps(report.to_json()) if is_json else report.table().rstrip())
    return code


def run_decode(
    options: DecodeOptions,
    *,
    command: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> DecodeReport:
    """Measure what `options` ask for; `progress` hears how many texts of how many are done.

    Raises Interrupted at Ctrl-C, with the report of the repeats that are complete, and ignores
    further ones.
    """
    prompts = read_prompts(options.prompts) if options.prompts else demo_prompts()
    engines = _load(options)
    _check(next(iter(engines.values())), prompts, options.prompts)
    _warm_up(engines, prompts[0])
    runs: Runs = {arm: [[] for _ in range(options.repeats)] for arm in engines}
    try:
        _measure(runs, engines, prompts, options, progress)
    except KeyboardInterrupt:
        ending.begin()
        decoded = sum(len(repeat) for own in runs.values() for repeat in own)
        texts = len(engines) * options.repeats * len(prompts)
        whole = min(sum(len(repeat) == len(prompts) for repeat in own) for own in runs.values())
        runs = {arm: own[:whole] for arm, own in runs.items()}
        raise Interrupted(
            f"interrupted after {decoded} of {texts} texts",
            _summary(options, engines, runs, command) if whole else None,
        ) from None
    return _summary(options, engines, runs, command)


def _summary(
    options: DecodeOptions, engines: dict[Arm, LLM], runs: Runs, command: str
) -> DecodeReport:
    llm = next(iter(engines.values()))
    is_drafting = any(arm.policy != "plain" for arm in engines)
    block_size = llm.block_size if is_drafting else None
    plain = runs[Arm(policy="plain", mode=options.drafted_mode)]
    return DecodeReport(
        arms=tuple(_report(arm, runs, block_size) for arm in runs),
        mode=options.drafted_mode,
        block_size=block_size,
        prompts=len(plain[0]),
        looping=sum(loop_start(run.token_ids) is not None for run in plain[0]),
        max_new_tokens=options.max_new_tokens,
        repeats=len(plain),
        latency=_latency(engines),
        acceptance=_acceptance(engines),
        circumstances=observe(llm.device, command),
    )


def _load(options: DecodeOptions) -> dict[Arm, LLM]:
    """One engine an arm, all over the same weights; plain comes first, in both modes."""
    drafted = [arm for arm in options.arms if arm.policy != "plain"]
    base = LLM(
        options.model,
        draft_model=options.draft_model,
        policy=_strongest(options.arms),
        mode=options.drafted_mode,
        device=options.device,
        acceptance=options.acceptance,
        latency=options.latency,
        max_context=options.max_new_tokens,
    )
    check_names(drafted, base.block_size, options)
    return {
        arm: base.using(
            policy=arm.policy, length=arm.length, correction=arm.correction, mode=arm.mode
        )
        for arm in (PLAIN_EXACT, PLAIN_FAST, *drafted)
    }


def check_names(arms: Sequence[Arm], block_size: int, options: DecodeOptions) -> None:
    """Raise OptionError where fixed and fixed:N are the same."""
    names = sorted(name_of(arm, block_size) for arm in arms)
    if len(set(names)) < len(names):
        raise OptionError(f"policies {options.named_policies!r} name one policy twice: {names}.")


def _strongest(arms: Sequence[Arm]) -> PolicyName:
    """What the weights are loaded for: plain alone needs no drafter, fixed no tables."""
    policies = {arm.policy for arm in arms}
    return "hybrid" if "hybrid" in policies else "fixed" if "fixed" in policies else "plain"


def _latency(engines: dict[Arm, LLM]) -> dict[str, object] | None:
    tables = [llm.latency for arm, llm in engines.items() if arm.policy == "hybrid"]
    return tables[0].to_json() if tables and tables[0] is not None else None


def _acceptance(engines: dict[Arm, LLM]) -> dict[str, object] | None:
    reports = [llm.acceptance_report() for arm, llm in engines.items() if arm.policy == "hybrid"]
    return reports[0].to_json() if reports and reports[0] is not None else None


def _check(llm: LLM, prompts: Sequence[str], file: Path | None) -> None:
    """Raise PromptError that names the line, before the work on those above it is done."""
    for number, prompt in enumerate(prompts, 1):
        try:
            llm.check(prompt)
        except PromptError as error:
            place = file or "the prompts that ship"
            raise PromptError(f"{place}, line {number}: {error}") from None


def _warm_up(engines: dict[Arm, LLM], prompt: str) -> None:
    for llm in engines.values():
        llm.generate(prompt, SamplingParams(max_new_tokens=WARM_UP_TOKENS))


def _measure(
    runs: Runs,
    engines: dict[Arm, LLM],
    prompts: Sequence[str],
    options: DecodeOptions,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Fill `runs`, which hold what is done whenever Ctrl-C comes."""
    params = SamplingParams(max_new_tokens=options.max_new_tokens)
    order, dice = list(engines), random.Random(0)
    total = options.repeats * len(prompts) * len(order)
    done = 0
    for repeat in range(options.repeats):
        for prompt in prompts:
            dice.shuffle(order)
            for arm in order:
                runs[arm][repeat].append(_decode(engines[arm], prompt, params))
                done += 1
                if progress is not None:
                    progress(done, total)


def _decode(llm: LLM, prompt: str, params: SamplingParams) -> Run:
    return counted_run(list(llm.stream(prompt, params)))


def counted_run(chunks: Sequence[Chunk]) -> Run:
    """A finished stream; what it wrote once it loops is kept, but counts in no figure."""
    token_ids = tuple(token for chunk in chunks for token in chunk.token_ids)
    start = loop_start(token_ids)
    counted = [c.stats for c in chunks if start is None or c.stats.tokens <= start]
    return Run(token_ids=token_ids, counted=counted[-1])


def _report(arm: Arm, runs: Runs, block_size: int | None) -> ArmReport:
    own = runs[arm]
    whole = [
        other for other in runs if other.policy == "fixed" and other.length in (None, block_size)
    ]
    return ArmReport(
        name=name_of(arm, block_size),
        mode=arm.mode,
        tokens_per_second=Spread.of(total(repeat).tokens_per_second for repeat in own),
        ms_per_round=Spread.of(_ms_per_round(total(repeat)) for repeat in own),
        over_plain_exact=_speed_up(own, runs[PLAIN_EXACT]),
        over_plain_fast=_speed_up(own, runs[PLAIN_FAST]),
        over_fixed=_speed_up(own, runs[whole[0]]) if whole else None,
        tokens_per_round=total(own[0]).tokens_per_round,
        mean_length=total(own[0]).mean_length,
        lengths=total(own[0]).lengths,
        rounds_drafted=total(own[0]).rounds_drafted,
        identical=_identical(own, runs[Arm(policy="plain", mode=arm.mode)]),
    )


def name_of(arm: Arm, block_size: int | None) -> str:
    """As tables show it."""
    name = arm.policy
    if arm.policy == "fixed":
        name = f"fixed:{arm.length or block_size}"
    if arm.correction is not None:
        name = f"{arm.policy}:{arm.correction}"
    return f"{name} fast" if arm.mode == "fast" else name


def total(runs: Sequence[Run]) -> Stats:
    """What counts of one repeat, as if it were one text: one token came from a prompt's pass."""
    counted = [run.counted for run in runs]
    lengths = sum((Counter(stats.lengths) for stats in counted), Counter[int]())
    return Stats(
        rounds=sum(stats.rounds for stats in counted),
        rounds_drafted=sum(stats.rounds_drafted for stats in counted),
        tokens=1 + sum(stats.tokens - 1 for stats in counted),
        rows_read=sum(stats.rows_read for stats in counted),
        drafts_accepted=sum(stats.drafts_accepted for stats in counted),
        lengths=dict(sorted(lengths.items())),
        seconds=sum(stats.seconds for stats in counted),
    )


def _ms_per_round(stats: Stats) -> float:
    return 1e3 * stats.seconds / stats.rounds if stats.rounds else 0.0


def _speed_up(own: list[list[Run]], other: list[list[Run]]) -> Spread:
    """Ratios of tokens a second, each within one repeat."""
    pairs = [(total(ours), total(theirs)) for ours, theirs in zip(own, other, strict=True)]
    return Spread.of(
        ours.tokens_per_second / theirs.tokens_per_second if theirs.seconds else 0.0
        for ours, theirs in pairs
    )


def _identical(own: list[list[Run]], plain: list[list[Run]]) -> int:
    """Prompts whose ids equal plain's in every repeat."""
    return sum(
        len({run.token_ids for run in (*ours, *theirs)}) == 1
        for ours, theirs in zip(zip(*own, strict=True), zip(*plain, strict=True), strict=True)
    )
