"""What an attack came to, and how it is told."""

from __future__ import annotations

import json

import pytest

from ftnode.lab.hostile import hostile
from ftnode.lab.hostile.attacks import ATTACKS
from ftnode.lab.hostile.outcome import Measured, finding, outcome_of
from ftnode.lab.hostile.traitor import WAYS
from ftnode.protocol.words.errors import UserError


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (Measured(4.0, 4.0, 4.0), "held"),
        (Measured(4.0, 3.6, 3.6), "held"),
        (Measured(4.0, 9.0, 9.0), "held"),
        (Measured(4.0, 3.5, 4.0), "degraded"),
        (Measured(4.0, 4.0, 3.5), "degraded"),
        (Measured(4.0, 0.1, 4.0), "degraded"),
        (Measured(4.0, 4.0, 2.0), "degraded"),
        (Measured(4.0, 4.0, 4.0, removed=("v1",)), "degraded"),
        (Measured(4.0, 4.0, 4.0, harm="3 connections"), "degraded"),
        (Measured(4.0, 4.0, 4.0, seen="1 MB of trace"), "held"),
        (Measured(4.0, 0.0, 4.0), "broken"),
        (Measured(4.0, 4.0, 1.9), "broken"),
        (Measured(4.0, 4.0, 0.0), "broken"),
        (Measured(4.0, 4.0, 4.0, ended=("v1",)), "broken"),
        (Measured(0.0, 0.0, 0.0), "broken"),
    ],
)
def test_outcome(found: Measured, outcome: str) -> None:
    assert outcome_of(found) == outcome


def test_a_finding_names_who_was_lost_and_what_was_reached() -> None:
    found = Measured(4.0, 4.0, 4.0, removed=("v1", "v2"), ended=("v3",), harm="harm", seen="seen")
    assert finding(found) == "v1, v2 removed; v3 ended; harm; seen"
    assert finding(Measured(4.0, 4.0, 4.0)) == ""


def test_the_shape_of_the_json() -> None:
    figures = hostile.as_figures({"flood": Measured(4.0, 3.12345, 4.0, harm="much"), "deaf-member": Measured(4, 4, 4)})
    row = {"name": "flood", "rate_before": 4.0, "rate_during": 3.123, "rate_after": 4.0, "outcome": "degraded"}
    assert json.loads(json.dumps(figures))["attacks"][0] == row
    assert [each["outcome"] for each in figures["attacks"]] == ["degraded", "held"]
    assert figures["findings"] == {"flood": "much"}


def test_a_row_has_the_three_rates_and_the_outcome() -> None:
    (plain,) = hostile.as_figures({"flood": Measured(4.0, 3.0, 2.5)})["attacks"]
    assert hostile.row(plain, "so").split() == ["flood", "4.00", "3.00", "2.50", "degraded", "so"]


def test_attacks_are_chosen_by_name() -> None:
    assert [attack.name for attack in hostile.chosen_attacks(["flood"])] == ["flood"]
    assert hostile.chosen_attacks([]) == ATTACKS
    with pytest.raises(UserError, match="no attack is called fire"):
        hostile.chosen_attacks(["flood", "fire"])


def test_every_attack_has_a_name_of_its_own_and_a_way_that_there_is() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert {attack.ground.way for attack in ATTACKS} <= {"", *WAYS}
