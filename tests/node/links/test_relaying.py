"""Whether a node relays: a table of the owner's word, the line and the router."""

from __future__ import annotations

import pytest

from ftnode.node.links.reachability import Reach
from ftnode.node.links.relaying import SLOW_RATE, why_not
from ftnode.node.machine.metered import says_metered

REACHED, BEHIND, UNSEEN = (Reach(kind, (), "") for kind in ("direct", "punched", "unknown"))


@pytest.mark.parametrize(
    ("wish", "reach", "up", "metered", "reason"),
    [
        ("auto", REACHED, 0.0, False, ""),
        ("auto", REACHED, SLOW_RATE, False, ""),
        ("auto", REACHED, SLOW_RATE - 1, False, "its line is slow"),
        ("auto", REACHED, 0.0, True, "its line is metered"),
        ("auto", BEHIND, 0.0, False, "others cannot dial it"),
        ("auto", UNSEEN, 0.0, False, "others cannot dial it"),
        ("auto", None, 0.0, False, "others cannot dial it"),
        ("on", REACHED, 1.0, True, ""),
        ("on", BEHIND, 0.0, False, "others cannot dial it"),
        ("off", REACHED, 0.0, False, "its owner does not want it to"),
    ],
)
def test_whether_it_relays(wish: str, reach: Reach | None, up: float, metered: bool, reason: str) -> None:
    assert why_not(wish, reach, up, metered) == reason


@pytest.mark.parametrize("answer", ["u 1\n", "u 3"])
def test_networkmanager_knows_or_guesses_that_a_line_is_metered(answer: str) -> None:
    assert says_metered(answer)


@pytest.mark.parametrize("answer", ["u 0\n", "u 2", "u 4", "", "s 1"])
def test_all_else_is_not_metered(answer: str) -> None:
    assert not says_metered(answer)
