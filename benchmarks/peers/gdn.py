# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The engines' own kernels for Gated DeltaNet verification, as arms of gdn_verify.py.

Each arm calls what its engine calls by default on an H200, with the engine's layouts: states as
[slots, HV, V, K]; SGLang's windows of the convolution channel by channel, vLLM's row by row.
Indices that an engine derives once a round are given, and where vLLM's Triton path copies q, k and
v apart with four launches a layer, one does it here: both favour the peers.
"""

import ctypes
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from gdn_problem import EPS, Problem
from peers.fetch_gdn import CUBIN, FOLDER
from peers.load import load, load_again
from torch import Tensor

SGLANG = "sglang.kernels.ops"
VLLM = "vllm.third_party.flash_linear_attention.ops"


class Peer(ABC):
    """What all arms share: problem, packages and the last round's results."""

    name: ClassVar[str]
    state_tolerance: float = 1e-4

    def __init__(self, problem: Problem, folder: Path = FOLDER) -> None:
        self.problem, self.folder = problem, folder
        self.mixed: list[Tensor] | None = None
        self.y: list[Tensor] = []
        self.touched = 0
        self.allocate()

    @abstractmethod
    def allocate(self) -> None:
        """Pools of states and load the kernels."""

    @abstractmethod
    def layer(self, index: int, mixed: Tensor) -> Tensor:
        """Gates to y of one layer: [B N, C] -> [B N, HV, V]."""

    @abstractmethod
    def convolve(self, index: int) -> Tensor:
        """[B N, C] after the convolution."""

    @abstractmethod
    def normalise(self, y: Tensor, index: int) -> Tensor:
        """Gated norm of [B N, HV, V]."""

    @abstractmethod
    def commit(self) -> None:
        """All layers' accepted states."""

    @torch.no_grad()
    def round(self) -> None:
        """Enqueue all layers, one after another, and the commit."""
        p = self.problem
        self.y, mixed = [], []
        for index in range(p.layers):
            mixed.append(p.weights[index].mixed if p.scope == "delta" else self.convolve(index))
            y = self.layer(index, mixed[-1])
            self.y.append(self.normalise(y, index) if p.scope == "whole+norm" else y)
        self.commit()
        self.mixed = mixed

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views q, k [1, B N, H, K] and v [1, B N, HV, V] of [B N, C]."""
        s = self.problem.shape
        q, k, v = mixed.split((s.H * s.K, s.H * s.K, s.HV * s.V), dim=1)
        rows = mixed.shape[0]
        return q.view(1, rows, s.H, s.K), k.view(1, rows, s.H, s.K), v.view(1, rows, s.HV, s.V)


class Sglang(Peer):
    """SGLang's default: a state a row into a buffer, then one launch that copies the accepted."""

    name = "sglang"

    def allocate(self) -> None:
        p, s = self.problem, self.problem.shape
        self.gating = self.load_gating()
        self.conv_update = load(self.folder, f"{SGLANG}.mamba.causal_conv1d_triton")
        self.scatter = load(self.folder, f"{SGLANG}.mamba.mamba_state_scatter_triton")
        self.norm = load(self.folder, f"{SGLANG}.attention.fla.layernorm_gated")
        self.pool = p.normal(p.layers, p.batch + 1, s.HV, s.V, s.K, scale=0.1, dtype=torch.float32)
        self.windows = p.normal(p.layers, p.batch + 1, s.channels, s.CONV - 1)
        self.slots = torch.arange(1, p.batch + 1, dtype=torch.int32, device=p.device)
        self.sources = torch.arange(p.batch, dtype=torch.int32, device=p.device)
        self.steps = p.accepted_rows - 1
        self.touched = p.layers * p.batch * s.HV * s.V * s.K * 4
        self.allocate_records()
        # one row of C channels holds all windows of a round: step t is its columns t..t+CONV-2
        width = p.rows + s.CONV - 2
        shared = p.normal(p.layers, p.batch, s.channels, width)
        self.step_windows = shared.as_strided(
            (p.layers, p.batch, p.rows, s.channels, s.CONV - 1),
            (shared.stride(0), shared.stride(1), 1, width, 1),
        )

    def load_gating(self) -> Any:
        return load(self.folder, f"{SGLANG}.attention.linear.fused_sigmoid_gating_recurrent")

    def allocate_records(self) -> None:
        p, s = self.problem, self.problem.shape
        self.snapshots = p.states(p.layers, p.batch, p.rows, s.HV, s.V, s.K)
        self.touched *= 1 + p.rows

    def convolve(self, index: int) -> Tensor:
        p = self.problem
        x = p.weights[index].qkv.view(p.batch, p.rows, -1).transpose(1, 2)
        out = self.conv_update.causal_conv1d_update(
            x,
            self.windows[index],
            p.weights[index].conv,
            None,
            "silu",
            conv_state_indices=self.slots,
            intermediate_conv_window=self.step_windows[index],
            intermediate_state_indices=self.sources,
        )
        return out.transpose(1, 2).view(p.batch * p.rows, -1)

    def layer(self, index: int, mixed: Tensor) -> Tensor:
        return self.verify(
            index,
            mixed,
            intermediate_states_buffer=self.snapshots[index],
            intermediate_state_indices=self.sources,
            cache_steps=self.problem.rows,
        )

    def verify(self, index: int, mixed: Tensor, **records: Any) -> Tensor:
        """The recurrence over all rows, which leaves the pool as it was."""
        p, w = self.problem, self.problem.weights[index]
        q, k, v = self.split(mixed)
        return self.gating.fused_sigmoid_gating_delta_rule_update(
            A_log=w.A_log,
            dt_bias=w.dt_bias,
            q=q,
            k=k,
            v=v,
            a=w.a,
            b=w.b,
            initial_state_source=self.pool[index],
            initial_state_indices=self.slots,
            cu_seqlens=p.starts,
            use_qk_l2norm_in_kernel=True,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            is_kda=False,
            disable_state_update=True,
            **records,
        )

    def normalise(self, y: Tensor, index: int) -> Tensor:
        p, w = self.problem, self.problem.weights[index]
        V = p.shape.V
        out = self.norm.layernorm_fn(
            y.reshape(-1, V),
            w.norm,
            None,
            z=w.z.view(-1, V),
            eps=EPS,
            group_size=None,
            norm_before_gate=True,
            is_rms_norm=True,
            activation="silu",
        )
        return out.view(-1, p.shape.HV, V)

    def commit(self) -> None:
        self.scatter.fused_mamba_state_scatter_with_mask(
            self.pool, self.snapshots, self.slots, self.steps, self.sources
        )
        self.commit_windows()

    def commit_windows(self) -> None:
        if self.problem.scope != "delta":
            self.scatter.fused_conv_window_scatter_with_mask(
                self.windows, self.step_windows, self.slots, self.steps, self.sources
            )

    def recurrent(self, layer: int, sequence: int) -> Tensor:
        return self.pool[layer, sequence + 1].transpose(-1, -2)

    def conv(self, layer: int, sequence: int) -> Tensor:
        return self.windows[layer, sequence + 1].T


class SglangWide(Sglang):
    """The same with the value tile of releases up to about 0.5.20."""

    name = "sglang-bv32"

    def load_gating(self) -> Any:
        return load_again(
            self.folder,
            f"{SGLANG}.attention.linear.fused_sigmoid_gating_recurrent",
            {"_select_recurrent_launch_config": lambda *_, **__: (32, 1)},
        )


class SglangFold(Sglang):
    """SGLang's exact fold: records of the rows' inputs, replayed for all layers in one launch."""

    name = "sglang-fold"

    def allocate_records(self) -> None:
        p, s = self.problem, self.problem.shape
        self.fold = load(self.folder, f"{SGLANG}.attention.linear.gdn_replayssm_spec_fold")
        self.rawv = p.normal(p.layers, p.batch + 1, s.HV, p.rows, s.V)
        self.rawk = p.normal(p.layers, p.batch + 1, s.H, p.rows, s.K)
        self.decays = p.normal(p.layers, p.batch + 1, s.HV, p.rows, dtype=torch.float32)
        self.betas = p.normal(p.layers, p.batch + 1, s.HV, p.rows, dtype=torch.float32)

    def layer(self, index: int, mixed: Tensor) -> Tensor:
        return self.verify(
            index,
            mixed,
            cache_ring=True,
            replayssm_rawv=self.rawv[index],
            replayssm_rawk=self.rawk[index],
            replayssm_g=self.decays[index],
            replayssm_beta=self.betas[index],
        )

    def commit(self) -> None:
        p = self.problem
        self.fold.commit_gdn_replayssm_fold_all_layers(
            checkpoint_state=self.pool,
            rawv_cache=self.rawv,
            rawk_cache=self.rawk,
            g_cache=self.decays,
            beta_cache=self.betas,
            ssm_state_indices=self.slots,
            accept_lens=p.accepted_rows,
            max_cache_len=p.rows,
            num_k_heads=p.shape.H,
        )
        self.commit_windows()


def packed_decode(
    kernels: Any, p: Problem, index: int, mixed: Tensor, pool: Tensor, slots: Tensor
) -> Tensor:
    """One row of plain decoding, the state moved in place; both engines keep such a kernel."""
    w, s = p.weights[index], p.shape
    out = mixed.new_empty(p.batch, 1, s.HV, s.V)
    kernels.fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv=mixed,
        a=w.a,
        b=w.b,
        A_log=w.A_log,
        dt_bias=w.dt_bias,
        scale=s.K**-0.5,
        initial_state=pool,
        out=out,
        ssm_state_indices=slots,
        use_qk_l2norm_in_kernel=True,
    )
    return out.view(-1, s.HV, s.V)


class SglangPlain(Sglang):
    """SGLang's plain decoding of one row, state updated in place."""

    name = "sglang-plain"
    state_tolerance = 1e-2  # its kernel rounds beta to bf16

    def allocate_records(self) -> None:
        self.decode = load(self.folder, f"{SGLANG}.attention.fla.fused_recurrent")

    def convolve(self, index: int) -> Tensor:
        w = self.problem.weights[index]
        return self.conv_update.causal_conv1d_update(
            w.qkv, self.windows[index], w.conv, None, "silu", conv_state_indices=self.slots
        )

    def layer(self, index: int, mixed: Tensor) -> Tensor:
        return packed_decode(self.decode, self.problem, index, mixed, self.pool[index], self.slots)

    def commit(self) -> None:
        """The kernels have moved the states."""


class Vllm(Peer):
    """vLLM's Triton path: a state a row into slots, the next round starts from the accepted."""

    name = "vllm-triton"

    def allocate(self) -> None:
        p, s = self.problem, self.problem.shape
        self.conv_update = load(self.folder, "vllm.model_executor.layers.mamba.ops.causal_conv1d")
        self.norm = load(self.folder, f"{VLLM}.layernorm_guard")
        self.load_delta()
        # slot 0 means none; column t of a sequence is the state after its row t
        self.pool = p.states(p.layers, 1 + p.batch * p.rows, s.HV, s.V, s.K)
        columns = torch.arange(p.rows, dtype=torch.int32, device=p.device)
        sequences = torch.arange(p.batch, dtype=torch.int32, device=p.device)
        self.slots = 1 + columns[None, :] * p.batch + sequences[:, None]  # [B, N]
        self.windows = p.normal(p.layers, p.batch + 1, s.CONV - 2 + p.rows, s.channels)
        self.convolved = [torch.empty_like(w.qkv) for w in p.weights]
        self.touched = p.layers * p.batch * s.HV * s.V * s.K * 4 * p.rows

    def load_delta(self) -> None:
        self.gating = load(self.folder, f"{VLLM}.fused_sigmoid_gating")
        ahead = self.problem.weights if self.problem.scope == "delta" else []
        self.apart = [self.contiguous(w.mixed) for w in ahead]

    def convolve(self, index: int) -> Tensor:
        p, w = self.problem, self.problem.weights[index]
        return self.conv_update.causal_conv1d_update(
            w.qkv,
            self.windows[index].transpose(-1, -2),
            w.conv,
            None,
            "silu",
            conv_state_indices=self.slots[:, 0],
            num_accepted_tokens=p.accepted_rows,
            query_start_loc=p.starts,
            max_query_len=p.rows,
            out=self.convolved[index],
        )

    def contiguous(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, each contiguous, as the kernel wants them."""
        if mixed.shape[0] == 1 or mixed.device.type == "cpu":
            q, k, v = self.split(mixed)
            return q.contiguous(), k.contiguous(), v.contiguous()
        s, rows = self.problem.shape, mixed.shape[0]
        flat = torch.empty_like(mixed).view(-1)
        grid = (rows, triton.cdiv(s.channels, 1024))
        _split_kernel[grid](mixed, flat, rows, s.H * s.K, s.HV * s.V, s.channels, BLOCK=1024)
        q, k, v = flat.split((rows * s.H * s.K, rows * s.H * s.K, rows * s.HV * s.V))
        return q.view(1, rows, s.H, s.K), k.view(1, rows, s.H, s.K), v.view(1, rows, s.HV, s.V)

    def layer(self, index: int, mixed: Tensor) -> Tensor:
        p, w = self.problem, self.problem.weights[index]
        q, k, v = self.apart[index] if p.scope == "delta" else self.contiguous(mixed)
        y, _ = self.gating.fused_sigmoid_gating_delta_rule_update(
            A_log=w.A_log,
            a=w.a,
            b=w.b,
            dt_bias=w.dt_bias,
            q=q,
            k=k,
            v=v,
            initial_state=self.pool[index],
            inplace_final_state=True,
            cu_seqlens=p.starts,
            ssm_state_indices=self.slots,
            num_accepted_tokens=p.accepted_rows,
            use_qk_l2norm_in_kernel=True,
        )
        return y.view(-1, p.shape.HV, p.shape.V)

    def normalise(self, y: Tensor, index: int) -> Tensor:
        w, V = self.problem.weights[index], self.problem.shape.V
        flat = y.view(-1, V)
        self.norm.layer_norm_fwd(
            flat,
            w.norm,
            None,
            EPS,
            z=w.z.view(-1, V),
            out=flat,
            group_size=V,
            norm_before_gate=True,
            is_rms_norm=True,
            activation="silu",
        )
        return y

    def commit(self) -> None:
        """The next round reads the right slot."""

    def recurrent(self, layer: int, sequence: int) -> Tensor:
        column = self.problem.accepted - 1
        slot = 1 + column * self.problem.batch + sequence
        return self.pool[layer, slot].transpose(-1, -2)

    def conv(self, layer: int, sequence: int) -> Tensor:
        first = self.problem.accepted - 1
        return self.windows[layer, sequence + 1, first : first + self.problem.shape.CONV - 1]


class VllmPlain(Vllm):
    """vLLM's plain decoding of one row, state updated in place."""

    name = "vllm-plain"

    def load_delta(self) -> None:
        self.decode = load(self.folder, f"{VLLM}.fused_recurrent")

    def convolve(self, index: int) -> Tensor:
        w = self.problem.weights[index]
        return self.conv_update.causal_conv1d_update(
            w.qkv,
            self.windows[index].transpose(-1, -2),
            w.conv,
            None,
            "silu",
            conv_state_indices=self.slots[:, 0],
            out=self.convolved[index],
        )

    def layer(self, index: int, mixed: Tensor) -> Tensor:
        return packed_decode(
            self.decode, self.problem, index, mixed, self.pool[index], self.slots[:, 0]
        )


class VllmCuda(Vllm):
    """vLLM's default up to 8 rows: one CUDA kernel from gates to gated norm, states into slots."""

    name = "vllm-cuda"

    def load_delta(self) -> None:
        self.kernel = FusedDecode(self.folder / CUBIN)
        self.out = [torch.empty_like(w.z) for w in self.problem.weights]

    def layer(self, index: int, mixed: Tensor) -> Tensor:
        p, w = self.problem, self.problem.weights[index]
        out = self.out[index]
        self.kernel.launch(p, w, mixed, self.slots, self.pool[index], out)
        return out

    def normalise(self, y: Tensor, index: int) -> Tensor:
        """Done by the kernel."""
        return y


class Strides(ctypes.Structure):
    """The kernel's last argument: elements from row to row, and from slot to slot."""

    _fields_: ClassVar = [(name, ctypes.c_int64) for name in ("qkv", "a", "b", "z", "slot")]


class FusedDecode:
    """vLLM's fused decode kernel, fp32 state, two value heads a key head, SiLU gate.

    The argument list is what the object says: its mangled name gives the types, EIATTR_KPARAM_INFO
    the offsets, and the instructions what each is used for.
    """

    ENTRY = re.compile(rb"_ZN\w*gdn_decode_post_conv_mtp_kernelIfLi2ELb0E\w+")
    DTYPES: ClassVar = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
    THREADS = 256

    def __init__(self, cubin: Path) -> None:
        torch.cuda.current_stream()  # the context that modules belong to
        torch.cuda.synchronize()
        self.cuda = ctypes.CDLL("libcuda.so.1")
        image = cubin.read_bytes()
        entry = min(set(self.ENTRY.findall(image)), key=len)
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        self.module = module
        self.function = self._find(module, entry)

    def _find(self, module: ctypes.c_void_p, entry: bytes) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        if self.cuda.cuModuleGetFunction(ctypes.byref(function), module, entry) == 0:
            return function
        # the entry is a local symbol: go through all functions of the module
        count = ctypes.c_uint()
        self._call("cuModuleGetFunctionCount", ctypes.byref(count), module)
        functions = (ctypes.c_void_p * count.value)()
        self._call("cuModuleEnumerateFunctions", functions, count, module)
        for handle in functions:
            name = ctypes.c_char_p()
            self._call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(handle))
            if name.value == entry:
                return ctypes.c_void_p(handle)
        raise LookupError(f"no function {entry!r} among the {count.value} of the module")

    def launch(
        self, p: Problem, w: Any, mixed: Tensor, slots: Tensor, pool: Tensor, out: Tensor
    ) -> None:
        """Enqueue the kernel for one layer on the current stream."""
        tensors = (mixed, w.a, w.b, w.A_log, w.dt_bias, slots, p.starts, p.accepted_rows, pool)
        tensors += (w.z, w.norm, out)
        s = p.shape
        arguments: list[Any] = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        arguments += [ctypes.c_int(n) for n in (s.H, s.HV, slots.shape[1])]
        arguments += [ctypes.c_int(self.DTYPES[w.dt_bias.dtype])]
        arguments += [ctypes.c_bool(w.norm.dtype == torch.bfloat16)]
        arguments += [ctypes.c_float(s.K**-0.5), ctypes.c_float(EPS)]
        strides = (t.stride(0) for t in (mixed, w.a, w.b, w.z, pool))
        arguments += [Strides(*strides)]
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        sizes = (ctypes.c_uint(n) for n in (p.batch, s.HV, 1, self.THREADS, 1, 1, 0))
        self._call("cuLaunchKernel", self.function, *sizes, stream, pointers, None)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {code}, {(text.value or b'').decode()}")


@triton.jit
def _split_kernel(mixed, flat, rows, QK, VALUES, C, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < C
    b_x = tl.load(mixed + row * C + col, mask=inside)
    first = tl.where(col < QK, 0, tl.where(col < 2 * QK, QK, 2 * QK))
    width = tl.where(col < 2 * QK, QK, VALUES)
    tl.store(flat + rows * first + row * width + col - first, b_x, mask=inside)


ARMS: dict[str, type[Peer]] = {
    arm.name: arm
    for arm in (Sglang, SglangWide, SglangFold, Vllm, VllmCuda, SglangPlain, VllmPlain)
}
