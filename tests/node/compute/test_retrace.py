"""How a stage that is not here was trained in a step, by samples of its state and some of the step's visits (rule 53):
a holder is believed, and one that trains it wrongly is not."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Final

import pytest
import torch

from ftnode.lab.hostile.lies import LIES
from ftnode.models.state_plan import StatePlan
from ftnode.models.state_sample import NUMBERS, key_of, parts_of, pieces, sample_numbers
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.state_shape import shape_of
from ftnode.protocol.recovery.step_trace import (
    EVIDENCE_MAX,
    GROWTH_TIMES,
    SHARE_EXPECTED,
    WORSE_THAN_ANY,
    enough,
    grown,
)
from ftnode.protocol.wire.frames import SAMPLE
from tests.node.compute.computing import ATTEMPT, CONFIG, STAGES, Refused, direct, exported
from tests.node.compute.test_recount import shown, visits

STAGE: Final = 2
MICROBATCHES: Final = 8
DONE_AGAIN: Final = 2
KEY: Final = 12_345


def config_of(optimiser: str = "adam", precision: str = "float32", dim: int = 32) -> ComputeConfig:
    return replace(
        CONFIG, optimiser=optimiser, precision=precision, dim=dim, hidden=48, context=32, layers=6, weight_decay=0.1,
        microbatches=MICROBATCHES, live_activations=MICROBATCHES, slot_bytes=2 * 32 * dim * 8, slots=14, clip=0.1,
        boundary="float64" if precision == "float64" else "float32",
        boundary_gradients="float64" if precision == "float64" else "float32",
    )  # fmt: skip


class Trial:
    """A holder that trains, and a keeper that is shown visits and lent copies and samples."""

    def __init__(self, config: ComputeConfig, steps: int = 3, lie: str = "") -> None:
        torch.manual_seed(1)  # what noise is drawn from
        self.him, self.us, self.lie = direct(config), direct(config, range(1)), lie
        self.samples: list[dict[str, Any]] = []
        self.step = 0
        for _ in range(steps - 1):
            self.makes_step()

    @property
    def stage(self) -> Any:
        return self.him.backend._stages[STAGE]  # type: ignore[attr-defined]

    def makes_step(self, looked_at: int = 0, late: bool = False) -> None:
        """Visits of so many microbatches are done again; `late`: of one, on the copy that was lent last."""
        self.step += 1
        for microbatch in range(MICROBATCHES):
            visits(self.him, microbatch, self.step)
            if microbatch < looked_at:
                self.does_again(microbatch)
            if late and not microbatch:
                self.tries(microbatch, 0.8)
        true = self.stage.gradient.clone()
        if self.lie:
            LIES[self.lie](self.stage.gradient, self.before if self.step > 1 else true)
        self.before = true
        common = {"step": self.step, "attempt": ATTEMPT}
        for stage in range(STAGES + 1):
            self.him.call("reduce", **common, stage=stage)
            self.him.call("apply", **common, stage=stage, commit=f"c{self.step}", skipped=False)

    def does_again(self, microbatch: int) -> None:
        header, chunks = exported(self.him, STAGE, self.step - 1, "weights", "int8", freeze=True)
        self.version, self.chunks = header["version"], chunks
        self.tries(microbatch, 0.1)

    def tries(self, microbatch: int, most: float) -> None:
        """It is at most so far away."""
        for index, chunk in enumerate(self.chunks):
            self.us.arena._map.view(0)[: len(chunk)] = chunk
            self.us.call("copy_chunk", stage=STAGE, index=index, slot=0, length=len(chunk), encoding="int8")
        self.shows(microbatch)
        answer = self.us.call(
            "recount", stage=STAGE, step=self.step, attempt=ATTEMPT, microbatch=microbatch, visit=STAGE,
            of=["him", 1, False], input=1, gradient=9, passed_on=2, handed_back=8, copy=self.version, key=KEY,
        )  # fmt: skip
        assert answer["fault"] == "" and answer["value"] < most

    def shows(self, microbatch: int) -> None:
        for slot in (1, 2, 8, 9):
            shown(self.him, self.us, slot)

    def sampled(self) -> None:
        header, chunks = exported(self.him, STAGE, self.step, parts_of(KEY), freeze=True)
        after = bool(self.samples)
        self.samples.append(header)
        for index, chunk in enumerate(chunks):
            self.us.arena._map.view(0)[: len(chunk)] = chunk
            self.us.call(
                "sample_chunk", stage=STAGE, key=KEY, after=after, index=index, slot=0, length=len(chunk)
            )  # fmt: skip

    def is_traced(self) -> None:
        self.sampled()
        self.makes_step(DONE_AGAIN)
        self.sampled()

    def away(self) -> float:
        """How far what went into the step is from what the visits give."""
        answer = self.us.call(
            "retrace", stage=STAGE, version=self.version, key=KEY,
            updates=[sample["step_count"] for sample in self.samples],
            rate_factors=[sample["rate_factor"] for sample in self.samples],
        )  # fmt: skip
        assert answer["fault"] == ""
        return float(answer["value"])


def evidence(away: float) -> float:
    """Of one step against a holder of whom some is known already; what there was of that is taken off."""
    return grown(2.0, away, DONE_AGAIN, MICROBATCHES) - 2.0


def tried(lie: str = "", optimiser: str = "adam", precision: str = "float32", **more: Any) -> float:
    trial = Trial(config_of(optimiser, precision), lie=lie, **more)
    trial.is_traced()
    return trial.away()


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
@pytest.mark.parametrize("lie", ["", "times1.5", "times1000"])
def test_an_honest_holder_is_believed_and_so_is_one_whose_gradient_is_only_too_large(lie: str, optimiser: str) -> None:
    """The optimiser makes the same step of it, or clipping does."""
    assert evidence(tried(lie, optimiser)) < 0.0


def test_so_it_is_in_float64() -> None:
    assert evidence(tried(precision="float64")) < 0.0


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
@pytest.mark.parametrize("lie", ["turned", "noise", "nothing"])
def test_who_trains_another_way_is_not(lie: str, optimiser: str) -> None:
    away = tried(lie, optimiser)
    assert evidence(away) > 0.8 * GROWTH_TIMES * SHARE_EXPECTED and away < WORSE_THAN_ANY


def test_who_trains_rightly_in_the_step_that_is_looked_at_is_believed() -> None:
    """It knows from the request which that is. Not defended."""
    trial = Trial(config_of(), lie="turned")
    trial.lie = ""
    trial.is_traced()
    assert evidence(trial.away()) < 0.0


def changes(trial: Trial, what: str) -> None:
    stage = trial.stage
    if what == "weights":
        stage.weights.add_(1e-3)
    elif what == "second moments":
        stage.moments[stage.weights.numel() :].mul_(2.0)
    elif what == "negative moments":
        stage.moments[stage.weights.numel() :].neg_()
    elif what == "no number":
        stage.moments.fill_(torch.nan)
    else:
        stage.updates += 1


@pytest.mark.parametrize("what", ["weights", "second moments", "negative moments", "no number", "updates"])
def test_an_update_that_does_not_follow_from_the_gradient_is_seen(what: str) -> None:
    trial = Trial(config_of())
    trial.sampled()
    trial.makes_step(DONE_AGAIN)
    changes(trial, what)
    trial.sampled()
    assert enough(0.0, trial.away())


def test_a_sample_of_other_weights_than_the_copy_is_seen() -> None:
    trial = Trial(config_of())
    trial.stage.weights.neg_()
    trial.sampled()
    trial.stage.weights.neg_()
    trial.makes_step(DONE_AGAIN)
    trial.sampled()
    assert enough(0.0, trial.away())


def test_without_visits_there_is_nothing_to_compare_with() -> None:
    trial = Trial(config_of())
    trial.is_traced()
    assert trial.away() > 0.0
    with pytest.raises(Refused, match="sample"):
        trial.away()
    trial.samples.clear()
    trial.version = [trial.step, f"c{trial.step}", ATTEMPT]
    trial.sampled()
    trial.makes_step()
    trial.sampled()
    assert trial.away() == 0.0


@pytest.mark.parametrize("lie,trials", [("noise", 5), ("nothing", 4), ("turned", 3)])
def test_such_a_holder_goes_after_some_steps(lie: str, trials: int) -> None:
    away, found = tried(lie), 0.0
    for _ in range(trials):
        found = grown(found, away, DONE_AGAIN, MICROBATCHES)
    assert enough(found, away) and not enough(grown(0.0, away, DONE_AGAIN, MICROBATCHES), away)
    assert grown(EVIDENCE_MAX, 1.0 - 2.0 * SHARE_EXPECTED, DONE_AGAIN, DONE_AGAIN) < EVIDENCE_MAX


# -- which numbers


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_a_sample_is_the_same_numbers_of_all_rows_of_the_state(optimiser: str) -> None:
    config = config_of(optimiser, dim=128)
    plan: StatePlan = config.state_plan
    drawn = pieces(plan, STAGE, KEY)
    assert NUMBERS <= sum(piece.numbers for piece in drawn) < 2 * NUMBERS < plan.numbers(STAGE, "weights")
    assert sample_numbers(drawn) == shape_of(config).numbers(STAGE, parts_of(KEY))
    assert drawn == pieces(plan, STAGE, KEY) != pieces(plan, STAGE, KEY + 1)
    taken = [range(begin, begin + piece.numbers) for piece in drawn for begin in piece.begins]
    numbers = {number for each in taken for number in each}
    assert len(numbers) == sample_numbers(drawn), "none twice"
    assert max(numbers) < plan.numbers(STAGE, "all")


def test_of_a_small_stage_it_is_all_its_matrices() -> None:
    plan = config_of(dim=8).state_plan
    matrices = [prod(shape) for _, shape in plan.entries(STAGE, "weights").values() if len(shape) == 2]
    drawn = pieces(plan, STAGE, KEY)
    assert sum(piece.numbers for piece in drawn) == sum(matrices)
    assert len({piece.tile for piece in drawn}) == len(matrices)


@pytest.mark.parametrize("key", [0, 7, 2**32 - 1])
def test_both_sides_name_samples_alike(key: int) -> None:
    assert key_of(parts_of(key)) == key and SAMPLE.fullmatch(parts_of(key))


@pytest.mark.parametrize(
    "parts", ["weights", "all", "sample-", "sample--1", "sample-1.5", f"sample-{2**32}", "sample-²"]
)
def test_what_is_no_sample(parts: str) -> None:
    assert key_of(parts) is None
