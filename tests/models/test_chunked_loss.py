"""The loss in chunks is the plain loss, with its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ftnode.models import chunked_loss
from ftnode.models.chunked_loss import loss_and_gradients, mean_loss
from ftnode.models.llama import add_embedding_gradient
from tests.models.tiny import DEVICE

VOCABULARY, DIM, POSITIONS = 50, 16, 21


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden, head = (torch.randn(n, DIM, generator=generator) for n in (POSITIONS, VOCABULARY))
    targets = torch.randint(VOCABULARY, (POSITIONS,), generator=generator)
    return hidden.to(DEVICE[0]), head.to(DEVICE[0]), targets.to(DEVICE[0])


@pytest.mark.parametrize("positions", [1, 4, POSITIONS, 1000])
def test_loss_and_gradients_are_autograds(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunked_loss.CHUNK_NUMBERS, DEVICE[0], positions * VOCABULARY)
    hidden, head, targets = drawn()
    leaves = [hidden.clone().requires_grad_(), head.clone().requires_grad_()]
    expected = F.cross_entropy(F.linear(*leaves), targets)
    (expected * 0.25).backward()
    into = torch.ones_like(head)
    loss, gradient = loss_and_gradients(hidden, head, targets, 0.25, into, 1.0)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(mean_loss(hidden, head, targets), expected.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, leaves[0].grad, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(into - 1, leaves[1].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_in_few_bits_it_is_about_the_same_and_the_scale_does_not_leak(dtype: torch.dtype, scale: float) -> None:
    hidden, head, targets = drawn()
    exact, low = torch.zeros_like(head), torch.zeros_like(head)
    loss, gradient = loss_and_gradients(hidden, head, targets, 0.25, exact, 1.0)
    low_loss, low_gradient = loss_and_gradients(hidden, head.to(dtype), targets, 0.25, low, scale)
    assert float((loss - low_loss).abs()) < 0.02 * float(loss)
    for one, other in ((gradient, low_gradient), (exact, low)):
        assert float((one - other).norm()) < 0.02 * float(one.norm())


def test_float16_without_a_scale_loses_what_is_small() -> None:
    hidden, head, targets = drawn()
    for scale, kept in ((1.0, False), (2.0**20, True)):
        into = torch.zeros_like(head)
        _, gradient = loss_and_gradients(hidden, head.half(), targets, 1e-7, into, scale)
        assert bool(gradient.any()) == kept == bool(into.any())


@pytest.mark.parametrize("vocabulary", [3, VOCABULARY, 5000])
def test_the_embeddings_gradient_is_autograds_to_the_bit(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(vocabulary, (2, 15), generator=generator)
    table = torch.randn(vocabulary, DIM, generator=generator).requires_grad_()
    gradient = torch.randn(2, 15, DIM, generator=generator)
    F.embedding(tokens, table).backward(gradient)
    into = torch.zeros_like(table)
    add_embedding_gradient(into, tokens, gradient)
    assert table.grad is not None and torch.equal(into, table.grad)
    add_embedding_gradient(into, tokens, gradient)
    assert torch.equal(into, 2 * table.grad)
