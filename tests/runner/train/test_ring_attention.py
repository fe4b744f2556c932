"""Tests attention over a split sequence: the positions of each rank, and the formula compared with torch's kernel."""

import math

import pytest
import torch
from torch.nn import functional

from headway.runner.train.ring_attention import (
    _attend,
    _attend_backward,
    _merge,
    attend_backward_by_formula,
    attend_by_formula,
    held_positions,
)


@pytest.mark.parametrize(("sequence", "ranks"), [(8, 2), (16, 4), (24, 3), (12, 1)])
def test_each_position_is_held_once_and_all_ranks_have_equal_work(sequence: int, ranks: int) -> None:
    held = [held_positions(sequence, rank, ranks) for rank in range(ranks)]
    assert sorted(torch.cat(held).tolist()) == list(range(sequence))
    assert all(part.tolist() == sorted(part.tolist()) for part in held)
    # A causal token attends to those before it and to itself.
    assert len({int((part + 1).sum()) for part in held}) == 1


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("causal", [True, False])
def test_the_formula_and_the_kernel_give_the_same_values_and_gradients(causal: bool) -> None:
    q, k, v, gradient = (drawn(seed, 2, 3, 10, 8) for seed in range(4))
    out, lse = _attend(q, k, v, causal=causal)
    by_formula, lse_by_formula = attend_by_formula(q, k, v, causal=causal)
    torch.testing.assert_close(by_formula, out)
    torch.testing.assert_close(lse_by_formula, lse)
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    wanted = torch.autograd.grad(functional.scaled_dot_product_attention(q, k, v, is_causal=causal), inputs, gradient)
    with torch.no_grad():
        kernel = _attend_backward(gradient, q, k, v, out, lse, causal=causal)
        formula = attend_backward_by_formula(gradient, q, k, v, out, lse, causal=causal)
    for expected, one, other in zip(wanted, kernel, formula, strict=True):
        torch.testing.assert_close(one, expected)
        torch.testing.assert_close(other, expected)


def test_attention_over_parts_of_the_keys_combines_to_that_over_all() -> None:
    q, k, v = (drawn(seed, 1, 2, 6, 4) for seed in range(3))
    out, lse = torch.zeros(1, 2, 6, 4), torch.full((1, 2, 6), -math.inf)
    for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
        _merge(out, lse, *_attend(q, k[:, :, part], v[:, :, part], causal=False))
    whole, of_whole = _attend(q, k, v, causal=False)
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(lse, of_whole)
