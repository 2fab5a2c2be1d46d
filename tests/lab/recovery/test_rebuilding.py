"""Ways to rebuild a stage against blends worked out by hand."""

from __future__ import annotations

import pytest
import torch

from ftnode.lab.recovery.rebuilding import WAYS, choose_donors, rebuild, residual_outputs
from ftnode.lab.recovery.whole_model import WholeModel
from tests.lab.recovery.recovery_micro import MICRO, corpus

NONE_ELSE: frozenset[int] = frozenset()


def trained(swap: bool = False, steps: int = 3) -> WholeModel:
    model = WholeModel(MICRO, corpus(), seed=3, swap=swap)
    for iteration in range(1, steps + 1):
        model.train(iteration)
    return model


@pytest.mark.parametrize(
    ("way", "shares"),
    [("squared-norm", (0.8, 0.2)), ("norm", (2 / 3, 1 / 3)), ("uniform", (0.5, 0.5)), ("inverse-norm", (1 / 3, 2 / 3))],
)
def test_a_middle_stage_is_a_weighted_mean(way: str, shares: tuple[float, float]) -> None:
    model = trained()
    model.stages[1].norm_squared, model.stages[3].norm_squared = 0.4, 0.1
    before, after = (model.stages[near].weights.detach().double() for near in (1, 3))
    rebuilt = rebuild(model, 2, WAYS[way])
    assert rebuilt.donors == ((1, pytest.approx(shares[0])), (3, pytest.approx(shares[1])))
    expected = shares[0] * before + shares[1] * after
    torch.testing.assert_close(model.stages[2].weights.detach().double(), expected, rtol=0, atol=1e-7)
    assert rebuilt.moved_bytes == 2 * 4 * model.stages[2].layout.size
    assert (model.stages[2].updates, model.stages[2].rate_factor) == (0, 1.1)
    assert not model.stages[2].moments.any()


def test_clipped_norms_are_uniform() -> None:
    """Both neighbours clip at 1, as the published code does before it takes the norm."""
    model = trained()
    model.stages[1].norm_squared, model.stages[3].norm_squared = 4.0, 100.0
    assert rebuild(model, 2, WAYS["norm-after-clipping"]).donors == ((1, 0.5), (3, 0.5))


def test_two_adjacent_losses_are_interpolated() -> None:
    model = trained()
    one, four = (model.stages[near].weights.detach().clone() for near in (1, 4))
    for stage in (2, 3):
        rebuild(model, stage, WAYS["uniform"], lost=frozenset((2, 3)))
    torch.testing.assert_close(model.stages[2].weights.detach(), one * 2 / 3 + four / 3)
    torch.testing.assert_close(model.stages[3].weights.detach(), one / 3 + four * 2 / 3)


def test_donors() -> None:
    assert choose_donors("neighbours", 1, 4, frozenset({1}), False) == ((2, 1),)
    assert choose_donors("previous", 1, 4, frozenset({1}), False) == ((2, 1),)
    assert choose_donors("previous", 3, 4, frozenset({3}), False) == ((2, 1),)
    assert choose_donors("partner", 4, 4, frozenset({4}), True) == ((3, 1),)
    assert choose_donors("partner", 2, 4, frozenset({2}), True) == ((1, 1),)
    assert choose_donors("partner", 2, 4, frozenset({2}), False) == ((1, 1), (3, 1))
    assert choose_donors("partner", 1, 4, frozenset({1, 2}), True) == ((3, 2),)
    assert choose_donors("none", 2, 4, frozenset({2}), False) == ()
    assert choose_donors("neighbours", 2, 3, frozenset({1, 2, 3}), False) == ()


def test_an_identity_stage_gives_what_it_gets() -> None:
    model = trained()
    rebuild(model, 2, WAYS["identity"])
    x = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.stages[2].forward(((0, 9), 0, 2), x, save=False), x)


def test_random_outputs_are_the_only_new_ones() -> None:
    model = trained()
    mean = (model.stages[1].weights.detach() + model.stages[3].weights.detach()) / 2
    rebuild(model, 2, WAYS["blend-random-outputs"], draw=1)
    target = model.stages[2]
    assert not any(map(torch.equal, residual_outputs(target, target.weights), residual_outputs(target, mean)))
    changed = int((target.weights.detach() != mean).sum())
    assert changed == sum(view.numel() for view in residual_outputs(target, mean))


def test_every_loss_has_random_weights_of_its_own() -> None:
    made = []
    for draw in (1, 2, 1):
        model = trained()
        rebuild(model, 2, WAYS["random"], draw=draw)
        made.append(model.stages[2].weights.detach().clone())
    assert torch.equal(made[0], made[2])
    assert not torch.equal(made[0], made[1])


def test_optimisers() -> None:
    for policy, rows in (("blended", (0, 1)), ("second-moment", (1,))):
        model = trained()
        moments = [stage.moments.view(2, -1) for stage in model.stages]
        expected = {row: (moments[1][row] + moments[3][row]) / 2 for row in rows}
        rebuild(model, 2, WAYS["uniform"], optimiser=policy)
        assert model.stages[2].updates == 3
        for row, mean in expected.items():
            torch.testing.assert_close(moments[2][row], mean)
        assert bool(moments[2][0].any()) == (policy == "blended")
        model.train(4)
