"""Who shows nobody the tensors of its visits is let go, and nobody honest for that (rule 52)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.leader.cases import Cases
from ftnode.protocol.step.check import Check
from ftnode.protocol.step.doubts import Budget
from ftnode.protocol.step.errands import Errands
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.messages import Boundary, Judge, Poisoned, Show, Verdict
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.test_at_odds import lost
from tests.sim.test_checks import SOON_SECONDS, passes_on, turned
from tests.sim.test_duty import betrays, seen, swarm
from tests.sim.test_hidden_parts import beside, trains_without_losses
from tests.sim.test_third import gone_from, marked, of_stage
from tests.sim.world import World

SEEDS: Final = range(1, 4)
To = Callable[[Peer], bool]


def anybody(peer: Peer) -> bool:
    return True


def message_of(event: Any) -> Any:
    return getattr(event, "message", None)


def shows_nothing(host: Host, to: To = anybody) -> None:
    """None of the tensors of its visits, to these."""

    def way(event: Any, decide: traitor.Decide) -> list[fx.Effect]:
        if isinstance(message_of(event), Show) and to(event.sender):
            return []
        return decide(event)

    betrays(host, way)


def is_shown_nothing(host: Host, by: To = anybody) -> None:
    """It gets no tensor that is not given to it."""

    def way(event: Any, decide: traitor.Decide) -> list[fx.Effect]:
        message = message_of(event)
        if isinstance(message, Boundary) and message.path[message.visit] != host.peer and by(event.sender):
            return [fx.Release((event.handle,))]
        return decide(event)

    betrays(host, way)


def neighbour(world: World, host: Host) -> Host:
    """A holder of a block stage beside, which does not lead."""
    view = seen(world)
    stage = view.stages_of(host.peer)[0]
    near = [at for at in (stage + 1, stage - 1) if 0 < at < len(view.holders)]
    return world.by_id[next(peer for at in near for peer in view.holders[at] if peer != view.leader).id]


def convicted_by(world: World) -> set[str]:
    """Everybody of whom somebody keeps signed words."""
    return {name for other in world.live() for name in other.participant.memory.convicted}


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_who_shows_nobody_its_tensors_goes_and_nobody_else(seed: int, replicas: int) -> None:
    """Within some steps, in which somebody checks one beside it."""
    world = swarm(seed, replicas, checks=1.0)
    host, before = of_stage(world), world.ledger.top_commit()
    shows_nothing(host)
    gone: list[int] = []

    def on_view(other: Host, view: View) -> None:
        gone.extend([world.ledger.top_commit()] if host.peer not in view.members() else [])

    world.on_view = on_view
    assert gone_from(world, host) == [str(host.peer)] and not marked(world)
    assert gone[0] <= before + 3
    known = [other for other in world.live() if host.peer.id in other.participant.memory.convicted]
    assert len(known) >= len(seen(world).members()) - 1 and convicted_by(world) == {host.peer.id}


def lies_beside_a_friend(seed: int, replicas: int) -> tuple[World, Host, Host]:
    """One passes on something else, and one beside it shows nobody anything."""
    world = swarm(seed, replicas, spare=0, checks=1.0)
    liar = of_stage(world)
    friend = neighbour(world, liar)
    shows_nothing(friend)
    passes_on(world, liar, True)
    return world, liar, friend


@pytest.mark.parametrize("seed", SEEDS)
def test_a_liar_and_one_beside_it_that_shows_nothing_both_go(seed: int) -> None:
    world, liar, friend = lies_beside_a_friend(seed, 3)
    names = {str(liar.peer), str(friend.peer)}
    world.notes.clear()
    world.liars = True
    world.run(world.now + 4 * SOON_SECONDS, lambda: names <= {*lost(world)})
    assert {*lost(world)} == names


def shows_its_own_group_only(seed: int) -> tuple[World, Host, Host]:
    """One that lies in whatever it gives is checked by the one other holder. To that one the next stage's holders show
    nothing; but they show others what those ask for."""
    world = swarm(seed, 2, spare=0, checks=1.0)
    liar = of_stage(world)
    checker, friend = beside(world, liar)[0], neighbour(world, liar)
    for host in (friend, *beside(world, friend)):
        shows_nothing(host, lambda peer: peer == checker.peer)
    passes_on(world, liar, False)
    liar.lies = turned
    return world, liar, friend


@pytest.mark.parametrize("seed", SEEDS)
def test_what_one_is_not_shown_others_pass_on(seed: int) -> None:
    world, liar, _ = shows_its_own_group_only(seed)
    assert {*gone_from(world, liar)} == {str(liar.peer)}


def test_planted_nobody_passes_anything_on() -> None:
    """Then who shows something to all but who needs it saves the liar."""

    def keeps(self: Errands, errand: Any, key: Any, boundary: Boundary) -> list[fx.Effect]:
        errand.missing.discard(key)
        return []

    with patched((Errands, "_pass_on", keeps)):
        world, liar, _ = shows_its_own_group_only(1)
        assert gone_from(world, liar, SOON_SECONDS) == []


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_for_a_line_between_two_that_carries_no_tensors_nobody_goes(seed: int, replicas: int) -> None:
    world = swarm(seed, replicas, checks=1.0)
    host = of_stage(world)
    deaf = neighbour(world, host)
    shows_nothing(host, lambda peer: peer == deaf.peer)
    shows_nothing(deaf, lambda peer: peer == host.peer)
    trains_without_losses(world)
    assert not convicted_by(world)


def test_planted_the_word_of_one_is_enough() -> None:
    """Then such a line costs somebody its place."""

    def believed(self: Cases, s: Any, out: Any, sender: Peer, said: Poisoned, accused: Peer, claim: Any) -> None:
        self.losses.lose(s, out, accused, "somebody is not shown something")

    with patched((Cases, "_ask_for_tensors", believed)):
        world = swarm(1, 2, checks=1.0)
        host = of_stage(world)
        deaf = {neighbour(world, host).peer, *(other.peer for other in beside(world, neighbour(world, host)))}
        shows_nothing(host, lambda peer: peer in deaf)
        gone_from(world, host)
        assert lost(world)


def test_planted_nobody_says_that_it_is_not_shown_something() -> None:
    """Then who shows nothing stays, and the liar with it."""
    with patched((Check, "not_shown", lambda self, now: [])):
        world, liar, friend = lies_beside_a_friend(1, 2)
        assert gone_from(world, liar, SOON_SECONDS) == [] and str(friend.peer) not in lost(world)


def complains(world: World) -> Host:
    """A member says of all that it wants to see that nobody shows it."""
    host = of_stage(world)
    is_shown_nothing(host)
    return host


@pytest.mark.parametrize("seed", SEEDS)
def test_who_says_it_without_a_reason_costs_nobody_its_place(seed: int) -> None:
    """And is soon not heard any more: each time others send tensors."""
    world = swarm(seed, 3, checks=1.0)
    complains(world)
    before = world.ledger.top_commit()
    trains_without_losses(world, 8 * SOON_SECONDS)
    assert 1 <= steps_with_cases(world) <= 3 + (world.ledger.top_commit() - before) / 32
    assert not convicted_by(world)


def steps_with_cases(world: World) -> int:
    """In how many steps somebody was asked to look at something."""
    return len({note.split(" in step ")[0].split(" case: ")[0][:6] for note in world.notes if " case: " in note})


def test_planted_whoever_says_it_is_always_heard() -> None:
    with patched((Budget, "spend", lambda self: True)):
        world = swarm(1, 3, checks=1.0)
        complains(world)
        before = world.ledger.top_commit()
        trains_without_losses(world, 8 * SOON_SECONDS)
        assert steps_with_cases(world) > 3 + (world.ledger.top_commit() - before) / 32


def friend_says_all_is_shown(friend: Host) -> None:
    def way(event: Any, decide: traitor.Decide) -> list[fx.Effect]:
        judge = message_of(event)
        return [fx.Send(event.sender, Verdict(judge, False, ""), None)] if isinstance(judge, Judge) else decide(event)

    betrays(friend, way)


def test_where_only_its_friends_are_asked_it_stays_and_the_run_goes_on() -> None:
    """The majority of those who are asked decides."""
    world = swarm(1, 2, checks=1.0)
    host = of_stage(world)
    shows_nothing(host)
    for other in world.live():
        if other is not host and other.peer != seen(world).leader:
            friend_says_all_is_shown(other)
    before = world.ledger.top_commit()
    assert gone_from(world, host) == [] and world.ledger.top_commit() > before + 5


def test_one_friend_among_those_who_are_asked_does_not_save_it() -> None:
    world = swarm(1, 3, checks=1.0)
    host = of_stage(world)
    shows_nothing(host)
    friend_says_all_is_shown(beside(world, host)[0])
    assert gone_from(world, host) == [str(host.peer)]


def when_asked(world: World, happens: Callable[[], None]) -> None:
    """At the first moment at which somebody is asked about tensors."""
    seen_it: list[int] = []

    def on_send(host: Host, effect: fx.Send) -> None:
        if isinstance(effect.message, Judge) and effect.message.beside >= 0 and not seen_it:
            seen_it.append(1)
            world.at(world.now, happens, ())

    world.on_send = on_send


def dies_when_others_look(world: World, host: Host) -> None:
    """Nobody is shown anything, and then its machine is gone."""
    shows_nothing(host)
    when_asked(world, lambda: world.kill(host, "kill", silently=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_lost_at_that_moment_is_not_convicted(seed: int) -> None:
    """Others ask for longer than a lease."""
    world = swarm(seed, 3, checks=1.0)
    host = of_stage(world)
    dies_when_others_look(world, host)
    gone_from(world, host)
    assert not host.alive and not convicted_by(world) and not any(" liar: " in note for note in world.notes)


def test_planted_nobody_is_asked_for_longer_than_a_moment() -> None:
    """Then whoever is lost is convicted."""
    beat = Errands.beat

    def always_linked(self: Errands, now: float, linked: Any) -> list[fx.Effect]:
        return beat(self, now, [errand.about.accused for errand in self._open])

    soon = property(lambda self: 0.5)
    with patched((Settings, "shown_seconds", soon), (Errands, "beat", always_linked)):
        found = 0
        for seed in range(1, 4):
            world = swarm(seed, 3, checks=1.0)
            dies_when_others_look(world, of_stage(world))
            gone_from(world, of_stage(world))
            found += any(" liar: " in note for note in world.notes)
        assert found


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_leader_asked_ends_with_its_lead(seed: int) -> None:
    """Somebody is not shown anything, and the leader is lost while others look."""
    world = swarm(seed, 3, checks=1.0)
    complains(world)
    leader = world.by_id[seen(world).leader.id]
    when_asked(world, lambda: world.kill(leader, "kill", silently=False))
    before = world.ledger.top_commit()
    world.run(world.now + 4 * SOON_SECONDS)
    assert not leader.alive and world.ledger.top_commit() > before + 5
    assert {*lost(world)} <= {"leader", str(leader.peer)} and not convicted_by(world)


def begins_anew(world: World) -> None:
    """The leader hears of poison: the step is tried again."""
    leader = world.by_id[seen(world).leader.id]
    begin = leader.participant.holder.begin
    assert begin is not None
    other = next(peer for peer in seen(world).members() if peer != leader.peer)
    said = Poisoned(begin.lineage, begin.view, begin.step, begin.attempt, 1, -1, "it is no number", other)
    world.deliver(leader, ev.Received(other, said, None, ""))


@pytest.mark.parametrize("seed", SEEDS)
def test_of_an_attempt_that_is_over_nobody_has_to_show_anything(seed: int) -> None:
    """The tensors are gone in the moment in which others ask for them."""
    world = swarm(seed, 3, checks=1.0)
    complains(world)
    when_asked(world, lambda: begins_anew(world))
    trains_without_losses(world, 2 * SOON_SECONDS)
    assert any("tried once more" in note for note in world.notes if " poisoned: " in note)
    assert not convicted_by(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_slow_lines_cost_nobody_a_place(seed: int) -> None:
    """Each tensor takes half a second, so that checks do not get on, and others are asked."""
    world = swarm(seed, 3, checks=1.0)
    world.network.tensor_seconds = 0.5
    trains_without_losses(world, 8 * SOON_SECONDS)
    assert not convicted_by(world)


def test_a_step_is_not_over_before_others_have_looked() -> None:
    """Else there is nothing to show any more."""
    world = swarm(1, 3, checks=1.0)
    host = of_stage(world)
    shows_nothing(host)
    told: list[tuple[int, int]] = []

    def way(event: Any, decide: traitor.Decide) -> list[fx.Effect]:
        if isinstance(message_of(event), Verdict):
            told.append((event.message.about.step, world.ledger.top_commit()))
        return decide(event)

    betrays(world.by_id[seen(world).leader.id], way)
    gone_from(world, host)
    assert told and all(commit < step for step, commit in told)


def test_a_leader_that_shows_nothing_is_not_asked_and_the_run_goes_on() -> None:
    """It is not defended. SECURITY.md says so."""
    world = swarm(1, 2, checks=1.0)
    leader = world.by_id[seen(world).leader.id]
    shows_nothing(leader)
    trains_without_losses(world)


def test_planted_it_is_asked_by_those_alone_who_check() -> None:
    """Then a group of two has nobody who can ask, and who shows nothing stays."""
    ask = Cases._ask_for_tensors

    def group_alone(self: Cases, s: Any, out: Any, sender: Peer, said: Poisoned, accused: Peer, claim: Any) -> None:
        if len(self.view.holders[said.stage]) > 2:
            ask(self, s, out, sender, said, accused, claim)

    with patched((Cases, "_ask_for_tensors", group_alone)):
        world = swarm(1, 2, checks=1.0)
        host = of_stage(world)
        shows_nothing(host)
        assert gone_from(world, host, SOON_SECONDS) == []
