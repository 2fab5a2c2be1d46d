"""An owner's vote to roll back, as its running node hears it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import trio

from ftnode.node.life import undo_requests
from ftnode.node.life.undo_requests import UndoRequests
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.events import Event, WantsUndo
from ftnode.protocol.words.messages import NO_STEP
from ftnode.protocol.words.types import RollbackOrder
from tests.protocol.pictures import picture
from tests.protocol.situations import VIEW, A, B, Past


class Core:
    """Takes votes up at once, and has an order when `most` are for one step."""

    def __init__(self, shown: Picture, votes: int = 1, most: int = 2) -> None:
        self.shown, self.votes, self.most, self.heard = shown, votes, most, list[Event]()

    def look(self) -> Picture:
        return self.shown

    def deliver(self, event: Event) -> None:
        assert isinstance(event, WantsUndo)
        self.heard.append(event)
        wanted = {event.step: frozenset([A, B][: self.votes])} if event.step != NO_STEP else {}
        self.shown = self.shown._replace(undo_votes=wanted, wants_undo=event.step if wanted else None)
        if self.votes >= self.most and wanted:
            self.shown = self.shown._replace(order=RollbackOrder(1, event.step, members=True), wants_undo=None)


def asked(core: Core, to: object) -> Mapping[str, Any]:
    async def ask() -> Mapping[str, Any]:
        return await UndoRequests(core.look, core.deliver).handlers["undo"]({"do": "undo", "to": to})

    return trio.run(ask)


def member(**changes: Any) -> Picture:
    return picture(view=VIEW, me=A, history=Past(50), **changes)


def test_a_vote_is_told_to_the_core_and_counted() -> None:
    core = Core(member())
    assert asked(core, 40) == {"step": 50, "votes": {"40": 1}, "voters": 3, "ordered": False}
    assert asked(core, None) == {"step": 50, "votes": {}, "voters": 3, "ordered": False}
    assert core.heard == [WantsUndo(40), WantsUndo(NO_STEP)]


def test_the_last_one_that_is_needed_makes_it_an_order() -> None:
    assert asked(Core(member(), votes=2), 40)["ordered"] is True


def test_who_wants_what_is_ordered_already_does_not_want_another_order() -> None:
    """The second node of a home, where the vote of the first made it an order."""
    core = Core(member(order=RollbackOrder(1, 40, members=True)))
    assert asked(core, 40)["ordered"] is True and not core.heard
    assert asked(core, 30)["ordered"] is False and core.heard == [WantsUndo(30)]


def test_a_vote_is_taken_back_also_by_who_has_none_any_more() -> None:
    core = Core(picture(view=replace(VIEW, voters=(B,)), me=A, history=Past(50), wants_undo=40))
    assert "error" not in asked(core, None) and core.heard == [WantsUndo(NO_STEP)]


@pytest.mark.parametrize(
    ("shown", "to", "why"),
    [
        (member(), 50, "the run is at step 50: nothing after step 50 can be undone"),
        (member(), -1, "a step is a whole number"),
        (member(), True, "a step is a whole number"),
        (member(), "40", "a step is a whole number"),
        (picture(view=None, me=A, history=Past(50)), 40, "it has no vote"),
        (picture(view=replace(VIEW, voters=(B,)), me=A, history=Past(50)), 40, "it has no vote"),
    ],
)
def test_what_cannot_be_wanted_is_refused_and_nothing_is_heard(shown: Picture, to: object, why: str) -> None:
    core = Core(shown)
    assert why in asked(core, to)["error"] and not core.heard


def test_a_core_that_does_not_take_it_up_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo_requests, "SECONDS", 0.05)
    core = Core(member())
    monkeypatch.setattr(core, "deliver", core.heard.append)
    assert asked(core, 40)["votes"] == {}
