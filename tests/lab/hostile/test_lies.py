"""Lies of a compute process, told by the real one about a real stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftnode.lab.hostile import lying_compute
from ftnode.lab.hostile.lies import LIES, Told, told
from ftnode.models.boundary import ActivationCodec
from ftnode.models.tensors import digest
from ftnode.node.compute import exports
from ftnode.node.compute.group_gradients import GroupGradients
from ftnode.node.compute.torch_backend import TorchStages


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("turned", Told("gradients", "turned")),
        ("times1.5", Told("gradients", "times1.5")),
        ("activations-noise", Told("activations", "noise")),
        (
            "gradients-turned,share=0.1,from=200,order=/a/b,agrees=1",
            Told("gradients", "turned", 0.1, 200, "/a/b", True),
        ),
        ("donors-turned,order=/x", Told("donors", "turned", order="/x")),
        ("gradients-noise,hides=1,adapts=1", Told("gradients", "noise", hides=True, adapts=True)),
    ],
)
def test_a_lie_in_words(text: str, found: Told) -> None:
    assert told(text) == found


@pytest.mark.parametrize("text", ["", "fire", "weights-turned", "turned,often=1", "turned,share=much"])
def test_words_that_are_no_lie(text: str) -> None:
    with pytest.raises(ValueError):
        told(text)


def test_it_lies_once_it_is_told_to_and_not_before(tmp_path: Path) -> None:
    order = tmp_path / "order"
    said = told(f"turned,from=3,order={order}")
    assert not said.due(5)
    order.touch()
    assert said.due(5) and said.due(3) and not said.due(2) and told("turned").due(0)


def test_about_a_tenth_of_the_visits_is_chosen_and_the_same_ones_each_time() -> None:
    said, visits = told("turned,share=0.1"), [(step, m, 1) for step in range(200) for m in range(8)]
    chosen = [visit for visit in visits if said.chosen(*visit)]
    assert 0.08 < len(chosen) / len(visits) < 0.12
    assert chosen == [visit for visit in visits if said.chosen(*visit)]


@pytest.mark.parametrize("name", LIES)
def test_each_lie_changes_the_numbers_and_noise_keeps_their_size(name: str) -> None:
    true, before = torch.randn(1000), torch.randn(1000)
    given = true.clone()
    LIES[name](given, before)
    assert not torch.equal(given, true)
    if name in ("turned", "noise"):
        assert torch.isclose(given.norm(), true.norm(), rtol=1e-4)


@pytest.fixture
def as_before() -> Iterator[None]:
    """What a lie overrules is put back."""
    places: list[tuple[Any, str]] = [
        (GroupGradients, "open"), (TorchStages, "reduce"), (TorchStages, "backward"), (TorchStages, "forward"),
        (TorchStages, "weigh"), (ActivationCodec, "encode"), (exports, "state_of"), (exports, "digest"),
    ]  # fmt: skip
    honest = [(owner, name, getattr(owner, name)) for owner, name in places]
    yield
    for owner, name, value in honest:
        setattr(owner, name, value)


@pytest.mark.usefixtures("as_before")
def test_the_weights_that_it_lends_have_a_digest_that_fits() -> None:
    """So nobody sees it by comparing the two."""

    class Held:
        weights = torch.arange(8.0)

        def state(self, parts: str) -> torch.Tensor:
            return self.weights

    honest_digest, overruled = digest(Held.weights), exports
    lying_compute.lying(told("donors-turned"))
    lent = overruled.state_of(Held(), "weights")  # type: ignore[arg-type]
    assert torch.equal(lent, -Held.weights) and torch.equal(Held.weights, torch.arange(8.0))
    lied: Any = overruled
    assert lied.digest(Held.weights) == digest(-Held.weights) != honest_digest


@pytest.mark.usefixtures("as_before")
def test_of_some_visits_only_those_that_are_chosen_give_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        gradient = torch.zeros(4)

    stages: Any = object.__new__(TorchStages)
    monkeypatch.setattr(TorchStages, "_held", lambda self, stage: Held)

    def backward(self: Any, stage: int, step: int, attempt: Any, microbatch: int, visit: int, **more: Any) -> str:
        Held.gradient.add_(1.0)
        return "answer"

    monkeypatch.setattr(TorchStages, "backward", backward)
    said = told("turned,share=0.5")
    lying_compute.lying(said)
    expected = 0.0
    for microbatch in range(20):
        assert stages.backward(stage=1, step=3, attempt=[0, 1], microbatch=microbatch, visit=1) == "answer"
        expected += -1.0 if said.chosen(3, microbatch, 1) else 1.0
        assert torch.equal(Held.gradient, torch.full((4,), expected))
    assert -20 < expected < 20


@pytest.mark.usefixtures("as_before")
def test_of_a_stage_that_it_holds_alone_it_gives_something_else_once_an_attempt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Held:
        gradient = torch.ones(4)
        ledger = SimpleNamespace(reduced=False, spoiled="")
        version = SimpleNamespace(step=3)

    def reduce(self: Any, stage: int, step: int, attempt: Any) -> str:
        Held.ledger.reduced = True
        return "answer"

    stages: Any = object.__new__(TorchStages)
    monkeypatch.setattr(TorchStages, "_held", lambda self, stage: Held)
    monkeypatch.setattr(TorchStages, "reduce", reduce)
    order = tmp_path / "order"
    lying_compute.lying(told(f"gradients-turned,order={order}"))
    stages.reduce(1, 4, [0, 1])
    assert torch.equal(Held.gradient, torch.ones(4))
    order.touch()
    Held.ledger.reduced = False
    for _ in range(2):
        assert stages.reduce(1, 4, [0, 2]) == "answer" and torch.equal(Held.gradient, -torch.ones(4))
