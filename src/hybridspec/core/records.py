# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What passes from room to room, and what a user gets in the end.

Tensors in here live on the engine's device; counts are int32 scalars there too, so that no record
asks the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The anchor and the drafts that follow it."""

    tokens: Tensor
    """[block_size] int64: the anchor, then the drafts"""
    log_odds: Tensor
    """[block_size - 1] float32: log-odds of each draft against all other tokens, clamped to +-40"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Rows that stand before the first router's experts."""

    residual: Tensor
    """[N, D] residual stream after the mixer of the layer with the first router"""
    normed: Tensor
    """[N, D] what the router and the experts read"""
    expert_ids: Tensor
    """[N, k] int64: experts of each row, best first; -1 in rows that were not read"""
    expert_weights: Tensor
    """[N, k] float32: shares of those experts"""
    tapped: dict[int, Tensor] = field(default_factory=dict[int, "Tensor"])
    """[N, D] outputs of the tapped layers before that one, by number"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the target says after each row that it read."""

    tokens: Tensor
    """[N] int64: arg-max after each row; stale beyond the rows read"""
    gaps: Tensor
    """[N] float32: distance of the two best logits"""
    taps: Tensor
    """[N, taps * D]: outputs of the tapped layers, for the drafter"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a request cost. `tokens` counts the first token, which the prompt's own pass gives."""

    rounds: int
    rounds_drafted: int
    """rounds that began with a draft; the others were plain steps"""
    tokens: int
    rows_read: int
    """rows that the target read in rounds, after the routing correction"""
    drafts_accepted: int
    lengths: dict[int, int] = field(default_factory=dict[int, int])
    """rounds by rows read"""
    seconds: float = 0.0
    """decoding only: neither the prompt nor measuring is in it"""

    @property
    def tokens_per_round(self) -> float:
        """Tokens that rounds emitted, by round; plain decoding has 1.0."""
        return (self.tokens - 1) / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens that rounds emitted, by second of decoding."""
        return (self.tokens - 1) / self.seconds if self.seconds else 0.0

    @property
    def mean_length(self) -> float:
        """Rows read a round."""
        return self.rows_read / self.rounds if self.rounds else 0.0

    def to_json(self) -> dict[str, object]:
        """The object under `stats` of `generate --json`."""
        return {
            "rounds": self.rounds,
            "rounds_drafted": self.rounds_drafted,
            "tokens": self.tokens,
            "rows_read": self.rows_read,
            "drafts_accepted": self.drafts_accepted,
            "tokens_per_round": self.tokens_per_round,
            "lengths": {str(rows): count for rows, count in sorted(self.lengths.items())},
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one round adds to a stream; the last one carries the reason."""

    text: str
    """whole UTF-8 only: bytes of an unfinished character wait for the next chunk"""
    drafted_text: str
    """the beginning of `text` that accepted drafts wrote; what follows is the target's own token"""
    token_ids: tuple[int, ...]
    drafts_accepted: int
    finish_reason: FinishReason | None
    stats: Stats
    """as they stand: a reader who stops early still has them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished request."""

    text: str
    """the completion only, without the prompt and without special tokens"""
    token_ids: tuple[int, ...]
    """a stop id, if one ended the text, is the last"""
    finish_reason: FinishReason
    stats: Stats

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Completion:
        """The request whose finished stream these chunks are."""
        last = chunks[-1]
        assert last.finish_reason is not None, "the last chunk tells why the stream ended"
        return cls(
            text="".join(chunk.text for chunk in chunks),
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            finish_reason=last.finish_reason,
            stats=last.stats,
        )
