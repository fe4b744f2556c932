"""Computes causal attention over sequences that are split over the ranks of `cp`: keys and values go round a ring (arXiv 2310.01889).

Each rank holds an early and a late part of the sequence, so that all ranks have the same work: of 2 x `cp` parts, rank r holds
parts r and 2 x cp - 1 - r (arXiv 2407.21783, section 3.3.2). Then every pair of ranks needs a rectangle without a mask:

* keys of an earlier rank: all queries, the first half of the keys;
* keys of a later rank: the second half of the queries, all keys;
* its own keys: a causal square.

Where documents are kept apart, each rectangle has a mask, which torch's flash kernels do not take: it is computed by the formula,
some queries at a time.

torch's own context_parallel has no CPU kernel (torch 2.13).
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo

_ALL = slice(None)
# Tags of messages: keys and values, and their gradients.
_KEYS, _GRADIENTS = 0, 1
_HALF = (torch.bfloat16, torch.float16)
# Scores in memory at once, by the formula: 256 MiB in fp32.
_PIECE_SCORES = 1 << 26


def held_positions(sequence: int, rank: int, ranks: int) -> Tensor:
    """Return the positions of a sequence that a rank holds, in ascending order: (sequence / ranks,)."""
    parts = torch.arange(sequence).chunk(2 * ranks)
    return torch.cat((parts[rank], parts[2 * ranks - 1 - rank]))


# Like torch.compiler.disable, which would import the compiler here, also for layouts without `cp`.
@_disable_dynamo
def ring_attention(q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, starts: Tensor | None = None) -> Tensor:
    """Return causal attention of this rank's queries over the whole sequence; collective over `group`, also backward.

    q: (batch, heads, held, head_dim); k, v: (batch, kv_heads, held, head_dim), at the positions of `held_positions`. Given
    starts, (batch, sequence), queries attend to keys whose document begins at the same place.
    """
    out: Tensor = _RingAttention.apply(q, k, v, group, starts)  # type: ignore[no-untyped-call]
    return out


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, starts: Tensor | None) -> Tensor:
        ring = _Ring(group)
        copies = q.shape[1] // k.shape[1]
        out = torch.zeros_like(q, dtype=torch.float32)
        lse = torch.full(q.shape[:3], -math.inf, device=q.device)
        held = torch.stack((k, v))
        for turn in range(ring.size):
            coming = ring.pass_on(held, _KEYS) if turn + 1 < ring.size else None
            queries, keys, causal = ring.rectangle(turn, q.shape[2])
            mask = None if starts is None else ring.mask(turn, starts, queries, keys)
            part, part_lse = _attend(q[:, :, queries], *_expanded(held[:, :, :, keys], copies), causal=causal, mask=mask)
            _merge(out[:, :, queries], lse[:, :, queries], part, part_lse)
            if coming is not None:
                held = coming.wait()
        mixed = out.to(q.dtype)
        ctx.group, ctx.starts = group, starts
        ctx.save_for_backward(q, k, v, mixed, lse)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Send the gradients of keys and values round with them: after a whole round they are back, and complete."""
        q, k, v, out, lse = ctx.saved_tensors
        ring, (gradient,) = _Ring(ctx.group), gradients
        copies = q.shape[1] // k.shape[1]
        dq = torch.zeros_like(q, dtype=torch.float32)
        held = torch.stack((k, v))
        returning: _Passing | None = None
        for turn in range(ring.size):
            coming = ring.pass_on(held, _KEYS) if turn + 1 < ring.size else None
            queries, keys, causal = ring.rectangle(turn, q.shape[2])
            mask = None if ctx.starts is None else ring.mask(turn, ctx.starts, queries, keys)
            part, *of_keys = _attend_backward(
                gradient[:, :, queries],
                q[:, :, queries],
                *_expanded(held[:, :, :, keys], copies),
                out[:, :, queries],
                lse[:, :, queries],
                causal=causal,
                mask=mask,
            )
            dq[:, :, queries] += part
            of_held = torch.zeros_like(held, dtype=torch.float32) if returning is None else returning.wait()
            of_held[:, :, :, keys] += _summed(torch.stack(of_keys), copies)
            returning = ring.pass_on(of_held, _GRADIENTS)
            if coming is not None:
                held = coming.wait()
        assert returning is not None  # noqa: S101
        dk, dv = returning.wait().to(k.dtype)
        return dq.to(q.dtype), dk, dv, None, None


class _Passing:
    """A tensor on its way to the next rank, and the one that comes from the previous rank."""

    def __init__(self, sent: Tensor, received: Tensor, works: list[dist.Work]) -> None:
        # Kept until it has been sent.
        self._sent = sent
        self._received, self._works = received, works

    def wait(self) -> Tensor:
        for work in self._works:
            work.wait()
        return self._received


class _Ring:
    """The ranks of `cp`, each of which sends to the next."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.size, self._group = group.rank(), group.size(), group

    def pass_on(self, tensor: Tensor, tag: int) -> _Passing:
        tensor = tensor.contiguous()
        received = torch.empty_like(tensor)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        operations = [
            dist.P2POp(dist.isend, tensor, group=self._group, tag=tag, group_peer=after),
            dist.P2POp(dist.irecv, received, group=self._group, tag=tag, group_peer=before),
        ]
        return _Passing(tensor, received, dist.batch_isend_irecv(operations))

    def rectangle(self, turn: int, held: int) -> tuple[slice, slice, bool]:
        """Return the queries and keys that this rank computes in a turn, and whether under a causal mask."""
        owner = (self.rank - turn) % self.size
        if owner == self.rank:
            return _ALL, _ALL, True
        if owner < self.rank:
            return _ALL, slice(0, held // 2), False
        return slice(held // 2, held), _ALL, False

    def mask(self, turn: int, starts: Tensor, queries: slice, keys: slice) -> Tensor:
        """Return which keys of the rectangle each of its queries attends to: (batch, 1, queries, keys), boolean."""
        owner, sequence = (self.rank - turn) % self.size, starts.shape[1]
        mine = held_positions(sequence, self.rank, self.size)[queries].to(starts.device)
        theirs = held_positions(sequence, owner, self.size)[keys].to(starts.device)
        is_same = starts[:, mine].unsqueeze(2) == starts[:, theirs].unsqueeze(1)
        return (is_same & (mine.unsqueeze(1) >= theirs)).unsqueeze(1)


def _expanded(keys_values: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """Return keys and values with as many heads as the queries."""
    keys, values = keys_values.repeat_interleave(copies, dim=2) if copies > 1 else keys_values
    return keys, values


def _summed(gradients: Tensor, copies: int) -> Tensor:
    """Return gradients of keys and values, summed over the queries' heads that share one."""
    shape = gradients.shape
    return gradients.float().reshape(*shape[:2], shape[2] // copies, copies, *shape[3:]).sum(dim=3)


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Add attention over further keys to `out`, in place: both weighted by their share of the softmax's denominator."""
    total = torch.logaddexp(lse, part_lse)
    out.mul_((lse - total).exp().unsqueeze(-1)).add_(part * (part_lse - total).exp().unsqueeze(-1))
    lse.copy_(total)


# --- one rectangle: torch's kernels, and the formula where there is none -------------------------------------------------


def _attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return attention over these keys, and the log of its softmax's denominator: (batch, heads, queries). A mask, where the
    causal one is part of it, leaves a query 0 and minus infinity if it has no key."""
    if mask is not None:
        parts = [attend_by_formula(q[:, :, piece], k, v, mask=mask[:, :, piece]) for piece in _pieces(q, k)]
        return torch.cat([out for out, _ in parts], dim=2), torch.cat([lse for _, lse in parts], dim=2)
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        return out, lse
    if q.dtype in _HALF:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)
        return out, lse
    return attend_by_formula(q, k, v, causal=causal)


def _attend_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, given `out` and `lse` over all keys."""
    if mask is not None:
        of_queries = []
        of_keys, of_values = (torch.zeros_like(each, dtype=torch.float32) for each in (k, v))
        for piece in _pieces(q, k):
            of_piece, rows, outs, denominators, shown = (each[:, :, piece] for each in (gradient, q, out, lse, mask))
            dq, dk, dv = attend_backward_by_formula(of_piece, rows, k, v, outs, denominators, mask=shown)
            of_queries.append(dq)
            of_keys += dk
            of_values += dv
        return torch.cat(of_queries, dim=2), of_keys, of_values
    if q.device.type == "cpu":
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(gradient, q, k, v, out, lse, 0.0, causal)
    elif q.dtype in _HALF:
        # The states of a generator, which only dropout uses.
        unused = torch.zeros(2, dtype=torch.uint64, device=q.device)
        found = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            gradient, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, unused, unused
        )
    else:
        found = attend_backward_by_formula(gradient, q, k, v, out, lse, causal=causal)
    dq, dk, dv = found
    return dq, dk, dv


def _pieces(q: Tensor, k: Tensor) -> list[slice]:
    """Return the queries in pieces of at most _PIECE_SCORES scores, of one query at least."""
    size = max(1, _PIECE_SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    return [slice(begin, begin + size) for begin in range(0, q.shape[2], size)]


def attend_by_formula(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return what `_attend` does, with all scores in memory, in fp32."""
    scores = _scores(q, k, causal=causal, mask=mask)
    lse = scores.logsumexp(dim=-1)
    return _shares(scores, lse) @ v.float(), lse


def attend_backward_by_formula(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `_attend_backward` does, in fp32 (arXiv 2205.14135, appendix B.2)."""
    gradient, q, k, v, out = (each.float() for each in (gradient, q, k, v, out))
    shares = _shares(_scores(q, k, causal=causal, mask=mask), lse)
    of_shares = gradient @ v.mT - (gradient * out).sum(dim=-1, keepdim=True)
    of_scores = shares * of_shares / math.sqrt(q.shape[-1])
    return of_scores @ k, of_scores.mT @ q, shares.mT @ gradient


def _shares(scores: Tensor, lse: Tensor) -> Tensor:
    """Return the softmax of the scores, 0 for a query without keys, whose denominator is 0."""
    return (scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)).exp()


def _scores(q: Tensor, k: Tensor, *, causal: bool, mask: Tensor | None) -> Tensor:
    scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
    if mask is not None:
        return scores.masked_fill(~mask, -math.inf)
    if not causal:
        return scores
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -math.inf)
