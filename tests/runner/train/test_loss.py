"""Tests the cross-entropy of a batch, whole and in chunks."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from headway.runner.train.loss import cross_entropy

VOCABULARY, WIDTH = 11, 6


def losses(limit: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """The loss, its gradients, and how often the output layer has run."""
    torch.manual_seed(3)
    output = nn.Linear(WIDTH, VOCABULARY, bias=False)
    hidden = torch.randn(2, 8, WIDTH, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (2, 8))
    calls: list[int] = []
    output.register_forward_pre_hook(lambda *_: calls.append(1))
    loss = cross_entropy(hidden, targets, output, VOCABULARY, None, limit)
    loss.backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert output.weight.grad is not None
    expected = functional.cross_entropy(output(hidden).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, expected)
    return loss.detach(), hidden.grad, output.weight.grad, len(calls) - 1


@pytest.mark.parametrize(("limit", "calls"), [(2 * 8 * VOCABULARY, 1), (2 * 8 * VOCABULARY - 1, 4), (2 * VOCABULARY, 16)])
def test_chunks_are_computed_twice_and_add_up_to_the_whole(limit: int, calls: int) -> None:
    whole, found = losses(1 << 20), losses(limit)
    for one, other in zip(found[:3], whole[:3], strict=True):
        torch.testing.assert_close(one, other)
    assert found[3] == calls
