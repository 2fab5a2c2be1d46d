"""How members misbehave: what each way makes of the honest core's effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ftnode.lab.hostile import forgeries, traitor
from ftnode.lab.hostile.field import Ground
from ftnode.protocol.manifest.parse import settings
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.types import Attempt, Direction, Peer
from ftnode.protocol.words.view import Lineage, View

SETTINGS = settings(Ground().manifest())
A, B = Peer("a", 1), Peer("b", 2)
TRIED = Attempt(0, 1)
VIEW = View("r", Lineage("l", 0, 3), 0, "", A, ((A,), (B,), (B,)), (A, B), (0, 0, 0), "test")
BEGIN = forgeries.first_begin(VIEW, (), 1, SETTINGS)
BOUNDARY = ms.Boundary("l", 0, 1, TRIED, 0, 1, Direction.FORWARD, (A, B, B, A))
STORED = fx.Send(A, ms.Stored("l", 1, TRIED, 0, 1, Direction.FORWARD), None)
READY = fx.Send(A, ms.Ready("l", 0, 1, TRIED, (), 0.0, 0, None), None)
VOTE = fx.Send(A, ms.Accepted("l", 1, ms.Ballot(0, A), "digest"), None)
COMPUTE = fx.Compute(fx.Reduce(1, 1, TRIED))
HONEST = (STORED, READY, VOTE, COMPUTE)


def after(way: str, event: ev.Event, honest: Sequence[fx.Effect] = HONEST) -> list[fx.Effect]:
    return traitor.WAYS[way](event, lambda seen: list(honest))


@pytest.mark.parametrize(
    ("way", "left"),
    [
        ("idle", [STORED, READY, VOTE]),
        ("unready", [STORED, VOTE, COMPUTE]),
        ("abstaining", [STORED, READY, COMPUTE]),
        ("deaf", [*HONEST]),
        ("poisoning", [*HONEST]),
    ],
)
def test_what_is_left_of_the_honest_effects(way: str, left: list[fx.Effect]) -> None:
    assert after(way, ev.Wake()) == left


def test_the_deaf_member_drops_a_tensor_and_its_slot() -> None:
    assert after("deaf", ev.Received(A, BOUNDARY, 5)) == [fx.Release((5,))]


def test_who_hides_answers_nobody_that_asks_for_a_tensor() -> None:
    show = ms.Show("l", 0, 1, TRIED, ((0, 1, Direction.FORWARD),))
    assert after("hiding", ev.Received(A, show, None)) == [] and after("hiding", ev.Wake()) == [*HONEST]


def test_poison_is_named_in_the_step_that_begins() -> None:
    *honest, poison = after("poisoning", ev.Received(A, BEGIN, None))
    assert honest == [*HONEST] and isinstance(poison, fx.Send) and isinstance(poison.message, ms.Poisoned)
    assert (poison.to, poison.message.step, poison.message.attempt) == (A, BEGIN.step, BEGIN.attempt)


@pytest.mark.parametrize("way", ["idle", "deaf", "unready"])
def test_its_heartbeats_name_no_task_that_hangs(way: str) -> None:
    beat = forgeries.heartbeat(VIEW, 1, quorate=False)
    busy = ms.Heartbeat(beat.lineage, 0, False, 1, (), 99.0, False, (), (), "", ())
    assert after(way, ev.Wake(), [fx.Send(A, busy, None)]) == [fx.Send(A, beat, None)]


def test_who_will_abstain_stands_in_no_election_before() -> None:
    prepare = fx.Send(A, ms.Prepare("l", 1, ms.Ballot(1, B)), None)
    before = traitor.BEFORE[traitor.abstaining]
    assert before(ev.Wake(), lambda seen: [prepare, *HONEST]) == [*HONEST]


def test_it_is_honest_until_it_is_told(tmp_path: Path) -> None:
    seen: list[ev.Event] = []

    def nothing(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        seen.append(event)
        return []

    order = tmp_path / "order"
    core = traitor.traitor(nothing, order)(A, SETTINGS, Random(0))
    assert core.handle(ev.Wake(), 0.0) and not seen
    order.touch()
    assert core.handle(ev.Wake(), 1.0) == [] and len(seen) == 1


def test_who_does_no_work_is_ready_with_what_it_said_before() -> None:
    way, begin = traitor.Unworked(), ev.Received(A, replace(BEGIN, step=9), None)
    assert way(begin, lambda seen: [COMPUTE]) == [], "it has not heard yet what a Ready is"
    assert way.watch(ev.Wake(), lambda seen: list(HONEST)) == [*HONEST]
    *honest, ready = way(begin, lambda seen: [COMPUTE, VOTE])
    assert honest == [VOTE] and isinstance(ready, fx.Send) and isinstance(ready.message, ms.Ready)
    assert (ready.to, ready.message.step, ready.message.attempt) == (A, 9, BEGIN.attempt)


def test_who_accuses_names_one_of_its_group_in_each_step() -> None:
    way, share = traitor.Accusing(), ms.Share("l", 0, 1, TRIED, 1, ((0, 1),))
    shares: list[fx.Effect] = [fx.Send(B, share, None), fx.Send(A, share, None)]
    assert way(ev.Wake(), lambda seen: list(shares)) == shares, "it does not know who leads"
    way(ev.Received(A, BEGIN, None), lambda seen: [])
    said = [way(ev.Wake(), lambda seen: list(shares))[-1] for _ in range(2)]
    poisons = [(each.to, each.message) for each in said if isinstance(each, fx.Send)]
    assert {to for to, _ in poisons} == {A} and all(isinstance(one, ms.Poisoned) for _, one in poisons)
    assert {one.giver for _, one in poisons if isinstance(one, ms.Poisoned)} == {A, B}
    assert all(one.distance == 1.0 and one.stage == 1 for _, one in poisons if isinstance(one, ms.Poisoned))
