"""Of two holders of a stage one says that the other lies, and a third does it again (rule 50)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.leader.cases import PATIENCE_LEASES, Case
from ftnode.protocol.leader.convictions import Convictions
from ftnode.protocol.leader.disputes import Disputes
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.situation import Outcome
from ftnode.protocol.step import attempt
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words.messages import Convicted, Judge, Poisoned, Verdict
from ftnode.protocol.words.types import Attempt, Peer
from ftnode.protocol.words.view import View
from tests.sim.host import Host
from tests.sim.planted import NOBODY_JUDGES, patched
from tests.sim.targets import best_view
from tests.sim.test_at_odds import lost
from tests.sim.test_checks import SOON_SECONDS, lies, passes_on, turned
from tests.sim.test_duty import betrays, seen, swarm
from tests.sim.test_probation import NEVER_NEW
from tests.sim.world import World

SEEDS: Final = range(1, 4)
LATER_LEASES: Final = 15
"""Where nobody remembers who was convicted, it is back after one or two."""


def of_stage(world: World) -> Host:
    """A holder of a block stage that does not lead, and has voted longest."""
    view = seen(world)
    stage = next(stage for stage, group in enumerate(view.holders) if stage and view.leader not in group)
    return world.by_id[next(peer for peer in view.voters if peer in view.holders[stage]).id]


def gone_from(world: World, host: Host, seconds: float = 2 * SOON_SECONDS) -> list[str]:
    """Who goes until this one does, and in five steps after that."""
    world.notes.clear()
    world.liars = True
    world.run(world.now + seconds, lambda: str(host.peer) in lost(world))
    after = world.ledger.top_commit() + 5
    world.run(world.now + SOON_SECONDS, lambda: world.ledger.top_commit() >= after)
    return lost(world)


def marked(world: World) -> set[Peer]:
    """Whom leaders remember as having been at odds."""
    leaders = [host.participant.leader for host in world.live()]
    return {peer for leader in leaders if leader is not None for peer in leader.memory.disputes.marked}


def accuses(host: Host) -> None:
    """Of whomever it checks."""
    host.accuses = True


def accuses_at_once(host: Host) -> None:
    """Of each in turn, before a sum is made."""
    betrays(host, traitor.Accusing())


@pytest.mark.parametrize("way", [accuses, accuses_at_once])
@pytest.mark.parametrize("replicas", [3, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_who_accuses_others_goes_and_they_stay(seed: int, replicas: int, way: Any) -> None:
    world = swarm(seed, replicas, checks=1.0)
    host = of_stage(world)
    way(host)
    assert gone_from(world, host) == [str(host.peer)]
    assert not marked(world)


@pytest.mark.parametrize("way", [accuses, accuses_at_once])
def test_without_a_third_one_of_them_goes(way: Any) -> None:
    with patched(NOBODY_JUDGES):
        world = swarm(1, 3, checks=1.0)
        host = of_stage(world)
        way(host)
        assert {*gone_from(world, host)} - {str(host.peer)}


@pytest.mark.parametrize("replicas", [3, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_found_by_two_is_not_taken_back_and_nobody_is_remembered(seed: int, replicas: int) -> None:
    world = swarm(seed, replicas, spare=0, checks=1.0)
    host = of_stage(world)
    lies(world, host, turned)
    assert gone_from(world, host) == [str(host.peer)] and not marked(world)
    world.run(world.now + LATER_LEASES * world.settings.lease_seconds)
    assert host.peer not in seen(world).members()


def test_what_was_passed_on_is_judged_too() -> None:
    world = swarm(1, 3, checks=1.0)
    host = of_stage(world)
    passes_on(world, host, True)
    assert gone_from(world, host) == [str(host.peer)] and not marked(world)
    assert any(" found the same" in note for note in world.notes)


def says_nothing(host: Host) -> None:
    """Asked for a verdict, it gives none."""

    def way(event: Any, decide: traitor.Decide) -> list[fx.Effect]:
        if isinstance(getattr(event, "message", None), Judge):
            return []
        return decide(event)

    betrays(host, way)


def with_a_silent_third() -> tuple[World, Host]:
    world = swarm(1, 3, checks=1.0)
    host = of_stage(world)
    stage = seen(world).stages_of(host.peer)[0]
    for peer in seen(world).holders[stage]:
        says_nothing(world.by_id[peer.id])
    lies(world, host, turned)
    return world, host


def test_where_the_third_says_nothing_it_is_as_if_there_were_none() -> None:
    world, host = with_a_silent_third()
    begun = world.now
    assert gone_from(world, host)[:1] == [str(host.peer)]
    assert marked(world)
    told = next(note for note in world.notes if " liar: " in note)
    assert float(told.split()[0]) - begun > PATIENCE_LEASES * world.settings.lease_seconds


def test_planted_nobody_waits_for_a_third_in_vain() -> None:
    with patched((Case, "over", lambda self, now, gone: {*self.judges} <= {*self.verdicts})):
        world, host = with_a_silent_third()
        before = world.ledger.top_commit()
        gone_from(world, host)
        assert world.ledger.top_commit() <= before + 2


def cases_until_it_goes() -> int:
    """Of one that accuses before there is a sum."""
    world = swarm(1, 3, checks=1.0)
    host = of_stage(world)
    accuses_at_once(host)
    assert gone_from(world, host) == [str(host.peer)]
    return sum(" case: " in note for note in world.notes)


def test_planted_an_accuser_needs_to_show_nothing() -> None:
    """Then others have looked in vain when it says so before there is a sum, and it may say so again."""
    assert cases_until_it_goes() == 1
    with patched((attempt, "NOT_SHOWN", "never")):
        assert cases_until_it_goes() > 1


def friend_of(liar: Host) -> traitor.Way:
    """It says of the liar, asked for a verdict, that it is right, and of its accuser that it is not."""

    def way(event: Any, decide: traitor.Decide) -> list[fx.Effect]:
        judge = getattr(event, "message", None)
        if not isinstance(judge, Judge):
            return decide(event)
        word = Verdict(judge, judge.accused != liar.peer, "")
        return [fx.Send(event.sender, word, None)]

    return way


def with_a_friend(replicas: int) -> tuple[World, Host, Host]:
    world = swarm(1, replicas, checks=1.0)
    host = of_stage(world)
    stage = seen(world).stages_of(host.peer)[0]
    friend = world.by_id[next(peer for peer in seen(world).holders[stage] if peer != host.peer).id]
    betrays(friend, friend_of(host))
    lies(world, host, turned)
    friend.lies = turned
    host.agrees = friend.agrees = True
    return world, host, friend


def test_a_friend_of_the_liar_is_outvoted_by_two() -> None:
    """Of five, three are honest: one accuses, and of the others that are asked two say the same."""
    with patched(NEVER_NEW):
        world, host, friend = with_a_friend(5)
        gone = {*gone_from(world, host)}
    assert str(host.peer) in gone and gone <= {str(host.peer), str(friend.peer)}, gone


def test_of_three_the_friend_decides() -> None:
    """Who is alone against two is taken for the liar: the majority of a group is not defended against."""
    world, host, _ = with_a_friend(3)
    world.run(world.now + SOON_SECONDS)
    assert str(host.peer) not in lost(world)[:1]


def test_planted_the_word_of_the_third_is_turned_round() -> None:
    hear = Case.hear

    def other(self: Case, judge: Peer, verdict: Verdict) -> None:
        hear(self, judge, replace(verdict, guilty=verdict.guilty if verdict.guilty is None else not verdict.guilty))

    with patched((Case, "hear", other)):
        world = swarm(1, 3, checks=1.0)
        host = of_stage(world)
        lies(world, host, turned)
        assert gone_from(world, host)[0] != str(host.peer)


NOBODY_REMEMBERS: Final = (Disputes, "expose", lambda self, *given: None)
NOBODY_CONVICTS: Final = (LeaderMemory, "convict", lambda self, *given: False)


def convicts_and_loses_its_leader() -> tuple[World, Host]:
    """Who lies has gone by the word of two, and then the leader is lost."""
    world = swarm(1, 3, spare=0, checks=1.0)
    host = of_stage(world)
    lies(world, host, turned)
    assert gone_from(world, host) == [str(host.peer)]
    world.kill(world.by_id[seen(world).leader.id], "kill", silently=False)
    return world, host


def test_another_leader_takes_nobody_back_who_was_convicted() -> None:
    """Everybody has seen the signed words. What the leader itself remembers goes with it."""
    with patched(NOBODY_REMEMBERS):
        world, host = convicts_and_loses_its_leader()
        world.run(world.now + LATER_LEASES * world.settings.lease_seconds)
    assert host.peer not in seen(world).members() and host.alive
    known = [other for other in world.live() if host.peer.id in other.participant.memory.convicted]
    assert len(known) >= len(seen(world).members()) - 1


def test_planted_nobody_keeps_what_was_signed() -> None:
    """Then it comes back."""
    with patched(NOBODY_REMEMBERS, NOBODY_CONVICTS):
        world, host = convicts_and_loses_its_leader()
        world.run(world.now + 20 * SOON_SECONDS, lambda: host.peer in seen(world).members())
        assert host.peer in seen(world).members()


def test_a_leader_that_was_not_there_believes_most_of_the_voters() -> None:
    """It has forgotten all, as one that has started again, and takes the liar in; the others show what they have."""
    with patched(NOBODY_REMEMBERS):
        world, host = convicts_and_loses_its_leader()
        world.run(world.now + 4 * world.settings.lease_seconds)
        leader = world.by_id[seen(world).leader.id].participant
        leader.memory.convicted.clear()
        world.notes.clear()
        world.run(world.now + 20 * SOON_SECONDS, lambda: str(host.peer) in lost(world))
    assert lost(world).count(str(host.peer)) == 1
    assert host.peer.id in leader.memory.convicted


def convicts_and_is_switched_off(place: int = 100, founds: bool = False) -> tuple[World, Host]:
    """Who lies has gone by the word of two. Then everybody is switched off, and comes back, the liar honest and at this
    place, or last; there is a place for it. `founds`: it has the lowest PeerId of those who come back."""
    world = swarm(1, 3, spare=0, checks=1.0, snapshot_every=2, listed=True)
    host = world.by_id["peer1"] if founds else of_stage(world)
    lies(world, host, turned)
    assert gone_from(world, host) == [str(host.peer)]
    others = [other for other in world.live() if other is not host]
    for number, other in enumerate([*others[:place], host, *others[place:]]):
        world.kill(other, "power", silently=False)
        if not founds or other.peer.id >= host.peer.id:
            world.at(world.now + 0.5 + 0.2 * number, world.start, (other.peer.id, 1, True))
    world.notes.clear()
    return world, host


BACK_SECONDS: Final = 60.0
"""Twice as long as it takes until everybody who comes back holds a stage again."""


def members_until(world: World, peer_id: str, seconds: float) -> bool:
    """It trains again; whether this one becomes a member."""
    before = world.ledger.top_commit()
    world.run(world.now + seconds, lambda: peer_id in names_of(world) and world.ledger.top_commit() > before)
    assert world.ledger.top_commit() > before
    return peer_id in names_of(world)


def names_of(world: World) -> set[str]:
    view = best_view(world)
    return {peer.id for peer in view.members()} if view is not None else set()


def test_who_was_convicted_stays_out_after_everybody_has_started_again() -> None:
    world, host = convicts_and_is_switched_off()
    assert not members_until(world, host.peer.id, BACK_SECONDS)
    assert world.by_id[host.peer.id].alive
    assert not [note for note in world.notes if f"asks {host.peer.id}" in note]
    known = [other.peer.id for other in world.live() if host.peer.id in other.participant.memory.convicted]
    assert {*known} >= names_of(world)


def test_planted_what_a_disk_keeps_is_not_told() -> None:
    """Then nobody knows any more, and it comes back."""
    with patched((Convictions, "remember", lambda self, cases: Outcome())):
        world, host = convicts_and_is_switched_off()
        assert members_until(world, host.peer.id, BACK_SECONDS)


def test_where_nobody_who_comes_back_has_the_signed_words_it_works_again() -> None:
    """It is not defended, as SECURITY.md says: on other disks there is nothing of it."""
    world, host = convicts_and_is_switched_off()
    assert world.disks.convicted
    world.disks.convicted.clear()
    assert members_until(world, host.peer.id, BACK_SECONDS)


def test_who_was_convicted_is_offered_no_empty_stage_either() -> None:
    """It is there before those who held the stages."""
    world, host = convicts_and_is_switched_off(place=1)
    assert not members_until(world, host.peer.id, BACK_SECONDS)
    assert not [note for note in world.notes if f"asks {host.peer.id}" in note]


def test_planted_only_who_let_it_go_offers_it_no_empty_stage() -> None:
    with patched((LeaderMemory, "barred_until", lambda self, peer: self.disputes.barred_until(peer))):
        world, host = convicts_and_is_switched_off(place=1)
        world.run(world.now + BACK_SECONDS, lambda: host.peer.id in names_of(world))
        assert [note for note in world.notes if f"asks {host.peer.id}" in note]


def led_by(world: World, peer_id: str) -> list[str]:
    """All others that go by a view of which it is the leader."""
    views = {host.peer.id: host.participant.view for host in world.live()}
    return [name for name, view in views.items() if name != peer_id and view is not None and view.leader.id == peer_id]


def test_who_was_convicted_leads_nobody_who_knows_it() -> None:
    """It is the one that would found the run again, when the record of the swarm before is gone."""
    world, host = convicts_and_is_switched_off(place=0, founds=True)
    before = world.ledger.top_commit()
    world.run(world.now + 2 * BACK_SECONDS, lambda: bool(led_by(world, host.peer.id)))
    assert not led_by(world, host.peer.id) and world.ledger.top_commit() > before


def test_planted_who_knows_it_follows_it() -> None:
    with patched(
        (Convictions, "shuns", lambda self, view, sender, message: False),
        (Convictions, "without", lambda self, view, found: found),
    ):
        world, host = convicts_and_is_switched_off(place=0, founds=True)
        world.run(world.now + 2 * BACK_SECONDS, lambda: bool(led_by(world, host.peer.id)))
        assert led_by(world, host.peer.id)


def shows_a_forgery(world: World, host: Host, about: Peer) -> None:
    """Again and again, that somebody honest was convicted in a view that the leader does not know."""
    said = Poisoned(seen(world).lineage.id, 0, 1, Attempt(0, 1), 1, -1, "made up", about, 1.0)
    word = Verdict(Judge.of(Peer("x", 1), said, about), True, "")
    forged = Convicted(Peer("x", 1), said, ((Peer("y", 1), word),))

    def way(event: Any, decide: traitor.Decide) -> list[fx.Effect]:
        return [*decide(event), fx.Send(seen(world).leader, forged, None)]

    betrays(host, way)


def test_what_one_voter_shows_convicts_nobody() -> None:
    world = swarm(1, 3, checks=1.0)
    host = of_stage(world)
    others = [peer for peer in seen(world).members() if peer not in (host.peer, seen(world).leader)]
    shows_a_forgery(world, host, others[0])
    world.run(world.now + SOON_SECONDS)
    assert others[0] in seen(world).members() and not lost(world)


def test_planted_the_word_of_one_is_enough() -> None:
    with patched((View, "is_quorum", lambda self, voters: bool(voters))):
        world = swarm(1, 3, checks=1.0)
        host = of_stage(world)
        others = [peer for peer in seen(world).members() if peer not in (host.peer, seen(world).leader)]
        shows_a_forgery(world, host, others[0])
        world.run(world.now + SOON_SECONDS, lambda: bool(lost(world)))
        assert str(others[0]) in lost(world)
