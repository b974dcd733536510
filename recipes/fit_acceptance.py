# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Fit the estimate p_j = sigmoid(w f_j + b_j) to simulated rounds; write acceptance.json.

f_j is the log-odds of draft j against all other tokens; the slope is shared, the intercept belongs
to the position.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from hybridspec.models.fingerprint import fingerprint

RIDGE = 1e-3
STEPS, BINS = 50, 15


def fit(
    log_odds: Tensor, position: Tensor, accepted: Tensor, positions: int
) -> tuple[float, Tensor]:
    """(slope w >= 0, intercepts [positions]) by Newton's method on the ridge-penalised likelihood.

    log_odds [n], position [n] in 1..positions, accepted [n] 0 or 1. The ridge pulls w to 1 and the
    intercepts to 0: with no observation the drafter's own probability stands.
    """
    f, y = log_odds.double(), accepted.double()
    place = position.long() - 1
    prior = torch.zeros(positions + 1, dtype=torch.double)
    prior[0] = 1.0
    theta = prior.clone()
    for _ in range(STEPS):
        p = torch.sigmoid(theta[0] * f + theta[1:][place])
        rest, weight = y - p, p * (1 - p)
        gradient = torch.zeros_like(theta)
        gradient[0] = (rest * f).sum()
        gradient[1:].index_add_(0, place, rest)
        gradient -= RIDGE * (theta - prior)
        hessian = RIDGE * torch.eye(positions + 1, dtype=torch.double)
        hessian[0, 0] += (weight * f * f).sum()
        cross = torch.zeros(positions, dtype=torch.double).index_add_(0, place, weight * f)
        hessian[0, 1:] += cross
        hessian[1:, 0] += cross
        hessian.diagonal()[1:].index_add_(0, place, weight)
        change = torch.linalg.solve(hessian, gradient)
        theta = theta + change.clamp(-1, 1)
        theta[0] = theta[0].clamp(min=0)
        if change.abs().max() < 1e-10:
            break
    return float(theta[0]), theta[1:]


def calibration_error(p: Tensor, accepted: Tensor) -> float:
    """Expected calibration error over BINS equal bins of p."""
    place = (p * BINS).long().clamp(max=BINS - 1)
    gap = torch.zeros(BINS, dtype=torch.double).index_add_(0, place, p - accepted.double())
    return float(gap.abs().sum() / len(p))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=Path, required=True, help="file of train_drafter.py")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument(
        "--drafter", type=Path, required=True, help="acceptance.json is written here"
    )
    args = parser.parse_args()
    data = load_file(args.rounds)
    block = json.loads((args.drafter / "config.json").read_text())["block_size"]
    slope, intercepts = fit(data["log_odds"], data["position"], data["accepted"], block - 1)
    odds = slope * data["log_odds"].double() + intercepts[data["position"].long() - 1]
    result = {
        "key": {"target": fingerprint(args.target), "drafter": fingerprint(args.drafter)},
        "slope": round(slope, 6),
        "intercepts": [round(b, 6) for b in intercepts.tolist()],
        "observations": len(odds),
        "expected_calibration_error": round(
            calibration_error(torch.sigmoid(odds), data["accepted"]), 6
        ),
    }
    (args.drafter / "acceptance.json").write_text(json.dumps(result, indent=1) + "\n")
    print(result)


if __name__ == "__main__":
    main()
