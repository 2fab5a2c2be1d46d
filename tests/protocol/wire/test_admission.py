"""Whatever a stranger or a member may say, a participant neither raises nor says anything that cannot be sent."""

from __future__ import annotations

import typing
from dataclasses import is_dataclass, replace
from enum import Enum
from functools import cache
from random import Random
from types import NoneType, UnionType
from typing import Any

import pytest

from ftnode.protocol.participant import Participant
from ftnode.protocol.wire.admission import objection, well_formed
from ftnode.protocol.wire.frames import encode_frame
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.codec import field_names
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version, initial_version
from ftnode.protocol.words.view import Lineage, View

SETTINGS = Settings(run="r", stages=3, steps=9, microbatches=2, window=2, evaluation_microbatches=1, lease_seconds=5.0)
PEERS = tuple(Peer(name, 1) for name in "abcde")
STRANGER = Peer("x", 7)
LINEAGE = Lineage("line", 0, 4)
LAST = Version(9, "the last", Attempt(3, 9))
VIEW = View("r", LINEAGE, 3, "before", PEERS[0], tuple((peer,) for peer in PEERS[:4]), PEERS[:4], (0, 0, 0, 0), "test")
INTEGERS = (-1, 0, 1, 2, 3, 4, 5, 99, 2**31, 2**63, 2**64 - 1)
FLOATS = (-1.0, 0.0, 1.0, 1.7e308, -1.7e308)
BYTES = (b"", b"\0" * 16, b"x" * 64, b"x" * 4000)
TEXTS = ("", "line", "r", "before", "silent", "broken", "stalled", "x" * 4000)


def some(kind: Any, chance: Random) -> Any:
    """An instance of an annotated type, with values that a codec lets through."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (UnionType, typing.Union):
        return some(chance.choice(arguments), chance)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(some(arguments[0], chance) for _ in range(chance.choice([0, 1, 2, 4, 4])))
        return tuple(some(argument, chance) for argument in arguments)
    if kind is Peer:
        return chance.choice([*PEERS, STRANGER])
    if kind is Lineage:
        return chance.choice([LINEAGE, LINEAGE, Lineage("other", 0, 4)])
    if kind is View and chance.random() < 0.5:
        return replace(VIEW, number=chance.choice([2, 3, 4, 4]), previous=chance.choice(["before", VIEW.digest()]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return chance.choice(list(kind))
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        made = {name: some(hint, chance) for name, hint in fields_of(kind)}
        if "lineage" in made and isinstance(made["lineage"], str) and chance.random() < 0.8:
            made["lineage"] = "line"
        for name in ("view", "number"):
            if isinstance(made.get(name), int) and chance.random() < 0.8:
                made[name] = 3 + (name == "number")
        return kind(**made)
    simple = {
        int: INTEGERS, float: FLOATS, str: TEXTS, bytes: BYTES, bool: (True, False), NoneType: (None,),
    }  # fmt: skip
    return chance.choice(simple[kind])


@cache
def fields_of(kind: Any) -> list[tuple[str, Any]]:
    """Of a dataclass or a NamedTuple: names and types."""
    hints = typing.get_type_hints(kind)
    return [(name, hints[name]) for name in (field_names(kind) if is_dataclass(kind) else kind._fields)]


def participant(me: Peer) -> Participant:
    """A member of VIEW (or not) with a ready compute process."""
    core = Participant(me, SETTINGS, Random(1), addresses=("/ip4/127.0.0.1/tcp/1",), hold=1)
    core.handle(ev.ComputeReady(1, True, 1.0), 0.0)
    core.handle(ev.Received(PEERS[0] if me != PEERS[0] else PEERS[1], ms.Certificate(VIEW, True, ()), None), 0.1)
    assert core.view == VIEW
    return core


@pytest.mark.parametrize("me", [PEERS[0], PEERS[1], PEERS[4]], ids=["leader", "member", "standby"])
@pytest.mark.parametrize("name", sorted(ms.MESSAGES))
def test_no_message_breaks_a_participant(name: str, me: Peer) -> None:
    chance = Random(f"{name}{me.id}")
    for _ in range(150):
        core, now = participant(me), 0.2
        for _ in range(3):
            message = some(ms.MESSAGES[name], chance)
            handle = 1 if isinstance(message, ms.Boundary) else None
            sender = chance.choice([peer for peer in (*PEERS, STRANGER) if peer != me])
            now += chance.choice([0.0, 0.1, 3.0])
            sent = [*core.handle(ev.Received(sender, message, handle), now), *core.handle(ev.Wake(), now + 0.01)]
            for effect in sent:
                if isinstance(effect, fx.Send):
                    encode_frame(effect.message, 0)
            assert core.view is None or well_formed(core.view, SETTINGS)
            assert len(core.peers.contacts) < 50


@pytest.mark.parametrize("me", [PEERS[0], PEERS[1], PEERS[4], STRANGER], ids=["leader", "member", "standby", "alone"])
def test_no_record_breaks_a_participant(me: Peer) -> None:
    """As tests/sim/test_odd_records.py, for any situation and without a swarm around."""
    chance = Random(me.id)
    for _ in range(30):
        core, now = participant(me), 0.2
        if me == STRANGER:
            core = Participant(me, SETTINGS, Random(1), hold=4)
            core.handle(ev.ComputeReady(4, True, 1.0), 0.0)
        for _ in range(4):
            presences = tuple(some(Presence, chance) for _ in range(3))
            views = tuple(some(View, chance) for _ in range(2))
            now += chance.choice([0.1, 3.0, 20.0])
            for event in (ev.Directory(presences, views), ev.Wake(), ev.LinkDown(PEERS[3], True, "refused")):
                for effect in core.handle(event, now):
                    if isinstance(effect, fx.Send):
                        encode_frame(effect.message, 0)
            assert core.view is None or well_formed(core.view, SETTINGS)


def test_what_honest_peers_say_is_let_in() -> None:
    core = participant(PEERS[1])
    beat = core.heartbeat(True)
    ready = ms.Ready("line", 3, 1, Attempt(3, 1), (ms.StageResult(1, 2.0, "h"),), 0.0, 0, None)
    for message in (beat, ready, ms.Certificate(VIEW, True, ()), ms.Resign("line", 3, (1,), False, False, "tired")):
        assert objection(PEERS[1], message, VIEW, SETTINGS) == ""


@pytest.mark.parametrize(
    "view",
    [
        replace(VIEW, epochs=()),
        replace(VIEW, holders=VIEW.holders[:3]),
        replace(VIEW, leader=STRANGER),
        replace(VIEW, voters=()),
        replace(VIEW, run="another"),
        replace(VIEW, number=-1),
        replace(VIEW, holders=((PEERS[0], PEERS[0]), *VIEW.holders[1:])),
    ],
)
def test_a_malformed_view_is_refused(view: View) -> None:
    assert not well_formed(view, SETTINGS)
    assert objection(PEERS[0], ms.Certificate(view, True, ()), VIEW, SETTINGS)


def test_what_no_honest_peer_sends_is_an_offence() -> None:
    core = participant(PEERS[1])
    offer = ms.Offer("line", 3, (99,), initial_version("line"), (), False)
    effects = core.handle(ev.Received(PEERS[0], offer, None), 1.0)
    assert [effect.peer for effect in effects if isinstance(effect, fx.Strike)] == [PEERS[0]]


def test_nobody_learns_a_stage_that_it_holds() -> None:
    """It would be in its group twice."""
    first = initial_version("line")
    begin = ms.Begin("line", 3, 1, Attempt(3, 1), first, False, False, True, False, 1, (), (), (), (), ())
    for stage, peer in enumerate(PEERS[:4]):
        assert objection(PEERS[0], replace(begin, learners=((stage, peer),)), VIEW, SETTINGS)
        assert not objection(PEERS[0], replace(begin, learners=((stage, PEERS[4]),)), VIEW, SETTINGS)


@pytest.mark.parametrize(
    ("changes", "vacant", "refused"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"learners": ((1, PEERS[4]),)}, False, False),
        ({"base": LAST, "step": 10, "training": False}, True, False),
        ({"base": LAST, "step": 10, "training": False, "evaluate": True}, True, True),
        ({"base": LAST, "step": 10, "training": False, "learners": ((1, PEERS[4]),)}, True, True),
        ({"view": 4}, True, False),
        ({"lineage": "another"}, True, False),
    ],
    ids=[
        "a step", "a step without a stage", "a learner", "the end of the run", "a validation without a stage",
        "a learner of a stage without holders", "of another view", "of another lineage",
    ],
)  # fmt: skip
def test_a_view_with_an_empty_stage_begins_nothing(changes: dict[str, Any], vacant: bool, refused: bool) -> None:
    """Whoever learns the stage would look for its holders, and a path would lead to nobody."""
    view = replace(VIEW, holders=(*VIEW.holders[:3], ())) if vacant else VIEW
    first = initial_version("line")
    begin = ms.Begin("line", 3, 1, Attempt(3, 1), first, False, False, True, False, 1, (), (), (), (), ())
    reason = objection(PEERS[0], replace(begin, **changes), view, SETTINGS)
    assert bool(reason) == refused
