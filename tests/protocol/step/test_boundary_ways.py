"""Whose activations point elsewhere is doubted at once, and honest ones are not (rule 42)."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from ftnode.protocol.step import boundary_ways as module
from ftnode.protocol.step.boundary_norms import BoundaryNorms, Source
from ftnode.protocol.step.boundary_ways import Ways
from ftnode.protocol.step.doubts import SEEN_MIN
from ftnode.protocol.words.types import Direction, Peer

NUMBERS: Final = 16
SEEDS: Final = 200


class Honest:
    """As they were measured (decision 0061): cosines of 0.98, and one in a hundred as low as 0.6; the way drifts."""

    def __init__(self, seed: int, drift: float = 0.02) -> None:
        self.chance, self.drift = Random(seed), drift
        self.shared = [self.chance.gauss(0.0, 1.0) for _ in range(NUMBERS)]

    def way(self, sign: int = 1) -> tuple[int, ...]:
        self.shared = [number + self.chance.gauss(0.0, self.drift) for number in self.shared]
        spread = 0.8 if self.chance.random() < 0.01 else 0.2
        return tuple(sign * round(30 * (number + self.chance.gauss(0.0, spread))) for number in self.shared)

    def noise(self) -> tuple[int, ...]:
        return tuple(round(30 * self.chance.gauss(0.0, 1.0)) for _ in range(NUMBERS))


def trained(honest: Honest, tensors: int = 200) -> Ways:
    ways = Ways()
    assert [reason for reason in (ways.see(honest.way()) for _ in range(tensors)) if reason] == []
    return ways


def test_honest_ways_that_spread_and_drift_are_not_doubted() -> None:
    for seed in range(SEEDS):
        trained(Honest(seed))


def test_what_is_turned_is_doubted_at_once() -> None:
    for seed in range(SEEDS):
        honest = Honest(seed)
        assert "turned away" in trained(honest).see(honest.way(-1))


def test_noise_is_doubted_now_and_then() -> None:
    """It points anywhere: with eight tensors, in two of five at least."""
    doubted = 0
    for seed in range(SEEDS):
        honest = Honest(seed)
        ways = trained(honest)
        doubted += any(ways.see(honest.noise()) for _ in range(8))
    assert doubted >= 0.4 * SEEDS


def one_of_two_lies(seed: int) -> tuple[int, int]:
    """How often each of two makers is doubted, of 200 tensors each: the honest one, and one that turns all of its."""
    honest, said = Honest(seed), [0, 0]
    ways = trained(honest)
    for _ in range(200):
        for maker, sign in enumerate((1, -1)):
            said[maker] += bool(ways.see(honest.way(sign)))
    return said[0], said[1]


def test_one_of_two_makers_does_not_bend_what_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(one_of_two_lies(seed) == (0, 200) for seed in range(20))
    monkeypatch.setattr(module, "LITTLE", 1.0)
    assert any(one_of_two_lies(seed) != (0, 200) for seed in range(20)), "planted"


def test_what_has_turned_for_all_is_usual_again_after_a_while() -> None:
    honest = Honest(1)
    ways = trained(honest)
    for _ in range(100):
        ways.see(honest.way(-1))
    assert not any(ways.see(honest.way(-1)) for _ in range(100))


def test_at_first_nothing_is_usual_and_zeros_and_gradients_have_no_way() -> None:
    honest, ways = Honest(2), Ways()
    assert not any(ways.see(honest.way((-1) ** number)) for number in range(SEEN_MIN))
    ways = trained(honest)
    assert ways.see((0,) * NUMBERS) == "" == ways.see(())


def test_each_place_has_ways_of_its_own_beside_its_norms() -> None:
    norms, honest, other = BoundaryNorms(), Honest(3), Honest(4)
    for _ in range(50):
        for visit, source in ((1, honest), (2, other)):
            for name in "ab":
                where = Source(Peer(name, 1), visit, visit, Direction.FORWARD)
                assert norms.see(where, 1.0, source.way()) == ""
    assert "turned away" in norms.see(Source(Peer("a", 1), 1, 1, Direction.FORWARD), 1.0, honest.way(-1))
