"""Which way the weights of a stage that is not here go from one copy to the next (rule 53): an honest holder's go
against what its visits give, and those of one that trains with something else do not, whenever it is asked."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

import numpy as np
import pytest
import torch

from ftnode.models.course import SIDE, TILES, Tile, course, tells, tiles
from ftnode.models.optimiser import OptimiserConfig
from ftnode.protocol.recovery.step_trace import COURSE_EXPECTED, GROWTH_MAX, enough, grown_by_course
from tests.node.compute.test_retrace import DONE_AGAIN, STAGE, Trial, config_of

BETWEEN: Final = 10
"""Steps from one copy to the next."""


class Copies(Trial):
    """Of a holder that trains otherwise, but rightly in the steps on whose visits it is tried, with `adapts`."""

    def __init__(self, lie: str, adapts: bool = False, **more: Any) -> None:
        self.otherwise, self.adapts = lie, adapts
        config = config_of(more.pop("optimiser", "adam"))
        super().__init__(replace(config, **more), lie=lie)

    def copy(self) -> Any:
        """Its version."""
        self.lie = "" if self.adapts else self.otherwise
        self.makes_step(DONE_AGAIN)
        self.lie = self.otherwise
        return self.version

    def between(self, before: Any = None, late: int = 0) -> dict[str, Any]:
        """`late`: so many steps after the one that the copy is of a visit is done again on it; 0: none is."""
        before = before or self.copy()
        for number in range(1, BETWEEN):
            self.makes_step(late=number == late)
        return self.went(before, self.copy())

    def went(self, before: Any, after: Any) -> dict[str, Any]:
        return self.us.call("course", stage=STAGE, before=before, after=after)


def deviations(lie: str, **more: Any) -> float:
    answer = Copies(lie, **more).between()
    assert answer["fault"] == ""
    return float(answer["value"])


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
@pytest.mark.parametrize("lie", ["", "times1.5", "times1000"])
def test_an_honest_holder_s_weights_go_against_what_its_visits_give(lie: str, optimiser: str) -> None:
    assert deviations(lie, optimiser=optimiser) > 3 * COURSE_EXPECTED


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
@pytest.mark.parametrize("lie", ["turned", "noise", "nothing"])
def test_those_of_one_that_trains_otherwise_do_not(lie: str, optimiser: str) -> None:
    assert deviations(lie, optimiser=optimiser) < COURSE_EXPECTED


def evidence(lie: str, copies: int, **more: Any) -> float:
    trial, found = Copies(lie, steps=200, learning_rate=3e-3, **more), 0.0
    before = trial.copy()
    for _ in range(copies):
        answer = trial.between(before, late=2)
        found, before = grown_by_course(found, answer["value"]), trial.version
    return found


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_nor_do_they_where_it_trains_rightly_in_the_steps_that_are_looked_at(optimiser: str) -> None:
    """Of which it lends samples, and knows."""
    assert enough(evidence("turned", 5, optimiser=optimiser, adapts=True))
    assert evidence("", 5, optimiser=optimiser) == 0.0


def test_a_visit_of_a_later_step_tells_noise_in_all_but_one_from_an_honest_holder() -> None:
    """By the step that the copy is of alone it does not: that one has its part in the way."""
    honest, noise = (
        [Copies(lie, True, steps=200, learning_rate=3e-3).between(late=late)["value"] for late in (0, 2, 4)]
        for lie in ("", "noise")
    )
    assert min(honest) > COURSE_EXPECTED and max(noise[1:]) < COURSE_EXPECTED, (honest, noise)


def test_of_a_visit_that_gives_something_else_than_was_passed_on_nothing_is_kept() -> None:
    """Somebody beside shows other tensors, so that an honest holder would look like a liar."""
    trial = Copies("", steps=200)
    before, shows = trial.copy(), trial.shows

    def others(microbatch: int) -> None:
        shows(microbatch)
        gradient = np.frombuffer(trial.us.arena._map.view(9), dtype=np.float32)
        trial.us.arena._map.view(9)[: gradient.nbytes] = (-gradient).tobytes()

    trial.shows = others  # type: ignore[method-assign]
    trial.makes_step()
    with pytest.raises(AssertionError):  # it is far away
        trial.makes_step(late=True)
    trial.shows = shows  # type: ignore[method-assign]
    assert trial.us.backend.recounting._tried[STAGE].step == before[0] + 1  # type: ignore[attr-defined]


def test_who_trains_in_these_alone_is_believed() -> None:
    """All of the way is that of one step. Not defended: it does a tenth of its work, and no harm."""
    assert deviations("nothing", adapts=True) > COURSE_EXPECTED


def test_it_takes_three_copies_to_be_enough_and_nobody_is_told_of_after_one() -> None:
    evidence, copies = 0.0, 0
    while not enough(evidence):
        evidence, copies = grown_by_course(evidence, 0.0), copies + 1
    assert copies == 3 and grown_by_course(0.0, -100.0) == GROWTH_MAX
    assert grown_by_course(1.0, 2 * COURSE_EXPECTED) == 0.0


def test_of_weights_that_hardly_move_nothing_is_said() -> None:
    """As int8 they are rounded by more than that."""
    answer = Copies("noise", learning_rate=1e-6).between()
    assert answer["fault"] == "too little happened"


def test_of_other_copies_than_the_last_two_nothing_is_said() -> None:
    trial = Copies("")
    first, second, third = trial.copy(), trial.copy(), trial.copy()
    assert trial.went(second, third)["fault"] == ""
    assert [trial.went(*pair)["fault"] for pair in ((first, third), (first, second), (third, third))] == [
        "too little happened"
    ] * 3


# -- the numbers


def test_tiles_are_of_all_matrices_before_there_are_two_of_any() -> None:
    entries = {"norm": (0, (600,)), "narrow": (600, (40, 600)), "large": (24_600, (700, 800))}
    found = tiles(entries, Random(1))
    assert len(found) == TILES - 1, "three of the narrow one, and twelve of the large one"
    assert {found[0].begin >= 24_600, found[1].begin >= 24_600} == {True, False}
    for tile in found:
        offset, shape = entries["large" if tile.begin >= 24_600 else "narrow"]
        top, left = divmod(tile.begin - offset, shape[1])
        assert (tile.rows, tile.width) == (min(SIDE, shape[0]), min(SIDE, shape[1]))
        assert 0 <= top <= shape[0] - tile.rows and 0 <= left <= shape[1] - tile.width


def test_a_tile_is_a_part_of_its_matrix() -> None:
    flat = torch.arange(100.0)
    assert torch.equal(Tile(12, 10, 3, 4).of(flat), flat.view(10, 10)[1:4, 2:6])
    assert torch.equal(Tile(2, 10, 3, 4).of(flat[10:]), flat.view(10, 10)[1:4, 2:6]), "also of a part of a tensor"


def test_by_chance_it_is_one_standard_deviation_whatever_the_tiles_are() -> None:
    torch.manual_seed(1)
    steep = torch.randn(64, 1) @ torch.randn(1, 48)
    found = torch.tensor([
        course([torch.zeros(64, 48)], [torch.randn(64, 48) + 50 * steep], [torch.randn(64, 48)]) for _ in range(200)
    ])  # fmt: skip
    assert abs(float(found.mean())) < 0.25 and 0.85 < float(found.std()) < 1.15


def test_what_goes_nowhere_goes_in_no_direction() -> None:
    assert course([torch.ones(4, 4)], [torch.ones(4, 4)], [torch.randn(4, 4)]) == 0.0


def test_how_far_weights_go_follows_from_the_rate() -> None:
    weights = [torch.full((SIDE, SIDE), 0.05)]

    def told(rate: float, last: int) -> bool:
        return tells(OptimiserConfig(rate, 0, decay="constant"), 0, last, weights)

    assert told(1e-3, 1) and not told(1e-4, 1) and told(1e-4, 30)
    weights = [torch.full((16, 16), 0.05)]
    assert not told(1e-3, 1), "too few numbers"
