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
from ftnode.protocol.liveness.moves import IN_VAIN_MAX
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.patience import LEADER_LEASES
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.messages import Begin, Boundary, Heartbeat, Poisoned, Propose, Share, Stored, Wait, Waits
from ftnode.protocol.words.types import HEAD, Direction, Peer
from ftnode.protocol.words.view import View
from tests.sim.compute import Poison
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
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


@kept
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


HELD_BACK_SECONDS: Final = 0.8 * LEASE


class HoldsBack:
    """What a leader gives as a member comes so much later than it could."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held: list[tuple[float, fx.Effect]] = []

    def __call__(self, event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        now, out = self.world.now, list[fx.Effect]()
        for effect in decide(event):
            late = isinstance(effect, fx.Send) and isinstance(effect.message, Begin)
            self.held.append((now + HELD_BACK_SECONDS if late else now, effect))
        out.extend(effect for due, effect in self.held if due <= now)
        self.held = [(due, effect) for due, effect in self.held if due > now]
        return out


def test_a_leader_that_holds_its_part_back_stays_and_slows_the_run_down() -> None:
    """It is not defended, as SECURITY.md says: it keeps below every bound."""
    world = swarm(1)
    view, before = seen(world), world.ledger.top_commit()
    world.run(world.now + TRAINS_SECONDS)
    usual = world.ledger.top_commit() - before
    betrays(world.by_id[view.leader.id], HoldsBack(world))
    before = world.ledger.top_commit()
    world.run(world.now + 4 * TRAINS_SECONDS)
    steps = world.ledger.top_commit() - before
    assert seen(world).leader == view.leader and not [note for note in world.notes if " lost: " in note]
    assert 0 < steps < usual, (steps, usual)


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


def keeps_gradients(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
    """It acknowledges the gradients that it is given, and says that it waits for them."""
    message = event.message if isinstance(event, ev.Received) else None
    if not isinstance(event, ev.Received) or not isinstance(message, Boundary) or event.handle is None:
        return decide(event)
    if message.direction is Direction.FORWARD:
        return decide(event)
    place = message.lineage, message.step, message.attempt, message.microbatch, message.visit, message.direction
    return [fx.Release((event.handle,)), fx.Send(event.sender, Stored(*place), None)]


def keeps_those_of_the_leader() -> None:
    """Who does so stands beside the leader, and goes."""
    world = swarm(1)
    view = seen(world)
    host = world.by_id[view.holders[-1][0].id]
    assert view.leader in view.holders[HEAD] and host.peer != view.leader
    betrays(host, keeps_gradients)
    goes_on_without(world, host, OWES_SECONDS)


def test_who_says_that_it_waits_for_what_it_has_of_the_leader_is_replaced() -> None:
    keeps_those_of_the_leader()


def test_a_leader_that_believes_it_waits_for_itself() -> None:
    """Without this rule."""
    with patched((Duty, "_owed", lambda self, s, sender, wait: wait)), pytest.raises(AssertionError):
        keeps_those_of_the_leader()


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
    """A long run of bad batches costs one holder, and the one that gives it the numbers; nobody else."""
    world = swarm(1, spare=3)
    at = world.ledger.top_commit()
    world.poisons += [Poison(step, 0, visits[0], False, 100) for step in range(at + 3, at + 15)]
    world.notes.clear()
    world.run(world.now + 120.0)
    assert world.ledger.top_commit() > at + 20
    assert sum("spoilt two steps" in note for note in world.notes if " lost: " in note) == 2


def test_whose_sum_differs_from_most_others_is_replaced() -> None:
    """Of two, see test_at_odds.py."""
    world = swarm(1, replicas=3)
    world.alike = False
    odd = traitor_of(world, 2)
    with other_sums(lambda owner, task: owner == str(odd.peer) and task.stage == 2):
        world.run(world.now + POISONED_SECONDS)
    assert odd.peer not in seen(world).members()
    assert {note.split(" lost: ")[1].split()[0] for note in world.notes if " lost: " in note} <= {str(odd.peer)}


# -- lies about who is waited for

EXCUSED_SECONDS: Final = LONG.stall_seconds + 3 * LEASE
"""An excuse counts for two leases longer than it can be true, and begins when others stand still."""
SUMMING_SECONDS: Final = LONG.sum_seconds + 3 * LEASE


def says_that_others(
    world: World, host: Host, way: traitor.Way, waits: Callable[[World, Host], tuple[Wait, ...]]
) -> traitor.Way:
    """It goes this way, and says with each heartbeat that it waits for these."""

    def lies(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        effects = [each for each in way(event, decide) if not isinstance(getattr(each, "message", None), Waits)]
        begin, view = host.participant.holder.begin, seen(world)
        if begin is not None and any(isinstance(getattr(each, "message", None), Heartbeat) for each in effects):
            said = Waits(begin.lineage, begin.view, begin.step, begin.attempt, waits(world, host))
            effects.append(fx.Send(view.leader, said, None))
        return effects

    return lies


def do_not_acknowledge(world: World, host: Host) -> tuple[Wait, ...]:
    """Of every microbatch, the next on its path."""
    view = seen(world)
    stage = view.stages_of(host.peer)[0]
    after = view.holders[(stage + 1) % len(view.holders)][0]
    return tuple(Wait(m, stage + 1, Direction.FORWARD, after, False) for m in range(LONG.microbatches))


def do_not_acknowledge_by_turns(world: World, host: Host) -> tuple[Wait, ...]:
    """Of one half of the microbatches, and then of the other."""
    said, half = do_not_acknowledge(world, host), int(world.now / LONG.heartbeat_seconds) % 2
    return said[half::2]


def make_the_sum(world: World, host: Host) -> tuple[Wait, ...]:
    """It says that it has all parts of its own. Who complains about another is in test_at_odds.py."""
    return (Wait(-1, host.participant.mine[0], Direction.FORWARD, host.peer, False),)


def shielded(lie: str, seconds: float) -> None:
    """The liar is found within the bound, and nobody else is named."""
    ways = {"sum": (2, traitor.unready, make_the_sum), "turns": (1, traitor.idle, do_not_acknowledge_by_turns)}
    replicas, way, waits = ways.get(lie, (1, traitor.idle, do_not_acknowledge))
    world = swarm(1, replicas)
    host = traitor_of(world, stages_without_leader(world)[-2])
    betrays(host, says_that_others(world, host, way, waits))
    goes_on_without(world, host, seconds)


LIES: Final = {
    "tensor": EXCUSED_SECONDS + OWES_SECONDS, "turns": EXCUSED_SECONDS + OWES_SECONDS,
    "sum": SUMMING_SECONDS + OWES_SECONDS,
}  # fmt: skip


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_lie_about_who_is_waited_for_shields_nobody_for_long(lie: str) -> None:
    shielded(lie, LIES[lie])


@pytest.mark.parametrize("lie", ["tensor", "sum"])
def test_an_excuse_without_an_end_shields_for_ever(lie: str) -> None:
    endless = (Duty, "_excuses", lambda self, s, sender, wait: True)
    with patched(endless, NOBODY_IS_IDLE), pytest.raises(AssertionError):
        shielded(lie, 4 * LIES[lie])


NOBODY_IS_IDLE: Final = (Situation, "leader_idle", property(lambda self: False))


# -- a leader that does nothing


IDLE_SECONDS: Final = (
    LONG.task_seconds + LONG.sum_seconds + LEADER_LEASES * LEASE
    + 2 * LONG.takeover_seconds + 2 * LONG.ballot_seconds + SETTLES_SECONDS
)  # fmt: skip
"""The longest that a leader that does its duty lets pass, a vote at the second turn, an offer and a step."""


def only(world: World, keeps: Callable[[fx.Send], bool]) -> Host:
    """The leader sends nothing else from now on."""
    host = world.by_id[seen(world).leader.id]
    betrays(host, lambda event, decide: [e for e in decide(event) if not isinstance(e, fx.Send) or keeps(e)])
    return host


def idle_leader(how: str, seed: int, spare: int = 2) -> tuple[World, Host]:
    world = swarm(seed, spare=spare)
    newest = world.ledger.top_commit() + 1
    refuses: dict[str, Callable[[fx.Send], bool]] = {
        "only beats": lambda sent: isinstance(sent.message, Heartbeat),
        "begins nothing": lambda sent: not isinstance(sent.message, Begin),
        "commits nothing": lambda sent: not (isinstance(sent.message, Begin) and sent.message.step > newest),
        "replaces nobody": lambda sent: not isinstance(sent.message, Propose),
    }
    host = only(world, refuses[how])
    if how == "replaces nobody":
        betrays(traitor_of(world, stages_without_leader(world)[-1]), traitor.idle)
    return world, host


VIEWS_SECONDS: Final = (IN_VAIN_MAX + 1) * (LONG.stall_seconds + 2 * LEASE)
"""A leader that lacks answers to its Begin replaces others for it, until that counts no more."""
IDLE_BOUNDS: Final = {
    "begins nothing": IDLE_SECONDS + VIEWS_SECONDS, "commits nothing": IDLE_SECONDS + VIEWS_SECONDS,
    "replaces nobody": 2 * IDLE_SECONDS,
}  # fmt: skip


@pytest.mark.parametrize("how", ["only beats", "begins nothing", "commits nothing", "replaces nobody"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_leader_that_is_idle_is_replaced(how: str, seed: int) -> None:
    world, host = idle_leader(how, seed)
    before = world.ledger.top_commit()
    world.run(world.now + IDLE_BOUNDS.get(how, IDLE_SECONDS), lambda: world.ledger.top_commit() >= before + 3)
    assert world.ledger.top_commit() >= before + 3 and seen(world).leader != host.peer
    assert sum("has let nothing be done" in note for note in world.notes if " lost: " in note) >= 1


@pytest.mark.parametrize("how", ["only beats", "commits nothing"])
def test_a_leader_that_nobody_looks_at_stops_the_run(how: str) -> None:
    with patched(NOBODY_IS_IDLE):
        world, _ = idle_leader(how, 1)
        before = world.ledger.top_commit()
        world.run(world.now + 2 * IDLE_SECONDS + VIEWS_SECONDS)
        assert world.ledger.top_commit() <= before + 1


def test_a_leader_is_not_idle_where_the_only_holder_of_a_stage_is_slow() -> None:
    world = swarm(1, spare=0)
    leader = seen(world).leader
    host = traitor_of(world, stages_without_leader(world)[-1])
    world.run(world.now + 5.0)
    host.forward_seconds = 20.0
    world.run(world.now + 10 * IDLE_SECONDS)
    assert not any("has let nothing be done" in note for note in world.notes) and leader == seen(world).leader


def test_a_leader_is_not_idle_while_the_run_halts() -> None:
    """The head and all that keep it are gone, and nobody else comes."""
    world = swarm(1, spare=0)
    for stage in (1, 2):
        for peer in seen(world).holders[stage]:
            world.kill(world.by_id[peer.id], "kill", silently=False)
    world.run(world.now + 10 * IDLE_SECONDS)
    assert not any("has let nothing be done" in note for note in world.notes)
