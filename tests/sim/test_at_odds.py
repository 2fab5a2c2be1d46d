"""Two members are at odds and one of them lies: it goes, and takes one honest member along at most (rules 25, 38)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.leader.disputes import Disputes, Suspects
from ftnode.protocol.leader.duty import Duty
from ftnode.protocol.leader.leader import Leader
from ftnode.protocol.leader.spoilt_steps import SpoiltSteps
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.routes import expected_visits
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.messages import Heartbeat, Poisoned, Share, Suspect, Wait
from ftnode.protocol.words.types import Direction, Peer
from tests.sim.checks import Violation
from tests.sim.host import Host
from tests.sim.planted import other_sums, patched
from tests.sim.test_duty import (
    LONG,
    OWES_SECONDS,
    SETTLES_SECONDS,
    betrays,
    says_that_others,
    seen,
    stages_without_leader,
    swarm,
)
from tests.sim.world import World

SUM_SECONDS: Final = OWES_SECONDS + 4.0
"""A sum stands still for a while before somebody is named."""
SPOILT_SECONDS: Final = 10.0 + SETTLES_SECONDS
"""Two steps of three attempts, and a view."""
SAYS_SECONDS: Final = 4.0
"""A sum stands still for so long before anybody says for whom."""
STAGE: Final = 2


def lost(world: World) -> list[str]:
    return [note.split(" lost: ")[1].split()[0] for note in world.notes if " lost: " in note]


def trains_without(world: World, host: Host, seconds: float, others: int) -> list[str]:
    """The host is out of the view, so many others at most went before it, and five steps in a row count."""
    world.notes.clear()
    counted: list[bool] = []
    world.on_commit = lambda lineage, version, skipped: counted.append(not skipped)
    world.run(world.now + seconds, lambda: str(host.peer) in lost(world) and counted[-5:] == [True] * 5)
    gone = lost(world)
    assert gone.count(str(host.peer)) == 1 and len(gone) <= 1 + others, gone
    assert counted[-5:] == [True] * 5, counted
    return gone


def of_stage(world: World, older: bool) -> Host:
    """A holder of the stage that does not lead: the one that came first, or last."""
    view = seen(world)
    group = sorted((peer for peer in view.holders[STAGE] if peer != view.leader), key=view.voters.index)
    return world.by_id[group[0 if older else -1].id]


# -- who gives nothing to a sum


def takes_no_part(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
    """It does all of a step but to sum with its group."""
    return [effect for effect in decide(event) if not sums(effect)]


def sums(effect: fx.Effect) -> bool:
    """With somebody else who contributes."""
    task = effect.task if isinstance(effect, fx.Compute) else None
    return isinstance(task, fx.Reduce) and sum(count > 0 for _, count in task.group) > 1


def accuses(me: Peer) -> traitor.Way:
    """It takes no part, and says that all others give nothing."""

    def way(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        effects = decide(event)
        for effect in [effect for effect in effects if sums(effect)]:
            assert isinstance(effect, fx.Compute) and isinstance(effect.task, fx.Reduce)
            effects.remove(effect)
            others = tuple(peer for peer, count in effect.task.group if count and peer != me)
            effects += decide(ev.SumOwed(effect.task, others, ()))
        return effects

    return way


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("replicas", [2, 3])
def test_who_takes_no_part_in_a_sum_is_replaced(replicas: int, older: bool) -> None:
    world = swarm(1, replicas)
    host = of_stage(world, older)
    betrays(host, takes_no_part)
    trains_without(world, host, SUM_SECONDS, others=0)


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("replicas", [2, 3])
def test_who_accuses_others_of_it_takes_one_of_them_along_at_most(replicas: int, older: bool) -> None:
    world = swarm(1, replicas, spare=3)
    host = of_stage(world, older)
    betrays(host, accuses(host.peer))
    trains_without(world, host, 3 * SUM_SECONDS, others=1 if replicas == 2 and older else 0)


def says_that_it_did_all(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
    """All that its group has to accumulate."""
    return [_with_all_visits(effect) for effect in decide(event)]


def _with_all_visits(effect: fx.Effect) -> fx.Effect:
    message = effect.message if isinstance(effect, fx.Send) else None
    if not isinstance(effect, fx.Send) or not isinstance(message, Share):
        return effect
    visits = expected_visits(LONG.stages, LONG.microbatches, message.stage, LONG.swap)
    return replace(effect, message=replace(message, visits=tuple(sorted(visits))))


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("replicas", [2, 3])
def test_who_says_that_it_did_what_others_did_goes_alone(replicas: int, older: bool) -> None:
    world = swarm(1, replicas, spare=3)
    host = of_stage(world, older)
    betrays(host, says_that_it_did_all)
    trains_without(world, host, 3 * SUM_SECONDS, others=0)


def test_a_sum_that_does_not_wait_for_what_is_under_way_would_be_noticed() -> None:
    with patched((StepWork, "_has_told", lambda self, stage: True)):
        world = swarm(1, 2, spare=3)
        host = of_stage(world, False)
        betrays(host, says_that_it_did_all)
        with pytest.raises(Violation, match="brings"):
            trains_without(world, host, 3 * SUM_SECONDS, others=0)


def test_where_nobody_is_named_every_step_is_skipped() -> None:
    """Without this rule."""
    with patched((Duty, "_at_odds_about_a_sum", lambda self, *_: frozenset())):
        world = swarm(1, 2)
        host = of_stage(world, True)
        betrays(host, takes_no_part)
        with pytest.raises(AssertionError):
            trains_without(world, host, 2 * SUM_SECONDS, others=0)


def test_without_a_memory_an_accuser_wins_for_ever() -> None:
    with patched((Disputes, "settle", lambda self, view, gone, suspects: None)):
        world = swarm(1, 2, spare=4)
        host = of_stage(world, True)
        betrays(host, accuses(host.peer))
        with pytest.raises(AssertionError):
            trains_without(world, host, 4 * SUM_SECONDS, others=4)


def is_refused(world: World, host: Host) -> None:
    """The others of its group break with it over what it sums up. It says that one of them gives it nothing, and they
    say that it sums up nothing for them."""
    others = [peer for peer in seen(world).holders[STAGE] if peer != host.peer]
    links = {(host.peer.id, other.id) for other in others}
    links |= {(other, one) for one, other in links}

    def stands_still(of: Host, parts: tuple[Peer, ...], sums_of: tuple[Peer, ...]) -> traitor.Way:
        def way(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
            effects = decide(event)
            for effect in [effect for effect in effects if sums(effect)]:
                assert isinstance(effect, fx.Compute) and isinstance(effect.task, fx.Reduce)
                if (host.peer, True) in {(peer, count > 0) for peer, count in effect.task.group}:
                    effects.remove(effect)
                    world.network.block(links)
                    world.at(world.now + SAYS_SECONDS, world.deliver, (of, ev.SumOwed(effect.task, parts, sums_of)))
            return effects

        return way

    betrays(host, stands_still(host, (others[0],), ()))
    for peer in others:
        betrays(world.by_id[peer.id], stands_still(world.by_id[peer.id], (), (host.peer,)))


@pytest.mark.parametrize("older", [True, False])
def test_whom_all_of_its_group_break_with_takes_one_of_them_along_at_most(older: bool) -> None:
    world = swarm(1, 3, spare=3)
    host = of_stage(world, older)
    is_refused(world, host)
    trains_without(world, host, 4 * SUM_SECONDS, others=1)


def is_cut_off(world: World, host: Host) -> None:
    """Its links with the others of its group break as the first of them tells a Share."""
    others = [peer for peer in seen(world).holders[STAGE] if peer != host.peer]
    links = {(host.peer.id, other.id) for other in others}
    links |= {(other, one) for one, other in links}

    def way(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        effects = decide(event)
        if any(isinstance(getattr(effect, "message", None), Share) for effect in effects):
            world.network.block(links)
        return effects

    for peer in (host.peer, *others):
        betrays(world.by_id[peer.id], way)


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whose_links_break_before_the_shares_takes_one_of_its_group_along_at_most(seed: int, older: bool) -> None:
    world = swarm(seed, 3, spare=3)
    host = of_stage(world, older)
    is_cut_off(world, host)
    trains_without(world, host, 4 * SUM_SECONDS, others=1)


@pytest.mark.parametrize("older", [True, False])
def test_who_says_for_ever_that_shares_are_missing_takes_one_of_its_group_along_at_most(older: bool) -> None:
    world = swarm(1, 3, spare=3)
    host = of_stage(world, older)
    betrays(host, says_that_others(world, host, traitor.unready, lack_shares))
    trains_without(world, host, 4 * SUM_SECONDS, others=1)


@pytest.mark.parametrize("older", [True, False])
def test_who_says_for_ever_that_others_make_no_progress_takes_one_of_them_along_at_most(older: bool) -> None:
    """Of tensors that are not acknowledged nobody else knows (rule 9)."""
    world = swarm(1, 3, spare=3)
    host = of_stage(world, older)

    def way(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        effects, view = decide(event), seen(world)
        if any(isinstance(effect, fx.Send) and isinstance(effect.message, Heartbeat) for effect in effects):
            for peer in sorted({*view.members()} - {host.peer, view.leader}):
                said = Suspect(view.lineage.id, view.number, peer, "stalled", "a tensor is not acknowledged")
                effects.append(fx.Send(view.leader, said, None))
        return effects

    betrays(host, way)
    trains_without(world, host, 4 * SUM_SECONDS, others=1)


def lack_shares(world: World, host: Host) -> tuple[Wait, ...]:
    view = seen(world)
    return tuple(
        Wait(-1, stage, Direction.FORWARD, peer, True)
        for stage in view.stages_of(host.peer)
        for peer in view.holders[stage]
        if peer != host.peer
    )


def test_where_who_lacks_a_share_is_late_by_itself_more_of_a_group_go() -> None:
    """As each of those who are named were asked for its visits."""

    def at_odds(self: Duty, s: Any, waits: Any) -> frozenset[Peer]:
        silent = {wait.peer for _, wait in waits if wait.microbatch < 0 and wait.stored}
        self._at_odds = Suspects(frozenset())
        return frozenset(silent)

    with patched((Duty, "_at_odds_about_a_sum", at_odds), (Duty, "_may_stay", lambda self: set[Peer]())):
        world = swarm(1, 3, spare=3)
        host = of_stage(world, True)
        betrays(host, says_that_others(world, host, traitor.unready, lack_shares))
        with pytest.raises(AssertionError):
            trains_without(world, host, 4 * SUM_SECONDS, others=1)


# -- who sends numbers that are no use


def spoils(world: World, host: Host) -> None:
    """Whatever the host sends is finite, and becomes infinite in the next member's hands."""
    honest: Callable[..., Any] = world.finish

    def finish(of: Host, life: int, task: fx.Task, result: Any) -> None:
        work = of.participant.holder.work
        giver = work._giver(task) if work is not None and isinstance(task, fx.Forward | fx.Backward) else None
        if giver == host.peer and of is not host and not result.fault:
            result = result._replace(output=None, value=0.0, fault="the activation is not finite")
        honest(of, life, task, result)

    world.finish = finish  # type: ignore[method-assign]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("stage", [1, 2])
def test_who_sends_what_others_refuse_takes_one_of_them_along_at_most(replicas: int, stage: int) -> None:
    world = swarm(1, replicas, spare=3)
    view = seen(world)
    host = next(world.by_id[peer.id] for peer in view.holders[stage] if peer != view.leader)
    spoils(world, host)
    trains_without(world, host, 3 * SPOILT_SECONDS, others=1)


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("stage", [1, 2])
def test_where_nobody_stands_by_the_run_waits_for_one_that_does_and_goes_on(stage: int, remembers: bool) -> None:
    """Not for the one that went: it would have its stage back at once, and no step would ever count again."""
    with nullcontext() if remembers else patched((Disputes, "spoils", lambda self, gone, now, lease_seconds: None)):
        world = swarm(1, 1, spare=0)
        host = next(world.by_id[peer.id] for peer in seen(world).holders[stage])
        spoils(world, host)
        counted: list[bool] = []
        world.on_commit = lambda lineage, version, skipped: counted.append(not skipped)
        world.notes.clear()
        world.run(world.now + 3 * SPOILT_SECONDS)
        assert not any(counted) and (len(counted) < 10) is remembers, "two for each that goes"
        world.start("new", 1)
        world.run(world.now + 3 * SPOILT_SECONDS, lambda: counted[-5:] == [True] * 5)
        assert (counted[-5:] == [True] * 5) is remembers
        assert bool(seen(world).stages_of(host.peer)) is not remembers


def refuses(blames: Callable[[], Peer]) -> traitor.Way:
    """It names poison in every step, and somebody else for it."""

    def way(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        effects = traitor.poisoning(event, decide)
        return [
            replace(effect, message=replace(effect.message, giver=blames()))
            if isinstance(effect, fx.Send) and isinstance(effect.message, Poisoned)
            else effect
            for effect in effects
        ]

    return way


def test_who_refuses_good_numbers_goes_alone() -> None:
    world = swarm(1, spare=2)
    first, second = (world.by_id[seen(world).holders[stage][0].id] for stage in stages_without_leader(world)[:2])
    betrays(second, refuses(lambda: first.peer))
    trains_without(world, second, SPOILT_SECONDS, others=0)


def test_without_who_gave_the_numbers_the_run_stops() -> None:
    original = Leader._suspects

    def suspects(self: Leader, s: Any, sender: Peer, poisoned: Poisoned) -> Any:
        return original(self, s, sender, replace(poisoned, giver=None))

    with patched((Leader, "_suspects", suspects)):
        world = swarm(1, spare=3)
        host = world.by_id[seen(world).holders[stages_without_leader(world)[0]][0].id]
        spoils(world, host)
        with pytest.raises(AssertionError):
            trains_without(world, host, 6 * SPOILT_SECONDS, others=3)


@pytest.mark.parametrize("older", [True, False])
def test_whose_part_makes_a_sum_infinite_takes_one_honest_member_along_at_most(older: bool) -> None:
    """Only the others say so."""
    world = swarm(1, 2, spare=3)
    host = of_stage(world, older)
    honest: Callable[..., Any] = world.finish

    def finish(of: Host, life: int, task: fx.Task, result: Any) -> None:
        contributes = [peer for peer, count in task.group if count] if isinstance(task, fx.Reduce) else []
        if of is not host and host.peer in contributes and len(contributes) > 1:
            result = result._replace(value=0.0, fault="the gradient norm is not finite")
        honest(of, life, task, result)

    world.finish = finish  # type: ignore[method-assign]
    trains_without(world, host, 3 * SPOILT_SECONDS, others=1)


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("replicas", [2, 3])
def test_whose_finished_sum_is_refused_goes_and_before_it_one_that_came_later_at_most(
    replicas: int, older: bool
) -> None:
    """Those who get it name who made it (rule 43)."""
    world = swarm(1, replicas, spare=3)
    host, honest = of_stage(world, older), world.deliver

    def deliver(to: Host, event: ev.Event) -> None:
        if isinstance(event, ev.Done) and isinstance(event.task, fx.Reduce) and to is not host:
            counts = dict(event.task.group)
            if counts.get(host.peer) and counts.get(to.peer):  # who gives nothing knows of no bound
                event = replace(event, value=0.0, fault="the sum is too large", giver=host.peer)
        honest(to, event)

    world.deliver = deliver  # type: ignore[method-assign]
    trains_without(world, host, 3 * SPOILT_SECONDS, others=1 if older else 0)


def test_of_two_neighbours_of_whom_either_may_lie_only_the_liar_is_ever_lost_twice() -> None:
    """The one that goes comes back, and is not held responsible for what its accuser does next."""
    world = swarm(1, spare=2)
    host = world.by_id[seen(world).holders[stages_without_leader(world)[0]][0].id]
    spoils(world, host)
    gone = trains_without(world, host, 3 * SPOILT_SECONDS, others=1)
    world.notes.clear()
    world.run(world.now + SPOILT_SECONDS)
    assert len(gone) == 2 and set(lost(world)) <= {str(host.peer)}


# -- who has another sum


def says_other_sums(host: Host) -> Any:
    return other_sums(lambda owner, task: owner == str(host.peer) and task.stage == STAGE)


@pytest.mark.parametrize("older", [True, False])
def test_of_two_sums_the_odd_one_takes_one_honest_member_along_at_most(older: bool) -> None:
    world = swarm(1, 2, spare=3)
    world.alike = False
    host = of_stage(world, older)
    with says_other_sums(host):
        gone = trains_without(world, host, 4 * SPOILT_SECONDS, others=int(older))
    assert len(gone) == 1 + older, "which of the two is wrong shows the second time"


def test_without_a_memory_of_sums_the_older_one_stays_for_ever() -> None:
    with patched((Disputes, "settle", lambda self, view, gone, suspects: None)):
        world = swarm(1, 2, spare=3)
        world.alike = False
        host = of_stage(world, True)
        with says_other_sums(host), pytest.raises(AssertionError):
            trains_without(world, host, 6 * SPOILT_SECONDS, others=3)


@pytest.mark.parametrize("remembers", [True, False])
def test_who_names_a_groups_sum_in_every_step_is_replaced(remembers: bool) -> None:
    def way(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        return [
            replace(effect, message=replace(effect.message, stage=STAGE, microbatch=-1))
            if isinstance(effect, fx.Send) and isinstance(effect.message, Poisoned)
            else effect
            for effect in traitor.poisoning(event, decide)
        ]

    if remembers:
        world = swarm(1, 2, spare=3)
        host = of_stage(world, True)
        betrays(host, way)
        trains_without(world, host, 2 * SPOILT_SECONDS, others=0)
        return
    with patched((SpoiltSteps, "committed", lambda self, step, skipped: [])):
        world = swarm(1, 2, spare=3)
        host = of_stage(world, True)
        betrays(host, way)
        with pytest.raises(AssertionError):
            trains_without(world, host, 2 * SPOILT_SECONDS, others=0)
