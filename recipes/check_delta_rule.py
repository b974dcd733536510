# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Compare the chunked GPU kernels with the plain delta rule, values and gradients; needs a GPU."""

import torch
from target_forward import delta_rule_chunked, delta_rule_plain


def main() -> None:
    """Print the relative error (norm) of outputs, final state and every gradient."""
    generator = torch.Generator().manual_seed(0)
    size = (2, 192)
    inputs = [torch.randn(*size, heads, 32, generator=generator) for heads in (4, 4, 8)]
    inputs.append(-torch.rand(*size, 8, generator=generator) * 0.2)
    inputs.append(torch.rand(*size, 8, generator=generator))
    results = []
    for rule, dtype in ((delta_rule_plain, torch.float32), (delta_rule_chunked, torch.bfloat16)):
        leaves = [t.cuda().requires_grad_() for t in inputs]
        q, k, v, g, beta = leaves
        y, state = rule(q.to(dtype), k.to(dtype), v.to(dtype), g, beta)
        weight = torch.linspace(-1, 1, y.numel(), device="cuda").view_as(y)
        grads = torch.autograd.grad((y.float() * weight).sum(), leaves)
        results.append([y.detach(), state.detach(), *grads])
    names = ("y", "state", "dq", "dk", "dv", "dg", "dbeta")
    for name, want, got in zip(names, *results, strict=True):
        error = (want.float() - got.float()).norm() / want.float().norm()
        print(f"{name:6s} {error.item():.2e}")


if __name__ == "__main__":
    main()
