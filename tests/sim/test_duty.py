"""Whoever holds a step up is replaced within a bound that follows measured times, and nobody else is (rule 38)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.leader.duty import Duty
from ftnode.protocol.leader.leader import Leader
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.spoilt_steps import SpoiltSteps
from ftnode.protocol.liveness.deadlines import Deadline
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.messages import Poisoned, Share, Wait
from ftnode.protocol.words.types import HEAD, Peer
from ftnode.protocol.words.view import View
from tests.sim.compute import Poison
from tests.sim.host import Host
from tests.sim.planted import other_sums, patched
from tests.sim.targets import best_view
from tests.sim.test_groups import SETTINGS
from tests.sim.world import World

LEASE: Final = 6.0
LONG: Final = replace(
    SETTINGS, steps=100_000, microbatches=4, window=2, replicas=1, head_every=1, evaluate_every=0,
    lease_seconds=LEASE, minority_wait_seconds=9.0,
)  # fmt: skip
TRAINS_SECONDS: Final = 30.0
SETTLES_SECONDS: Final = 2 * LEASE
"""From the loss of a member to the next commit: an offer, a vote, a rebuild and a step."""
OWES_SECONDS: Final = LEASE + 4 * LONG.heartbeat_seconds + SETTLES_SECONDS
"""A lease is the least patience, which steps of less than a second leave as it is; words on who waits begin after two
heartbeats, and are looked at once in each."""
DEAF_SECONDS: Final = 2 * LEASE + 4 * LONG.heartbeat_seconds + SETTLES_SECONDS
"""A lease without an acknowledgement, and one of reports to the leader."""

BOUNDS: Final[dict[str, float]] = {"idle": OWES_SECONDS, "unready": OWES_SECONDS, "deaf": DEAF_SECONDS}


def seen(world: World) -> View:
    view = best_view(world)
    assert view is not None
    return view


def betrays(host: Host, way: traitor.Way) -> None:
    """From now on the host's core is overruled."""
    honest: Callable[[ev.Event, float], list[fx.Effect]] = host.participant.handle

    def handle(event: ev.Event, now: float) -> list[fx.Effect]:
        effects = way(event, lambda seen: honest(seen, now))
        return [effect for effect in effects if not lost_twice(host, effect)]

    host.participant.handle = handle  # type: ignore[method-assign]


def lost_twice(host: Host, effect: fx.Effect) -> bool:
    """Its core still knows of tensors that the traitor has let go of."""
    return isinstance(effect, fx.Send) and effect.handle is not None and effect.handle not in host.tensors


def swarm(seed: int, replicas: int = 1, spare: int = 1, **changes: Any) -> World:
    """One peer for each place, and `spare` that stand by. It trains, and a step has just begun: who is idle in a group
    while the sum is made is found out by the sum's own time (rule 23)."""
    settings = replace(LONG, replicas=replicas, **changes)
    world = World(settings, seed, delay_max=0.03)
    world.notes = deque()
    for index in range(replicas * settings.stage_count + spare):
        world.at(0.1 * index, world.start, (f"peer{index}", 1, True))
    world.run(TRAINS_SECONDS)
    commit = world.ledger.top_commit()
    world.run(2 * TRAINS_SECONDS, lambda: world.ledger.top_commit() > commit)
    return world


def traitor_of(world: World, stage: int) -> Host:
    """A holder of the stage that does not lead."""
    view = seen(world)
    return next(world.by_id[peer.id] for peer in view.holders[stage] if peer != view.leader)


def stages_without_leader(world: World) -> list[int]:
    view = seen(world)
    return [stage for stage, group in enumerate(view.holders) if set(group) != {view.leader}]


def goes_on_without(world: World, host: Host, seconds: float) -> None:
    """The host is out of the view, and two steps are committed, within the bound; no other host is named."""
    before = world.ledger.top_commit()
    begun = world.now
    world.run(
        begun + seconds,
        lambda: world.ledger.top_commit() >= before + 3 and host.peer not in seen(world).members(),
    )
    assert host.peer not in seen(world).members(), [note for note in world.notes if " lost: " in note]
    assert world.ledger.top_commit() >= before + 3, [other.participant.waiting() for other in world.live()]
    gone = [note for note in world.notes if " lost: " in note and f"lost: {host.peer}" not in note]
    assert gone == []


@pytest.mark.parametrize("way", sorted(BOUNDS))
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_who_holds_a_step_up_is_replaced(way: str, seed: int, place: int) -> None:
    world = swarm(seed)
    host = traitor_of(world, stages_without_leader(world)[place])
    betrays(host, traitor.WAYS[way])
    goes_on_without(world, host, BOUNDS[way])


@pytest.mark.parametrize("way", sorted(BOUNDS))
def test_the_heads_holder_is_replaced_when_another_leads(way: str) -> None:
    world = swarm(1, spare=2)
    world.kill(world.by_id[seen(world).leader.id], "kill", silently=False)
    world.run(world.now + TRAINS_SECONDS)
    world.notes.clear()
    host = traitor_of(world, HEAD)
    betrays(host, traitor.WAYS[way])
    goes_on_without(world, host, BOUNDS[way])


@pytest.mark.parametrize("way", sorted(BOUNDS))
@pytest.mark.parametrize("stage", [HEAD, 1, 3])
def test_one_of_a_group_is_replaced_and_the_others_stay(way: str, stage: int) -> None:
    world = swarm(1, replicas=2)
    host = traitor_of(world, stage)
    betrays(host, traitor.WAYS[way])
    goes_on_without(world, host, BOUNDS[way])


@pytest.mark.parametrize("way", ["silent about its share", "without a validation"])
def test_who_does_all_but_one_thing_is_replaced(way: str) -> None:
    world = swarm(1, replicas=2 if way == "silent about its share" else 1, evaluate_every=1, evaluation_microbatches=2)
    host = traitor_of(world, stages_without_leader(world)[-1])
    betrays(host, silent_about_its_share if way == "silent about its share" else without_a_validation)
    goes_on_without(world, host, OWES_SECONDS)


def silent_about_its_share(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
    """It accumulates, and does not tell its group what."""
    return [
        effect for effect in decide(event) if not (isinstance(effect, fx.Send) and isinstance(effect.message, Share))
    ]


def without_a_validation(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
    """It computes nothing of a validation."""
    return [
        effect
        for effect in decide(event)
        if not (isinstance(effect, fx.Compute) and isinstance(effect.task, fx.Forward) and effect.task.validation)
    ]


def slow_from_now_on() -> tuple[int, int]:
    """Nobody stands by, and one holder's device is thirty times as slow as it was: what is committed, and how often
    somebody is lost."""
    world = swarm(1, spare=0)
    host = traitor_of(world, stages_without_leader(world)[-1])
    before = world.ledger.top_commit()
    host.forward_seconds = 3.0
    world.run(world.now + 400.0)
    return world.ledger.top_commit() - before, sum(" lost: " in note for note in world.notes)


def test_the_only_one_for_a_stage_may_be_slow() -> None:
    """It is removed, is the only candidate, and comes back: then it has more time."""
    committed, lost = slow_from_now_on()
    assert committed >= 5 and lost <= 3


def test_without_more_time_it_would_come_and_go_for_ever() -> None:
    with patched((Deadline, "passed", lambda self: None)):
        committed, lost = slow_from_now_on()
    assert committed < 5 and lost > 10


@pytest.mark.parametrize("way", ["idle", "unready"])
def test_a_leader_that_names_nobody_waits_for_ever(way: str) -> None:
    """Without this rule."""
    with patched((Duty, "beat", lambda self, s: Outcome())):
        world = swarm(1)
        host = traitor_of(world, stages_without_leader(world)[-1])
        betrays(host, traitor.WAYS[way])
        with pytest.raises(AssertionError):
            goes_on_without(world, host, 2 * OWES_SECONDS)


def test_a_leader_that_blames_who_waits_removes_the_honest() -> None:
    """What the words on who waits are for."""
    original = Duty._waits

    def waits(self: Duty, s: Situation) -> list[tuple[Peer, Wait]]:
        return [(peer, replace(wait, peer=peer)) for peer, wait in original(self, s)]

    with patched((Duty, "_waits", waits)):
        world = swarm(1)
        host = traitor_of(world, stages_without_leader(world)[-1])
        betrays(host, traitor.WAYS["idle"])
        with pytest.raises(AssertionError):
            goes_on_without(world, host, OWES_SECONDS)


# -- spoilt numbers (rule 25)


def trains_again(world: World, host: Host, seconds: float) -> None:
    """The host is out of the view within the bound, nobody else is, and five steps in a row count."""
    world.notes.clear()
    counted: list[bool] = []
    world.on_commit = lambda lineage, version, skipped: counted.append(not skipped)
    world.run(world.now + seconds, lambda: host.peer not in seen(world).members() and counted[-5:] == [True] * 5)
    assert host.peer not in seen(world).members() and counted[-5:] == [True] * 5, counted
    assert {note.split(" lost: ")[1].split()[0] for note in world.notes if " lost: " in note} == {str(host.peer)}


POISONED_SECONDS: Final = 10.0 + SETTLES_SECONDS
"""Two steps of three attempts, a view, and five steps more: of less than a second each."""


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_who_names_poison_in_every_step_is_replaced(seed: int, replicas: int) -> None:
    world = swarm(seed, replicas)
    host = traitor_of(world, stages_without_leader(world)[-1])
    betrays(host, traitor.poisoning)
    trains_again(world, host, POISONED_SECONDS)


def skips_with_views_in_between() -> int:
    """How many steps are skipped until the poisoning member is gone. Another one dies in each of the first two."""
    world = swarm(1, spare=4)
    view = seen(world)
    host, *others = [world.by_id[peer.id] for peer in view.members() if peer != view.leader]
    poisoned: set[int] = set()
    skipped: list[int] = []

    def on_send(sender: Host, effect: fx.Effect) -> None:
        said = effect.message if isinstance(effect, fx.Send) else None
        if sender is host and isinstance(said, Poisoned) and said.step not in poisoned:
            poisoned.add(said.step)
            if others:
                world.at(world.now + 0.1, lambda victim: world.kill(victim, "kill", silently=False), (others.pop(),))

    world.on_send = on_send
    world.on_commit = lambda lineage, version, skip: skipped.extend([version.step] * skip)
    betrays(host, traitor.poisoning)
    world.run(world.now + 60.0, lambda: host.peer not in seen(world).members())
    assert not others and host.peer not in seen(world).members()
    return len(skipped)


def test_a_view_in_between_does_not_begin_the_count_anew() -> None:
    assert skips_with_views_in_between() == 2
    original = Leader.__init__

    def forgets(self: Leader, s: Situation, view: View, memory: LeaderMemory, *rest: Any) -> None:
        memory.spoilt = SpoiltSteps()
        original(self, s, view, memory, *rest)

    with patched((Leader, "__init__", forgets)):
        assert skips_with_views_in_between() > 2


@pytest.mark.parametrize("planted", ["nobody is remembered", "a skip is tried without end"])
def test_without_a_memory_poison_has_no_end(planted: str) -> None:
    bugs: dict[str, Any] = {
        "nobody is remembered": (SpoiltSteps, "committed", lambda self, step, skipped: frozenset()),
        "a skip is tried without end": (LeaderMemory, "poisonings", lambda self, step: 0),
    }
    with patched(bugs[planted]):
        world = swarm(1)
        host = traitor_of(world, stages_without_leader(world)[-1])
        betrays(host, traitor.poisoning)
        with pytest.raises(AssertionError):
            trains_again(world, host, 2 * POISONED_SECONDS)


@pytest.mark.parametrize("visits", [(1, 1), (2, 2)])
def test_where_the_successor_names_poison_as_well_it_stays(visits: tuple[int, int]) -> None:
    """A long run of bad batches costs one holder at most, and no more than one rebuild."""
    world = swarm(1, spare=3)
    at = world.ledger.top_commit()
    world.poisons += [Poison(step, 0, visits[0], False, 100) for step in range(at + 3, at + 15)]
    world.notes.clear()
    world.run(world.now + 120.0)
    assert world.ledger.top_commit() > at + 20
    assert sum("spoilt two steps" in note for note in world.notes if " lost: " in note) == 1


@pytest.mark.parametrize(("replicas", "gone"), [(2, False), (3, True)])
def test_whose_sum_differs_from_most_others_is_replaced(replicas: int, gone: bool) -> None:
    world = swarm(1, replicas)
    world.alike = False
    odd = traitor_of(world, 2)
    with other_sums(lambda owner, task: owner == str(odd.peer) and task.stage == 2):
        world.run(world.now + POISONED_SECONDS)
    assert (odd.peer not in seen(world).members()) is gone
    assert {note.split(" lost: ")[1].split()[0] for note in world.notes if " lost: " in note} <= {str(odd.peer)}
