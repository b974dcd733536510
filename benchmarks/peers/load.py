# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Import the peers' single files, with stand-ins for the rest of their packages.

The fetched folder holds no __init__.py: Python takes the folders below `sglang` and `vllm` for
namespace packages, and each file finds the files that it imports. What was not fetched is answered
by the stand-ins below, as the engine answers on an H200: CUDA, and programmatic dependent launch
from compute capability 9.0 on.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import torch
import triton
import triton.language as tl

T = TypeVar("T")


class Backend(Enum):
    """Stand-in of sglang's enumeration: only its one name that is asked for."""

    TC_PIECEWISE = 0


class Phase(Enum):
    """Stand-in of sglang's enumeration: only its one name that is asked for."""

    PREFILL = 0


class JitKernel(Generic[T]):
    """Stand-in of vLLM's base class that compiles ahead of time."""


class Platform:
    """vLLM's current_platform on a Hopper GPU."""

    is_cuda = staticmethod(lambda: True)
    is_cuda_alike = staticmethod(lambda: True)
    is_cpu = staticmethod(lambda: False)
    is_device_capability_family = staticmethod(lambda *_, **__: False)
    is_arch_support_pdl = staticmethod(lambda: has_pdl())


def has_pdl() -> bool:
    """Programmatic dependent launch: from compute capability 9.0 on."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


def capability() -> int:
    """Compute capability as one number, 90 on Hopper; 0 without a device."""
    if not torch.cuda.is_available():
        return 0
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def core_count(device: int | None = None) -> int:
    """Streaming multiprocessors; 132, as on an H200, without a device."""
    if not torch.cuda.is_available():
        return 132
    return torch.cuda.get_device_properties(device or 0).multi_processor_count


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def install(folder: Path) -> None:
    """Put stand-ins into sys.modules, and the two packages with `folder` as their place."""
    stands: dict[str, dict[str, Any]] = {
        "vllm.triton_utils": {
            "tl": tl,
            "triton": triton,
            "tldevice": importlib.import_module("triton.language.extra.libdevice"),
        },
        "vllm.platforms": {"current_platform": Platform},
        "vllm.v1.attention.backends.utils": {"NULL_BLOCK_ID": 0, "PAD_SLOT_ID": -1},
        "vllm.utils.math_utils": {"cdiv": cdiv, "next_power_of_2": triton.next_power_of_2},
        "vllm.utils.platform_utils": {"num_compute_units": core_count},
        "vllm.model_executor.warmup.jit_warmup": {"VllmJitKernel": JitKernel},
        "vllm.model_executor.warmup.jit_warmup_triton_helper": {
            "TritonPointerInputVariant": object,
            "TritonWarmupTensor": object,
            "triton_scalar_specialization_rep": None,
        },
        "sglang.kernels.jit.utils": {"is_arch_support_pdl": has_pdl},
        "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": _no},
        "sglang.srt.model_executor.cuda_graph_config": {
            "Backend": Backend,
            "Phase": Phase,
            "check_cuda_graph_backend": _no,
        },
        "sglang.srt.utils": {
            "cdiv": cdiv,
            "cpu_has_amx_support": _no,
            "device_context": torch.cuda.device,
            "get_device_sm": capability,
            "is_cpu": _no,
            "is_cuda": lambda: True,
            "is_gfx95_supported": _no,
            "is_hip": _no,
            "is_npu": _no,
            "is_sm90_supported": lambda: capability() == 90,
            "next_power_of_2": triton.next_power_of_2,
        },
        "sglang.srt.utils.common": {
            "get_device_core_count": core_count,
            "torch_release": tuple(int(part) for part in torch.__version__.split(".")[:2]),
        },
    }
    if "einops" not in sys.modules and importlib.util.find_spec("einops") is None:
        stands["einops"] = {"rearrange": None}  # imported by the peers' files, never called
    for name, members in stands.items():
        if name not in sys.modules:
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(members)
    for name in ("sglang", "vllm"):
        if name not in sys.modules:
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(folder / name)]


def load(folder: Path, name: str) -> ModuleType:
    """One of the peers' modules by its own dotted name."""
    if not (folder / (name.replace(".", "/") + ".py")).exists():
        raise SystemExit(f"{name} is not in {folder}: run benchmarks/peers/fetch_gdn.py first")
    install(folder.resolve())
    return importlib.import_module(name)


def load_again(folder: Path, name: str, changes: dict[str, Callable[..., object]]) -> ModuleType:
    """A second copy of a module, with some of its functions replaced."""
    original = load(folder, name)
    spec = importlib.util.spec_from_file_location(f"{name}_again", original.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = copy
    spec.loader.exec_module(copy)
    vars(copy).update(changes)
    return copy


def _no(*_: object, **__: object) -> bool:
    return False
