"""Stages with several holders in the virtual world: nothing is lost with one, and nothing stops for one more."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from ftnode.protocol.holder import candidacy
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.leader.leavers import Leavers
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.planning import changes
from ftnode.protocol.recovery.standing import DONE_AGAIN, GOES_ON
from ftnode.protocol.step.group import Groups
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words.events import Leave
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, Version
from ftnode.protocol.words.view import View
from tests.sim.compute import Result
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.planted import patched
from tests.sim.reduction import Reductions
from tests.sim.targets import best_view, holders
from tests.sim.world import World

SETTINGS = Settings(
    listed=True,
    run="sim", stages=3, steps=16, microbatches=6, window=4, live_activations=2, replicas=3, head_every=1,
    lease_seconds=3.0, minority_wait_seconds=6.0, evaluate_every=5, evaluation_microbatches=1,
)  # fmt: skip


def final_weights(world: World) -> dict[int, set[int]]:
    """Stage → the histories of all weights of the last step."""
    steps = world.settings.steps
    found: dict[int, set[int]] = {}
    for host in world.live():
        for stage, weights in host.compute.weights.items():
            if weights.version.step == steps:
                found.setdefault(stage, set()).add(weights.history)
    return found


def train(seed: int, kills: int, settings: Settings = SETTINGS, *, full: bool = False) -> World:
    """A run with enough peers for full groups; every few commits somebody goes whose stages have another holder, if
    `full` not before all groups were full."""
    world, chance = World(settings, seed, delay_max=0.03), random.Random(seed)
    waits = [full]
    for index in range(settings.replicas * settings.stage_count):
        world.at(0.1 * index, world.start, (f"peer{index}", 1, True))
    left = [kills]

    def spare() -> list[Host]:
        view = best_view(world)
        groups = holders(world, view).values() if view is not None else []
        return [host for group in groups if len([h for h in group if not h.paused]) > 1 for host in group]

    def strike(tries: int) -> None:
        victims = spare()
        if victims:
            world.kill(
                chance.choice(sorted(victims, key=lambda host: host.peer)), "kill", silently=chance.random() < 0.3
            )
        elif tries:
            world.at(world.now + 0.5, strike, (tries - 1,))

    def on_commit(lineage: str, version: Version, skipped: bool) -> None:
        waits[0] = waits[0] and sizes(world) != [settings.replicas] * settings.stage_count
        if left[0] and version.step > 2 and not waits[0]:
            left[0] -= 1
            world.at(world.now + chance.uniform(0, 0.4), strike, (40,))

    world.on_commit = on_commit
    world.run(600.0, lambda: world.ledger.top_commit() >= settings.steps)
    world.run(world.now + 5.0)
    assert not waits[0], "all groups were full"
    return world


@pytest.mark.parametrize("seed", range(12))
def test_killed_replicas_leave_no_trace_in_the_weights(seed: int) -> None:
    quiet, disturbed = train(seed, 0), train(seed, 6)
    assert len([host for host in disturbed.hosts if not host.alive]) >= 4
    assert disturbed.losses == 0
    assert final_weights(disturbed) == final_weights(quiet)
    assert all(len(histories) == 1 for histories in final_weights(quiet).values())
    assert set(final_weights(quiet)) == set(range(SETTINGS.stage_count))


@pytest.mark.timeout(600)
def test_sixteen_holders_of_each_stage() -> None:
    """Eight of them die, once there are so many of each."""
    world = train(5, 8, replace(SETTINGS, replicas=16, microbatches=16, window=16, steps=48), full=True)
    view = best_view(world)
    assert view is not None
    assert len(world.live()) == 56
    assert sum(map(len, view.holders)) >= 50, "all but those who came last"
    assert min(map(len, view.holders)) >= 8
    assert max(map(len, view.holders)) <= 16
    assert all(len(histories) == 1 for histories in final_weights(world).values())
    assert world.losses == 0


def test_newcomers_are_admitted_together_and_no_step_waits_for_them() -> None:
    """Twelve peers come at once to a run of four: few views, and steps that take as long as before, or less."""
    settings = replace(SETTINGS, steps=400, head_every=0, evaluate_every=0)
    world = World(settings, 3, delay_max=0.01)
    times: list[float] = []
    world.on_commit = lambda lineage, version, skipped: times.append(world.now)
    for index in range(settings.stage_count):
        world.start(f"peer{index}", 1, True)
    world.run(30.0)
    view, came = best_view(world), world.now
    assert view is not None
    for index in range(8):
        world.start(f"late{index}", 1, True)
    world.run(60.0)
    later = best_view(world)
    assert later is not None
    assert sum(map(len, later.holders)) == 12
    assert later.number - view.number <= 4
    before = [b - a for a, b in pairwise(times) if 20.0 < a < came]
    after = [b - a for a, b in pairwise(times) if a > came]
    assert max(after) <= 1.5 * max(before)
    assert sorted(after)[len(after) // 2] < sorted(before)[len(before) // 2]


@kept
def grown(settings: Settings, seed: int = 3) -> World:
    """A run whose groups are full, and nobody stands by."""
    world = World(settings, seed, delay_max=0.01)
    for index in range(settings.replicas * settings.stage_count):
        world.at(0.1 * index, world.start, (f"peer{index}", 1, True))
    world.run(60.0, lambda: sizes(world) == [settings.replicas] * settings.stage_count)
    assert sizes(world) == [settings.replicas] * settings.stage_count
    return world


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "sums wait for the whole step"])
def test_a_sum_begins_while_other_stages_still_work(planted: bool) -> None:
    """A gradient comes to the last stage first. Its sum is being made when that of the first stage has not come yet."""
    settings = replace(SETTINGS, steps=400, replicas=2, evaluate_every=0)
    world, last = grown(settings), settings.stages
    begun: dict[int, float] = {}
    ended: dict[int, list[float]] = defaultdict(list)
    start, finish, due = Reductions.start, World.finish, Groups.due

    def on_start(self: Reductions, host: Host, task: fx.Reduce) -> None:
        if task.stage == last:
            begun.setdefault(task.step, world.now)
        start(self, host, task)

    def on_finish(self: World, host: Host, life: int, task: fx.Task, result: Result) -> None:
        if isinstance(task, fx.Backward) and task.stage == 1:
            ended[task.step].append(world.now)
        finish(self, host, life, task, result)

    def due_late(self: Groups, stage: int, now: float, checked: Peer | None = None) -> fx.Reduce | None:
        whole = len(ended[self.begin.step]) >= settings.microbatches
        return due(self, stage, now, checked) if whole or not planted else None

    with patched((Reductions, "start", on_start), (World, "finish", on_finish), (Groups, "due", due_late)):
        step = world.ledger.top_commit()
        world.run(world.now + 60.0, lambda: world.ledger.top_commit() >= step + 8)
    steps = range(step + 2, step + 8)
    assert all(begun[one] < max(ended[one]) for one in steps) is not planted


def sizes(world: World) -> list[int]:
    view = best_view(world)
    return [] if view is None else [len(group) for group in view.holders]


def test_a_spare_replica_takes_a_lost_stage_when_nobody_stands_by() -> None:
    world = grown(replace(SETTINGS, steps=400, replicas=2))
    view, step = best_view(world), world.ledger.top_commit()
    assert view is not None
    for host in holders(world, view)[2]:
        world.kill(host, "kill", silently=False)
    world.run(world.now + 30.0, lambda: world.ledger.top_commit() > step + 10)
    assert world.ledger.top_commit() > step + 10
    assert sorted(sizes(world)) == [1, 1, 2, 2]


def full_and_bereaved(seed: int) -> tuple[World, int]:
    """Of three with room for two stages each one is lost. The other two have just room for all four, where one of them
    gives up what both hold. And the step."""
    world = World(replace(SETTINGS, steps=100_000, replicas=2), seed, delay_max=0.03)
    for index in range(3):
        world.at(0.1 * index, world.start, (f"peer{index}", 2, True))
    world.run(60.0)
    view, step = best_view(world), world.ledger.top_commit()
    assert view is not None and step > 10
    held = {peer: {*view.stages_of(peer)} for peer in view.members()}
    for (one, theirs), (two, others) in combinations(held.items(), 2):
        (lost,) = held.keys() - {one, two}
        if theirs & others and len(theirs) == len(others) == 2:
            world.kill(world.by_id[lost.id], "kill", silently=False)
            return world, step
    raise AssertionError("no two of them are full and hold one stage both")


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 6])
def test_who_is_full_gives_up_a_replica_for_a_stage_that_nobody_holds(seed: int) -> None:
    world, step = full_and_bereaved(seed)
    world.run(world.now + 30.0, lambda: world.ledger.top_commit() > step + 10)
    assert world.ledger.top_commit() > step + 10
    assert sizes(world) == [1, 1, 1, 1]


def test_planted_only_who_holds_one_stage_gives_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the run waits for somebody to come, though there is room for all."""
    monkeypatch.setattr(candidacy, "_is_spare", lambda s: len(s.mine) == 1)
    world, step = full_and_bereaved(0)
    world.run(world.now + 60.0)
    assert world.ledger.top_commit() <= step + 1 and 0 in sizes(world)


def test_replicas_move_to_the_stage_that_limits_the_throughput_and_stay_there() -> None:
    world = grown(replace(SETTINGS, steps=100_000, replicas=4, microbatches=8, window=8, head_every=0))
    for host in world.live():
        host.forward_seconds = 0.1  # of seven minutes, fewer steps
    before = best_view(world)
    assert before is not None
    for host in holders(world, before)[2][1:]:
        world.kill(host, "kill", silently=False)
    world.run(world.now + 120.0)
    assert min(sizes(world)) >= 2, "a replica moved to where one holder did the work of four"
    world.run(world.now + 180.0)
    settled = best_view(world)
    world.run(world.now + 300.0)
    assert best_view(world) == settled, "no move in five quiet minutes"


@pytest.mark.parametrize("seed", range(4))
def test_a_newcomer_joins_over_slow_lines(seed: int) -> None:
    """80 ms one way; a learner gets a sum five of these after the only holder had it. When the step did not wait for
    that long it missed every sum, fetched every base, and never joined."""
    settings = replace(SETTINGS, steps=400, replicas=2, head_every=0, evaluate_every=0, lease_seconds=5.0)
    world = World(settings, seed)
    world.reductions.seconds = 0.4
    names = [f"peer{index}" for index in range(settings.stage_count + 1)]
    world.network.delays = dict.fromkeys(combinations(names, 2), 0.08)
    times: list[float] = []
    world.on_commit = lambda lineage, version, skipped: times.append(world.now)
    for name in names[:-1]:
        world.start(name, 1, True)
    world.run(30.0)
    world.start(names[-1], 1, True)
    world.run(50.0)
    view = best_view(world)
    assert view is not None and len(view.members()) == len(names)
    usual = max(b - a for a, b in pairwise(times) if a > 10.0 and b < 30.0)
    assert max(b - a for a, b in pairwise(times) if a > 30.0) < usual + 1.5 * settings.join_seconds


def leave(world: World, host: Host) -> None:
    host.cause = "leave"
    world.deliver(host, Leave("its owner wants the machine back"))


def go_home(settings: Settings, who: Callable[[World, View], Host], *, room: int = 1, standbys: int = 0) -> World:
    """A run with one holder of each stage, of whom one leaves after a few steps; `room`: of everybody."""
    world = World(settings, 4, delay_max=0.02)
    for index in range(settings.stage_count + standbys):
        world.at(0.1 * index, world.start, (f"peer{index}", room, True))
    world.run(60.0, lambda: world.ledger.top_commit() >= 4)
    view = best_view(world)
    assert view is not None
    host = who(world, view)
    leave(world, host)
    world.run(world.now + 60.0, lambda: not host.alive)
    assert not host.alive, "it left"
    world.run(world.now + 300.0, lambda: world.ledger.top_commit() >= settings.steps)
    world.run(world.now + 5.0)
    assert world.ledger.top_commit() >= settings.steps
    return world


def holder_of(stage: int) -> Callable[[World, View], Host]:
    return lambda world, view: holders(world, view)[stage][0]


def leads(world: World, view: View) -> Host:
    return next(host for host in world.live() if host.peer == view.leader)


@pytest.mark.parametrize(
    "who", [holder_of(0), holder_of(1), holder_of(3), leads], ids=["head", "first", "last", "leader"]
)
@pytest.mark.parametrize(
    ("room", "standbys"), [(1, 1), (2, 0)], ids=["a standby learns it", "a holder has room for it"]
)
def test_who_leaves_hands_over_first(who: Callable[[World, View], Host], room: int, standbys: int) -> None:
    """The only holder of a stage leaves: nothing is rebuilt, and the weights are those of a run that nobody left."""
    settings = replace(SETTINGS, replicas=1, head_every=0)
    world = go_home(settings, who, room=room, standbys=standbys)
    assert world.losses == 0
    assert {rung for _, rung in world.met} <= {"initial", "replica"}
    assert final_weights(world) == final_weights(train(4, 0, settings))


def test_a_replica_makes_room_for_what_a_leaver_holds_alone() -> None:
    world = grown(replace(SETTINGS, steps=400, replicas=2))
    view = best_view(world)
    assert view is not None
    one, other = holders(world, view)[2]
    for host in (one, other):
        leave(world, host)
    world.run(world.now + 30.0, lambda: not one.alive and not other.alive)
    assert not one.alive and not other.alive and world.losses == 0
    world.run(world.now + 10.0)
    assert sorted(sizes(world)) == [1, 1, 2, 2]


def test_who_has_a_replica_leaves_at_the_end_of_the_step() -> None:
    world = grown(replace(SETTINGS, steps=400, replicas=2))
    view, begun = best_view(world), world.now
    assert view is not None
    host = holders(world, view)[1][0]
    leave(world, host)
    world.run(begun + 10.0, lambda: not host.alive)
    assert not host.alive and world.now - begun < 2.0
    assert not any(GOES_ON in note or DONE_AGAIN in note for note in world.notes if float(note.split()[0]) > begun)


def test_when_all_leave_nobody_waits() -> None:
    world = grown(replace(SETTINGS, steps=400, replicas=2))
    world.run(world.now + 1.0)  # a view with newcomers may be a moment old, and they do not know of it yet
    for host in list(world.live()):
        leave(world, host)
    begun = world.now
    world.run(begun + 60.0, lambda: not world.live())
    assert not world.live() and world.now - begun < 2 * world.settings.lease_seconds


def test_one_grows_to_six_and_back_to_two_without_a_loss() -> None:
    settings = replace(SETTINGS, steps=400, replicas=2, head_every=0)
    world = World(settings, 6, delay_max=0.01)
    for index in range(6):
        world.at(6.0 * index, world.start, (f"peer{index}", settings.stage_count, True))
    world.run(50.0)
    view = best_view(world)
    assert view is not None and len(view.members()) == 6
    hosts = sorted(world.live(), key=lambda host: host.peer)
    for index, host in enumerate(hosts[:4]):
        world.at(world.now + 6.0 * index, leave, (world, host))
    world.run(world.now + 60.0)
    view, top = best_view(world), world.ledger.top_commit()
    assert view is not None and set(view.members()) == {host.peer for host in hosts[4:]}
    assert world.losses == 0 and not any(DONE_AGAIN in note or "skip" in note for note in world.notes)
    world.run(world.now + 10.0)
    assert world.ledger.top_commit() > top


def test_leaving_without_handing_over_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: a leader that lets a leaver go although nobody else has its stage."""
    monkeypatch.setattr(Leavers, "alone", lambda self, leaver, joins=(): [])
    world = go_home(replace(SETTINGS, replicas=1, head_every=0), holder_of(2), standbys=1)
    assert {rung for _, rung in world.met} - {"initial", "replica"}


def test_a_learner_that_joins_before_it_has_learnt_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready for the stage that it holds, it is taken for Ready for the one that it learns."""
    everybody = lambda self: tuple((stage, peer) for stage, peer in self.named() if peer in self.progress.ready)  # noqa: E731
    monkeypatch.setattr(Learners, "ready", everybody)
    world = go_home(replace(SETTINGS, replicas=1, head_every=0), holder_of(2), room=2)
    assert {rung for _, rung in world.met} - {"initial", "replica"}


MOVES_MAX = 6.0
"""Per peer-hour, when a tenth of the peers goes every hour."""


def moves_per_peer_hour(world: World, seed: int, hours: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """Twelve peers; each dies once in ten hours, and another comes two minutes later, which is all that is needed."""
    chance, peers = random.Random(seed), 12
    moves: list[Peer] = []
    vacate = Losses.vacate

    def counted(self: Losses, stage: int, peer: Peer, reason: str) -> None:
        moves.append(peer)
        vacate(self, stage, peer, reason)

    monkeypatch.setattr(Losses, "vacate", counted)
    for index in range(peers):
        world.start(f"peer{index}", 1, True)
    deaths = 0
    world.run(300.0)
    while world.now < 3600 * hours:
        world.run(world.now + chance.expovariate(peers * 0.1 / 3600))
        world.kill(chance.choice(sorted(world.live(), key=lambda host: host.peer)), "kill", silently=False)
        deaths += 1
        world.at(world.now + 120.0, world.start, (f"new{deaths}", 1, True))
    assert deaths >= 2
    return len(moves) / (peers * world.now / 3600)


def churning(seed: int) -> World:
    settings = replace(SETTINGS, steps=100_000, replicas=4, head_every=0, evaluate_every=0, lease_seconds=30.0)
    world = World(settings, seed, delay_max=0.03)
    world.forward_seconds = 4.0
    return world


@pytest.mark.parametrize("seed", [8, 9, 10])
def test_holders_do_not_flap_when_a_tenth_of_them_goes_every_hour(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert moves_per_peer_hour(churning(seed), seed, 2.0, monkeypatch) <= 0.1, f"{MOVES_MAX} are allowed"


def test_with_a_threshold_that_lets_every_move_pass_they_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "GAIN", -1.0)
    monkeypatch.setattr(changes, "pays_off", lambda *said: True)
    assert moves_per_peer_hour(churning(8), 8, 1.0, monkeypatch) > 0.1
