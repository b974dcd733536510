# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Take the few files that benchmarks/gdn_verify.py compares with out of the peers' wheels.

    pip download --no-deps --only-binary :all: --python-version 3.12 sglang==0.5.23
    pip download --no-deps --only-binary :all: --python-version 3.12 vllm==0.33.0
    python benchmarks/peers/fetch_gdn.py sglang-0.5.23-*.whl vllm-0.33.0-*.whl

Under 2 MB come out: single Python files at their paths inside the wheel, and of vLLM's library the
one sm_90 object that holds the fused decode kernel. The folder is ignored by git: none of this code
enters the repository.
"""

import argparse
import subprocess
import tempfile
import zipfile
from pathlib import Path

import triton

FOLDER = Path(".carry/gdn_peers")
SGLANG = (
    "sglang/kernels/ops/attention/fla/fused_recurrent.py",
    "sglang/kernels/ops/attention/fla/layernorm_gated.py",
    "sglang/kernels/ops/attention/fla/op.py",
    "sglang/kernels/ops/attention/fla/utils.py",
    "sglang/kernels/ops/attention/linear/fused_sigmoid_gating_recurrent.py",
    "sglang/kernels/ops/attention/linear/gdn_replayssm_spec_fold.py",
    "sglang/kernels/ops/mamba/causal_conv1d_triton.py",
    "sglang/kernels/ops/mamba/mamba_state_scatter_triton.py",
    "sglang/kernels/ops/memory/ptr_table.py",
)
VLLM = (
    "vllm/model_executor/layers/mamba/ops/causal_conv1d.py",
    "vllm/third_party/flash_linear_attention/ops/fused_gdn_decode_post_conv_mtp.py",
    "vllm/third_party/flash_linear_attention/ops/fused_recurrent.py",
    "vllm/third_party/flash_linear_attention/ops/fused_sigmoid_gating.py",
    "vllm/third_party/flash_linear_attention/ops/layernorm_guard.py",
    "vllm/third_party/flash_linear_attention/ops/op.py",
    "vllm/third_party/flash_linear_attention/ops/utils.py",
)
LIBRARY = "vllm/_C_stable_libtorch.abi3.so"
KERNEL = b"gdn_decode_post_conv_mtp_kernel"
CUBIN = "vllm/gdn_decode_post_conv_mtp.sm_90.cubin"


def take(wheel: Path, names: tuple[str, ...], folder: Path) -> None:
    """Extract `names` of a wheel into `folder`, at the same paths."""
    with zipfile.ZipFile(wheel) as packed:
        for name in names:
            packed.extract(name, folder)


def take_cubin(wheel: Path, folder: Path) -> None:
    """Extract the sm_90 object with KERNEL out of the wheel's library."""
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        take(wheel, (LIBRARY,), scratch)
        subprocess.run(
            [cuobjdump, "-xelf", "sm_90.cubin", scratch / LIBRARY],
            cwd=scratch,
            check=True,
            capture_output=True,
        )
        found = [file for file in scratch.glob("*.cubin") if KERNEL in file.read_bytes()]
        if len(found) != 1:
            raise SystemExit(f"one sm_90 object with {KERNEL!r} was expected, {len(found)} found")
        (folder / CUBIN).write_bytes(found[0].read_bytes())


def main() -> None:
    """Fill the folder and say what it weighs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sglang", type=Path, help="wheel of sglang 0.5.23")
    parser.add_argument("vllm", type=Path, help="wheel of vllm 0.33.0")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args()
    take(asked.sglang, SGLANG, asked.folder)
    take(asked.vllm, VLLM, asked.folder)
    take_cubin(asked.vllm, asked.folder)
    files = [file for file in asked.folder.rglob("*") if file.is_file()]
    total = sum(file.stat().st_size for file in files)
    print(f"{len(files)} files, {total / 1e6:.2f} MB in {asked.folder}")


if __name__ == "__main__":
    main()
