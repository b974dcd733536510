# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a trace of held-out text says of acceptance, experts and policies, as JSON.

    OMP_NUM_THREADS=1 python benchmarks/trace_heldout.py heldout.safetensors
    OMP_NUM_THREADS=1 python benchmarks/policy_facts.py heldout.safetensors

writes results/policy_facts.json and results/policy_replay.json; several traces of one pair count as
one, so that a long recording may be split (`--skip`). Text that loops is in no figure.
"""

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridspec.bench.circumstances import observe
from hybridspec.bench.ground import Costs, Ground
from hybridspec.bench.loops import loop_start
from hybridspec.bench.replay import compare, new_experts, slope_to_others
from hybridspec.bench.trace import Trace
from hybridspec.models.embedded import DRAFTER
from hybridspec.policy.acceptance import Acceptance

RESULTS = Path(__file__).parent / "results"
BINS = 20


def without_loops(trace: Trace) -> Trace:
    """The texts up to where they loop; texts that keep no position are left out."""
    keep, classes, begins, prompts, budgets = [], [], [0], [], []
    for text, begin, end in trace.texts():
        start = loop_start(trace.tokens[begin:end].tolist())
        stop = end if start is None else begin + start
        if stop == begin:
            continue
        keep.append(torch.arange(begin, stop))
        classes.append(trace.classes[text])
        begins.append(begins[-1] + stop - begin)
        prompts.append(int(trace.prompts[text]))
        budgets.append(int(trace.budgets[text]))
    index = torch.cat(keep)
    arrays = ("tokens", "accepted", "log_odds", "experts", "seconds")
    return replace(
        trace,
        classes=tuple(classes),
        begins=torch.tensor(begins),
        prompts=torch.tensor(prompts),
        budgets=torch.tensor(budgets),
        **{name: getattr(trace, name)[index] for name in arrays},
    )


def joined(traces: list[Trace]) -> Trace:
    """Traces of one pair, in their order."""
    first = traces[0]
    for trace in traces[1:]:
        if trace.key != first.key:
            raise SystemExit(f"traces of two keys: {dict(first.key)} and {dict(trace.key)}")
    lengths = torch.cat([trace.begins.diff() for trace in traces])
    arrays = ("prompts", "budgets", "tokens", "accepted", "log_odds", "experts", "seconds")
    return replace(
        first,
        classes=tuple(name for trace in traces for name in trace.classes),
        begins=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        **{name: torch.cat([getattr(trace, name) for trace in traces]) for name in arrays},
    )


def reached(accepted: Tensor, drafts: int) -> tuple[Tensor, Tensor]:
    """[P, G] bool: drafts before which all were right, and those that were right as well."""
    place = torch.arange(drafts)
    return accepted[:, None] >= place, accepted[:, None] > place


def calibration_error(chance: Tensor, right: Tensor) -> float:
    """Mean distance of predicted and observed share over BINS bins of equal count."""
    order = chance.argsort(stable=True)
    parts = zip(chance[order].chunk(BINS), right[order].double().chunk(BINS), strict=True)
    return sum(abs(float(p.mean() - r.mean())) * len(p) for p, r in parts) / len(chance)


def auc(score: Tensor, right: Tensor) -> float | None:
    """Chance that a right draft scores above a wrong one, ties half; None without both."""
    good, bad = score[right].sort().values, score[~right].sort().values
    if not len(good) or not len(bad):
        return None
    below = torch.searchsorted(bad, good).double()
    upto = torch.searchsorted(bad, good, right=True).double()
    return float(((below + upto) / 2).mean() / len(bad))


def acceptance_facts(trace: Trace, table: Acceptance) -> dict[str, Any]:
    """Survival, calibration and AUC; every position is an anchor once."""
    G = trace.block_size - 1
    labelled, right = reached(trace.accepted, G)
    logit = table.slope * trace.log_odds.double() + torch.tensor(table.intercepts).double()
    chance = logit.sigmoid()
    columns = range(G)
    return {
        "positions": len(trace.tokens),
        "texts": len(trace.classes),
        "survival": [round(float(x), 4) for x in right.double().mean(0)],
        "calibration_error": round(calibration_error(chance[labelled], right[labelled]), 4),
        "calibration_error_own": round(
            calibration_error(trace.log_odds[labelled].double().sigmoid(), right[labelled]), 4
        ),
        "mean_predicted": round(float(chance[labelled].mean()), 4),
        "mean_observed": round(float(right[labelled].double().mean()), 4),
        "auc": [_auc_at(trace.log_odds, labelled, right, j) for j in columns],
        "labels": [int(labelled[:, j].sum()) for j in columns],
    }


def _auc_at(score: Tensor, labelled: Tensor, right: Tensor, j: int) -> float | None:
    own = labelled[:, j]
    value = auc(score[own, j], right[own, j])
    return None if value is None else round(value, 4)


def expert_facts(trace: Trace) -> dict[str, Any]:
    """Distinct experts by rows and layer, and what the first router says of the others."""
    layers = trace.experts.shape[2]
    first = new_experts(trace.unions(0))
    others = new_experts(trace.unions()) - first
    total = first + others
    return {
        "layers": layers,
        "experts_per_row": trace.experts.shape[3],
        "distinct": [
            [round(float(x), 2) for x in trace.unions(layer).double().mean(0)]
            for layer in range(layers)
        ],
        "new_mean": [round(float(x), 2) for x in total.mean(0)],
        "new_sd": [round(float(x), 2) for x in total.std(0)],
        "correlation_with_total": [_correlation(first[:, j], total[:, j]) for j in _all(total)],
        "correlation_with_others": [_correlation(first[:, j], others[:, j]) for j in _all(total)],
        "slope_to_others": round(slope_to_others(trace), 4),
    }


def _all(values: Tensor) -> range:
    return range(values.shape[1])


def _correlation(one: Tensor, other: Tensor) -> float:
    return round(float(torch.corrcoef(torch.stack((one, other)))[0, 1]), 4)


def replay_facts(trace: Trace, table: Acceptance) -> dict[str, Any]:
    """Every policy over all texts and over each class, by the cost model of the 35B's bytes."""
    found: dict[str, Any] = {}
    for name in ("all", *dict.fromkeys(trace.classes)):
        part = trace if name == "all" else of_class(trace, name)
        ground = Ground(trace=part, acceptance=table, costs=Costs.of_35b(trace))
        runs = compare(ground)
        best = (runs[-2].table_seconds, runs[-1].model_seconds)
        found[name] = [run.to_json(best) for run in runs]
    return found


def of_class(trace: Trace, name: str) -> Trace:
    """The texts of one class."""
    keep = [own for own in trace.texts() if trace.classes[own[0]] == name]
    index = torch.cat([torch.arange(begin, end) for _, begin, end in keep])
    texts = torch.tensor([text for text, _, _ in keep])
    lengths = torch.tensor([0] + [end - begin for _, begin, end in keep])
    arrays = ("tokens", "accepted", "log_odds", "experts", "seconds")
    return replace(
        trace,
        classes=(name,) * len(keep),
        begins=lengths.cumsum(0),
        prompts=trace.prompts[texts],
        budgets=trace.budgets[texts],
        **{array: getattr(trace, array)[index] for array in arrays},
    )


def main() -> int:
    """Read the trace, write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, nargs="+")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    whole = joined([Trace.load(path) for path in asked.traces])
    trace = without_loops(whole)
    table = Acceptance.load(
        DRAFTER / "acceptance.json",
        key={name: trace.key[name] for name in ("target", "drafter")},
        drafts=trace.block_size - 1,
    )
    names = [path.name for path in asked.traces]
    command = shlex.join(["python", "benchmarks/policy_facts.py", *names])
    told = {
        **observe(torch.device("cpu"), command).to_json(),
        "trace_key": dict(trace.key),
        "recorded_positions": len(whole.tokens),
        "positions": len(trace.tokens),
        "texts": len(trace.classes),
        "seconds_per_position": [round(float(x), 5) for x in whole.seconds.median(0).values],
    }
    classes = dict.fromkeys(trace.classes)
    facts = {
        "all": acceptance_facts(trace, table),
        **{name: acceptance_facts(of_class(trace, name), table) for name in classes},
    }
    write("policy_facts", {**told, "acceptance": facts, "experts": expert_facts(trace)})
    write("policy_replay", {**told, "policies": replay_facts(trace, table)})
    return 0


def write(name: str, values: dict[str, Any]) -> None:
    """One result file."""
    (RESULTS / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
