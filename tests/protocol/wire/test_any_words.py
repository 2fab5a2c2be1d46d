"""Words of members that lie, drawn by hypothesis from the annotated types of all messages.

- What is written can be read again, or is refused: no message changes on its way.
- Whatever members say, one that hears it goes on, and says nothing that others would strike it for.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given

from ftnode.node.data import shard_wire
from ftnode.node.export import wire as export_wire
from ftnode.node.links import punch, relay_service
from ftnode.node.reduction import wire as reduction_wire
from ftnode.protocol.participant import Participant
from ftnode.protocol.wire.frames import GREETINGS, TRANSFERS
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.codec import from_tagged, tagged
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.types import Peer
from tests.chances import CHANCES, at_once
from tests.protocol.wire.test_admission import PEERS, participant, some
from tests.protocol.wire.test_said_again import LEADER, MEMBER, lie, refused, said, wrong

KINDS = {
    "step": ms.MESSAGES, "greeting": GREETINGS, "state": TRANSFERS, "reduction": reduction_wire.SAID,
    "shards": shard_wire.SAID, "export, asked": export_wire.ASKED, "export, answered": export_wire.ANSWERS,
    "punch": punch.KINDS, "relays": relay_service.KINDS,
}  # fmt: skip
TURNS = 6
LIARS = (LEADER, MEMBER)


@pytest.mark.parametrize("protocol", KINDS)
def test_what_is_written_is_read_again_or_refused(protocol: str) -> None:
    kinds = KINDS[protocol]

    @given(CHANCES)
    def each(chance: Random) -> None:
        word = some(kinds[chance.choice(sorted(kinds))], chance)
        with suppress(PeerError):
            assert from_tagged(kinds, msgpack.unpackb(msgpack.packb(tagged(word)))) == word

    each()


def hear_lies(chance: Random) -> None:
    """The liar is the leader, or a member. What honest peers say reaches the others. AssertionError where one says what
    others would strike it for, and what is raised where one cannot go on."""
    liar, now = chance.choice(LIARS), 1.0
    cores = {peer: participant(peer) for peer in PEERS if peer != liar}
    on_their_way: list[tuple[Peer, Peer, ms.Message]] = []
    for turn in range(chance.randint(1, TURNS)):
        now += chance.choice([0.01, 0.3, 1.0])
        arrived, on_their_way = on_their_way, []
        for me, core in cores.items():
            events: list[ev.Event] = [said(sender, message) for sender, to, message in arrived if to == me]
            message = lie(chance, turn)
            if refused(liar, message) == "" and not isinstance(message, ms.Boundary):
                events.append(said(liar, message))
            on_their_way += _handled(core, [*events, ev.Wake()], now, set(cores))


def _handled(core: Participant, events: list[ev.Event], now: float, others: set[Peer]) -> list[tuple[Peer, Peer, Any]]:
    sent = []
    for event in events:
        effects = core.handle(event, now)
        assert wrong(core, effects) == []
        sent += [effect for effect in effects if isinstance(effect, fx.Send)]
    return [(core.me, each.to, each.message) for each in sent if each.to in others]


@given(CHANCES)
def test_honest_members_go_on_and_are_never_struck_for_what_a_liar_made_them_say(chance: Random) -> None:
    hear_lies(chance)


@pytest.mark.parametrize("bug", ["reasons are not cut", "a message is not expected"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Participant.handle

    def planted(core: Participant, event: ev.Event, now: float) -> list[fx.Effect]:
        if isinstance(event, ev.Received) and isinstance(event.message, ms.Waits):
            if bug == "a message is not expected":
                raise KeyError(event.message)
            return [fx.Send(LEADER, ms.Resign("line", 3, (), True, False, "x" * 5000), None)]
        return usual(core, event, now)

    monkeypatch.setattr(Participant, "handle", planted)
    with pytest.raises(KeyError if bug == "a message is not expected" else AssertionError):
        at_once(hear_lies)
