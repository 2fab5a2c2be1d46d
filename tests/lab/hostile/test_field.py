"""What is measured of a swarm under attack, where a member that misbehaves writes traces, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ftnode.lab.hostile.field import TRAITOR, USUAL, Field
from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story, Told
from ftnode.protocol.words.codec import to_plain
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View

A, B, C = Peer("a", 1), Peer("b", 1), Peer("c", 1)
NAMES = {"v1": A, "v2": B, TRAITOR: C}


def view(lineage: str, number: int, *holders: Peer) -> View:
    groups = tuple((peer,) for peer in holders)
    return View("r", Lineage(lineage, 0, 3), number, "", holders[0], groups, holders, (0,) * len(groups), "")


def told(node: str, at: float, what: str, **fields: Any) -> Told:
    return Told(node, {"t": at, "k": what, **fields})


def field_of(*news: Told) -> Field:
    story = Story()
    story.peers = dict(NAMES)
    for each in news:
        story.take(each)
    trial = cast(Trial, SimpleNamespace(story=story))
    return Field(trial, USUAL.manifest(), 1.0, outsiders={TRAITOR})


def test_the_view_is_that_of_honest_volunteers() -> None:
    """A member that was cut off goes on alone, in a lineage of its own."""
    shared, alone = view("l", 3, A, B, B), view("m", 4, C, C, C)
    found = field_of(
        told("v1", 1.0, "view", view=to_plain(shared)), told(TRAITOR, 2.0, "view", view=to_plain(alone)),
    )  # fmt: skip
    assert found.view == shared and found.trial.story.view == alone


def test_steps_of_a_member_that_goes_on_alone_do_not_count() -> None:
    steps = [told(node, 1.0, "commit", step=1, skipped=skipped) for node, skipped in (("v1", False), ("v2", True))]
    found = field_of(*steps, told(TRAITOR, 2.0, "commit", step=2, skipped=False))
    assert [each.node for each in found._commits()] == ["v1"]


def test_who_is_given_up_by_an_honest_leader_is_lost_and_who_moves_is_not() -> None:
    found = field_of(
        told("v1", 1.0, "note", kind="lost", text="before", fields={"peer": "a"}),
        told("v1", 3.0, "note", kind="lost", text="silent", fields={"peer": "b"}),
        told("v1", 3.0, "note", kind="move", text="another stage needs it", fields={"peer": "a"}),
        told(TRAITOR, 4.0, "note", kind="lost", text="a lie", fields={"peer": "a"}),
    )
    assert found._lost(2.0) == {"v2"}
