# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Which experts a row goes to: softmax over all, the k best, and the share of each.

The families differ in the shares: most let them sum to 1 again, some keep the probabilities
(`norm_topk_prob` false).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.activation import sigmoid
from hybridspec.kernels.reference.stream import Stream, normed


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Where the rows of a round go in one layer, written in place; stale from the counts on."""

    ids: Tensor
    """[MAX_ROWS, k] int32: experts of each row, best first"""
    weights: Tensor
    """[MAX_ROWS, k] float32: their shares"""
    shares: Tensor
    """[MAX_ROWS, E + pieces] float32: the same by expert, the shared one's behind them; 0 where
    not chosen"""
    scale: Tensor
    """[MAX_ROWS] float32: what makes the stream's scaled rows its norm"""
    words: Tensor
    """[MAX_ROWS, 32] int32: the experts of each row, 32 p + l as bit p of word l"""
    logits: Tensor
    """[MAX_ROWS, parts, E + 1] float32: of the experts, and of the shared one's gate, as sums of
    parts and before the stream's scale"""
    chosen: Tensor
    """[E + pieces] int32: the shared expert, of index E, then all that any row chose, rising"""
    readers: Tensor
    """[E + pieces] int32: of each of these the rows that go to it, row i as bit i"""
    count: Tensor
    """[] int32: how many those are"""
    arrived: Tensor
    """[] int32: programs of a launch that have summed their part; 0 between launches"""
    pieces: int = 1
    """as how many experts the shared one counts, E, E + 1, ...: it may be wider than the others"""
    sums_to_one: bool = True
    """whether a row's shares do; else they are the probabilities among all E"""

    @property
    def experts(self) -> int:
        """E, without the shared one."""
        return len(self.chosen) - self.pieces

    @classmethod
    def empty(
        cls,
        E: int,
        k: int,
        device: torch.device | str,
        *,
        pieces: int = 1,
        sums_to_one: bool = True,
        parts: int = 1,
    ) -> "Routing":
        """For E experts of which a row chooses k, and a shared one as wide as `pieces` of them.

        parts: in how many sums logits come
        """

        def zeros(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        return cls(
            ids=zeros(MAX_ROWS, k),
            weights=zeros(MAX_ROWS, k, dtype=torch.float32),
            shares=zeros(MAX_ROWS, E + pieces, dtype=torch.float32),
            scale=zeros(MAX_ROWS, dtype=torch.float32),
            words=zeros(MAX_ROWS, 32),
            logits=zeros(MAX_ROWS, parts, E + 1, dtype=torch.float32),
            chosen=zeros(E + pieces),
            readers=zeros(E + pieces),
            count=zeros(),
            arrived=zeros(),
            pieces=pieces,
            sums_to_one=sums_to_one,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """Experts that a benchmark prescribes: rows choose among these alone, by their own logits."""

    table: Tensor
    """[positions, k] int32: of the token at each position, distinct"""
    length: Tensor
    """[] int32: position of the first row"""


def route_stream(
    stream: Stream,
    weight: Tensor,
    rows: Tensor,
    eps: float,
    routing: Routing,
    steering: Steering | None = None,
) -> None:
    """Route the stream's norm; writes all of `routing` but its logits.

    weight [E + 1, D]   float: the router, then the shared expert's gate
    rows   []           int32, 1..MAX_ROWS
    """
    x = normed(stream, rows, eps)
    n, E, k = len(x), len(weight) - 1, routing.ids.shape[1]
    logits = x @ weight.to(x.dtype).T
    allowed = logits[:, :E]
    if steering is not None:
        start = int(steering.length)
        table = steering.table[start : start + n].long()
        allowed = torch.full_like(allowed, -torch.inf).scatter(1, table, allowed.gather(1, table))
    ids = route(allowed, k)[0]
    shares = logits[:, :E].softmax(-1).gather(1, ids)
    shares = shares / shares.sum(-1, keepdim=True) if routing.sums_to_one else shares
    routing.ids[:n], routing.weights[:n] = ids.to(torch.int32), shares
    routing.words[:n] = words_of(ids, E)
    routing.shares[:n, :E] = torch.zeros_like(logits[:, :E]).scatter(1, ids, shares)
    routing.shares[:n, E:] = sigmoid(logits[:, E:])
    routing.scale[:n] = torch.rsqrt(stream.squares[:n].sum(1) / x.shape[1] + eps)
    relist(routing, rows)


def relist(routing: Routing, rows: Tensor) -> None:
    """List the experts of the first `rows` rows, fewer than were routed: chosen, readers, count.

    rows [] int32, 1..rows that were routed
    """
    E, ids = routing.experts, routing.ids[: int(rows)]
    shared = torch.arange(E, E + routing.pieces, device=ids.device)
    listed = torch.cat((shared, ids.unique()))  # sorted
    goes = (ids == listed[:, None, None]).any(-1) | (listed >= E)[:, None]
    routing.chosen[: len(listed)] = listed.to(torch.int32)
    bits = 1 << torch.arange(len(ids), device=ids.device)
    routing.readers[: len(listed)] = (goes * bits).sum(1).to(torch.int32)
    routing.count.fill_(len(listed))


def words_of(ids: Tensor, E: int) -> Tensor:
    """ids [N, k] of E experts as Routing.words has them, [N, 32] int32."""
    chosen = torch.zeros(len(ids), -(-E // 32) * 32, dtype=torch.int64, device=ids.device)
    chosen.scatter_(1, ids.long(), 1)
    bits = chosen.view(len(ids), -1, 32) << torch.arange(-(-E // 32), device=ids.device)[:, None]
    return bits.sum(1).to(torch.int32)


def route(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most likely experts of each row; of equals the lowest index.

    logits  [N, E]   float32
    ids     [N, k]   int64, best first
    weights [N, k]   float32, each row sums to 1
    """
    ids, shares = route_by_probability(logits, k)
    return ids, shares / shares.sum(-1, keepdim=True)


def route_by_probability(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same with weights as softmax gives them: each row sums to less than 1 unless k is E."""
    shares, ids = torch.sort(logits.softmax(-1), dim=-1, descending=True, stable=True)
    return ids[:, :k], shares[:, :k]


def drop_rows(ids: Tensor, rows: Tensor) -> Tensor:
    """ids [N, k] with -1 in every row from `rows` [] on: what is dropped fetches no expert."""
    kept = torch.arange(ids.shape[0], device=ids.device) < rows
    return torch.where(kept[:, None], ids, -1)
