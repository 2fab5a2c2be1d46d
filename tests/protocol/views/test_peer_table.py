"""What strangers can fill: nothing beyond a bound, also while no new view comes (invariant I6)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ftnode.protocol.holder.candidacy import DIALLED_MAX
from ftnode.protocol.leader.leader_memory import FAILED_MAX, LeaderMemory
from ftnode.protocol.participant import Participant
from ftnode.protocol.views.peer_table import INTRODUCED_MAX, STRANGERS_MAX
from ftnode.protocol.views.succession import genesis
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, initial_version
from ftnode.protocol.words.view import View

LEADER, ME, STRANGER = Peer("a", 1), Peer("p", 1), Peer("stranger", 1)
SETTINGS = Settings("r", stages=2, steps=100, microbatches=2, window=1)
VIEW = genesis("r", LEADER, (0, 1, 2), 3)
WHERE = ("/ip4/127.0.0.1/tcp/1",)


def standby(view: View | None = VIEW) -> Participant:
    core = Participant(ME, SETTINGS, Random(1), hold=1)
    core.handle(ev.ComputeReady(1, True, 1.0), 0.0)
    if view is not None:
        core.handle(ev.Received(LEADER, ms.Certificate(view, True, ()), None), 0.1)
    return core


def offer(contacts: tuple[ms.Contact, ...], number: int = VIEW.number + 1) -> ms.Offer:
    return ms.Offer(VIEW.lineage.id, number, (0,), initial_version(VIEW.lineage.id), contacts, False)


NOTHING = ms.Heartbeat(VIEW.lineage.id, 0, True, 1, (), 0.0, False, (), (), "", ())


def named(count: int, prefix: str = "q") -> tuple[ms.Contact, ...]:
    return tuple(ms.Contact(Peer(f"{prefix}{n}", 1), WHERE) for n in range(count))


def dialled(effects: list[fx.Effect]) -> list[Peer]:
    return [effect.peer for effect in effects if isinstance(effect, fx.Dial)]


def test_offers_by_strangers_fill_nothing() -> None:
    core, now = standby(), 1.0
    for n in range(600):
        out = core.handle(ev.Received(STRANGER, offer(named(512, f"{n}-")), None), now)
        assert len(dialled(out)) <= DIALLED_MAX
        for peer in dialled(out):
            core.handle(ev.LinkDown(peer, True, "refused"), now)
        now += 0.1
        core.handle(ev.Received(LEADER, NOTHING, None), now)
        core.handle(ev.Wake(), now)
        live = core.liveness
        sizes = map(
            len,
            (core.peers.contacts, live.heard, live.down, live.refused, live.up, live.lineages, core.heartbeats.errands),
        )
        assert max(sizes) <= STRANGERS_MAX + 1000
    assert core.view == VIEW and LEADER in core.liveness.heard


def test_the_members_own_leader_may_name_as_many_neighbours_as_a_group_has() -> None:
    out = standby().handle(ev.Received(LEADER, offer(named(100), VIEW.number), None), 1.0)
    assert len(dialled(out)) == 100


def test_whoever_knows_no_view_accepts_the_offer_of_a_leader_that_it_never_heard_of() -> None:
    """The directory showed it nothing but that the run exists, or the leader changed a moment ago."""
    core = standby(None)
    out = core.handle(ev.Received(STRANGER, offer(named(100)), None), 1.0)
    for peer in dialled(out):
        out = core.handle(ev.LinkUp(peer), 1.1)
    answers = [effect for effect in out if isinstance(effect, fx.Send) and isinstance(effect.message, ms.Answer)]
    assert [(answer.to, answer.message.accepted) for answer in answers] == [(STRANGER, True)]


def test_an_offer_by_a_stranger_does_not_say_where_members_are() -> None:
    core = standby()
    core._remember(LEADER, WHERE)
    core.handle(ev.Received(STRANGER, offer((ms.Contact(LEADER, ("/ip4/127.0.0.1/tcp/9",)),)), None), 1.0)
    assert core.peers.contacts[LEADER] == WHERE


def presences(turn: int, count: int) -> tuple[Presence, ...]:
    return tuple(
        Presence(Peer(f"x{turn}-{n}", 1), WHERE, "", -1, 1, False, (), (), (), 1.0) for n in range(count)
    )  # fmt: skip


def test_presences_that_come_and_go_fill_nothing() -> None:
    core = standby()
    for turn in range(30):
        now = 1.0 + turn
        core.handle(ev.Directory(presences(turn, 500), ()), now)
        core.handle(ev.Wake(), now)
    assert len(core.peers.presences) == 501 and len(core.peers.contacts) <= STRANGERS_MAX + 1000
    assert all(presence.peer in core.peers.contacts for presence in presences(29, 500)), "those shown now are all known"


def test_no_more_presences_are_looked_at_than_a_directory_can_have() -> None:
    core = standby()
    core.handle(ev.Directory(presences(0, 2 * STRANGERS_MAX), ()), 1.0)
    assert len(core.peers.presences) == STRANGERS_MAX + 1, "and our own"


FLOOD = 2 * STRANGERS_MAX
LAST = Peer("zz", 1)
"""The directory lists peers by their ids, and this one after all others."""


def readings(core: Participant, flood: tuple[Presence, ...], count: int) -> list[set[Peer]]:
    """Whose presences the core has after each of these readings of the directory, which shows LAST, too."""
    shown = (*flood, replace(flood[0], peer=LAST))
    found = []
    for second in range(count):
        core.handle(ev.Directory(shown, ()), 2.0 + second)
        assert len(core.peers.presences) <= STRANGERS_MAX + 1 and set(core.peers.presences) <= set(core.peers.contacts)
        found.append(set(core.peers.presences))
    return found


def test_nobody_is_hidden_for_ever_by_those_that_are_listed_before() -> None:
    found = readings(standby(), presences(0, FLOOD), 6)
    assert sum(LAST in seen for seen in found) == 2, "a reading looks at nearly half of them"
    assert len(set().union(*found)) == FLOOD + 2, "and our own"


def test_who_was_heard_is_in_every_reading() -> None:
    core = standby()
    core.handle(ev.Received(LAST, NOTHING, None), 1.0)
    flood = (*presences(0, FLOOD), replace(presences(0, 1)[0], peer=LEADER))
    assert all({LAST, LEADER} <= seen for seen in readings(core, flood, 6))


def test_a_flood_that_is_heard_leaves_half_of_the_room_to_others() -> None:
    core, flood = standby(), presences(0, FLOOD)
    for presence in flood:
        core.liveness.heard[presence.peer] = 1.0
    found = readings(core, flood, 8)
    assert any(LAST in seen for seen in found)


def test_a_new_view_forgets_nobody_whom_the_directory_shows() -> None:
    core = standby()
    core.handle(ev.Directory(presences(0, 500), ()), 1.0)
    core.handle(ev.Received(LEADER, ms.Certificate(replace(VIEW, number=1), True, ()), None), 1.1)
    assert core.view is not None and core.view.number == 1 and len(core.peers.presences) == 501


def test_of_failures_the_oldest_are_forgotten() -> None:
    memory, old = LeaderMemory(), Peer("old", 1)
    memory.failed(old, 0, 0.0)
    for n in range(3 * FAILED_MAX):
        memory.failed(Peer(f"x{n}", 1), n % 3, 1.0 + n)
        if n % 100 == 0:
            memory.failed(Peer("again", 1), 0, 1.0 + n)
        assert max(len(memory.failed_at), len(memory.failures)) <= 2 * FAILED_MAX
    assert memory.asks_again_at(old, 1.0) == 0.0 and memory.failures["old", 0] == 0
    assert memory.failures["again", 0] == 3 * FAILED_MAX // 100 + 1, "who fails again is remembered"


def test_who_failed_is_asked_again_later_and_later() -> None:
    memory, peer = LeaderMemory(), Peer("x", 1)
    waits = []
    for n in range(8):
        memory.failed(peer, n % 2, 100.0 * n)
        waits.append(memory.asks_again_at(peer, 1.0) - 100.0 * n)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]


def told(peer: Peer, capacity: int = 1) -> Presence:
    return Presence(peer, WHERE, VIEW.lineage.id, 0, capacity, True, (), (), (), 1.0)


def member() -> Participant:
    """A holder, to whom newcomers introduce themselves."""
    core = Participant(LEADER, SETTINGS, Random(1), hold=1)
    core.handle(ev.ComputeReady(1, True, 1.0), 0.0)
    core.handle(ev.Received(ME, ms.Certificate(VIEW, True, ()), None), 0.1)
    assert core.member
    return core


def test_who_introduces_itself_is_known_without_the_directory_until_it_falls_silent() -> None:
    core, peer = member(), Peer("n", 1)
    core.handle(ev.Received(peer, ms.Introduction(told(peer)), None), 1.0)
    assert core.situation.presences[peer] == told(peer)
    core.handle(ev.Directory((told(peer, 7),), ()), 1.1)
    assert core.situation.presences[peer].capacity == 1, "its own word is newer than its record"
    core.handle(ev.Received(peer, ms.Introduction(told(peer, 0)), None), 1.2)
    core.handle(ev.Directory((), ()), 1.3)
    assert core.situation.presences[peer].capacity == 0
    now = 1.3
    while now < 1.3 + 3 * SETTINGS.lease_seconds:
        now += 0.5
        core.handle(ev.Wake(), now)
    core.handle(ev.Directory((), ()), now)
    assert peer not in core.situation.presences


def test_nobody_introduces_somebody_else() -> None:
    core, peer = member(), Peer("n", 1)
    out = core.handle(ev.Received(STRANGER, ms.Introduction(told(peer)), None), 1.0)
    assert [effect.peer for effect in out if isinstance(effect, fx.Strike)] == [STRANGER]
    assert peer not in core.situation.presences


def test_introductions_fill_nothing() -> None:
    core = member()
    for n in range(3 * INTRODUCED_MAX):
        peer = Peer(f"n{n}", 1)
        core.handle(ev.Received(peer, ms.Introduction(told(peer)), None), 1.0 + n / 1000)
    assert len(core.situation.presences) <= INTRODUCED_MAX + 1, "also while the directory does not answer"
    core.handle(ev.Directory((), ()), 3.0)
    assert len(core.situation.presences) <= INTRODUCED_MAX + 1


def test_networks_fill_nothing_and_those_of_members_stay() -> None:
    core = standby()
    core.handle(ev.Seen(LEADER, "198.51.0.0/16"), 1.0)
    for n in range(2 * STRANGERS_MAX):
        core.handle(ev.Seen(Peer(f"n{n}", 1), "203.0.0.0/16"), 1.0 + n / 10_000)
    networks = core.situation.crowds.networks
    assert len(networks) <= STRANGERS_MAX + 2 and networks[LEADER] == "198.51.0.0/16"


def test_who_answers_for_whom_is_what_was_told_last_and_leaves_networks_alone() -> None:
    core = standby()
    core.handle(ev.Seen(LEADER, "198.51.0.0/16"), 1.0)
    core.handle(ev.Vouched((("a", "root"), ("b", "root"), ("c", "other"))), 2.0)
    crowds = core.situation.crowds
    assert crowds.answered_with("a") == ("a", "b") and crowds.answered_with("root") == ()
    core.handle(ev.Seen(LEADER, "203.0.0.0/16"), 3.0)
    core.handle(ev.Vouched((("a", "root"),)), 4.0)
    crowds = core.situation.crowds
    assert (crowds.answered_with("a"), crowds.networks[LEADER]) == (("a",), "203.0.0.0/16")
