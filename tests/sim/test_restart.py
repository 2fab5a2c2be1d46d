"""Whole swarms that are switched off and start again from their disks (rules 34 to 37)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace

import pytest

from ftnode.protocol.words.effects import Install
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, Rung, Version
from ftnode.protocol.words.view import View
from tests.sim.directory import DirectoryService
from tests.sim.host import Host
from tests.sim.targets import best_view
from tests.sim.test_groups import final_weights
from tests.sim.world import World

SETTINGS = Settings(
    listed=True,
    run="sim", stages=3, steps=14, microbatches=2, window=2, head_every=1, lease_seconds=3.0, minority_wait_seconds=6.0,
    snapshot_every=3,
)  # fmt: skip
SEED = 5


class Swarm:
    """One world, what was installed in it, and when it began a step after a restart."""

    def __init__(self, settings: Settings = SETTINGS, peers: int = 4, seed: int = SEED) -> None:
        self.world = World(settings, seed, delay_max=0.02)
        self.installed: list[tuple[str, int, Rung, Version]] = []
        self.world.on_installed = self._on_installed
        self.commits: list[tuple[float, int]] = []
        self.world.on_commit = lambda lineage, version, skipped: self.commits.append((self.world.now, version.step))
        for index in range(peers):
            self.world.start(f"peer{index}", 1, True)

    def _on_installed(self, host: Host, effect: Install) -> None:
        self.installed.append((host.peer.id, effect.plan.stage, effect.plan.rung, effect.base))

    def until(self, step: int, seconds: float = 400.0) -> None:
        """Until a step is committed that was not before."""
        seen = len(self.commits)
        self.world.run(self.world.now + seconds, lambda: any(told >= step for _, told in self.commits[seen:]))
        assert any(told >= step for _, told in self.commits[seen:]), "\n".join(self.world.notes)

    def goes_on(self) -> None:
        """The lineage that all are in commits."""
        view = best_view(self.world)
        assert view is not None
        commits = self.world.ledger.commits[view.lineage.id]
        target = max(commits) + 3
        self.world.run(self.world.now + 100.0, lambda: max(commits) >= target)
        assert max(commits) >= target

    def power_cut(self, *, lose: Collection[str] = (), away: Collection[str] = (), after: float = 0.0) -> list[str]:
        """Everybody is killed; some lose their disks, some stay away, all others come back within two seconds."""
        self.world.run(self.world.now + after)
        hosts = self.world.live()
        self.installed.clear()
        for index, host in enumerate(hosts):
            self.world.kill(host, "power", silently=False)
            if host.peer.id in lose:
                self.world.disks.lose(host.peer.id)
            if host.peer.id not in away:
                self.world.at(self.world.now + 0.5 + 0.4 * index, self.world.start, (host.peer.id, 1, True))
        return [host.peer.id for host in hosts]

    def holder_of(self, stage: int) -> str:
        view = best_view(self.world)
        assert view is not None
        return view.holders[stage][0].id

    def rungs(self) -> dict[int, Rung]:
        return {stage: rung for _, stage, rung, _ in self.installed}

    def waiting(self) -> list[str]:
        return [host.participant.waiting() for host in self.world.live()]


def switched_off_without_a_part_of_step_nine() -> Swarm:
    """All have step 6, and all but one step 9."""
    swarm = Swarm()
    swarm.until(7)
    late = swarm.holder_of(2)
    swarm.world.disks.seconds = 0.0
    swarm.until(10)
    swarm.world.disks.held[late] = [one for one in swarm.world.disks.held[late] if one.snapshot.version.step < 9]
    swarm.power_cut()
    return swarm


def undisturbed(settings: Settings = SETTINGS) -> dict[int, set[int]]:
    swarm = Swarm(settings)
    swarm.until(settings.steps)
    swarm.world.run(swarm.world.now + 2.0)
    return final_weights(swarm.world)


@pytest.mark.parametrize("after", [0.0, 0.1, 0.3, 0.7])
def test_a_swarm_that_starts_again_ends_as_one_that_was_never_switched_off(after: float) -> None:
    """Every stage from its own disk, with its optimiser, at the newest step that all kept: to the bit."""
    swarm = Swarm()
    swarm.until(7)
    swarm.power_cut(after=after)
    swarm.until(SETTINGS.steps)
    swarm.world.run(swarm.world.now + 2.0)
    assert swarm.rungs() == dict.fromkeys(range(4), Rung.SNAPSHOT)
    assert {base.step for *_, base in swarm.installed} <= {3, 6, 9} and len({base for *_, base in swarm.installed}) == 1
    assert final_weights(swarm.world) == undisturbed()


def test_nobody_is_told_that_a_run_that_starts_again_is_founded_anew() -> None:
    swarm = Swarm()
    swarm.world.notes = deque()
    swarm.until(7)
    founded = "the run is founded (change 0"
    assert any(founded in note for note in swarm.world.notes)
    swarm.world.notes.clear()
    swarm.power_cut()
    swarm.until(7)
    told = "\n".join(swarm.world.notes)
    assert founded not in told and "starts the run" not in told, told
    assert "a swarm comes together again" in told


def test_a_save_that_the_power_cut_tore_is_no_snapshot_and_the_one_before_is_taken() -> None:
    swarm = Swarm()
    swarm.until(8)
    swarm.world.disks.seconds = 100.0  # none of step 9 is ever whole
    swarm.until(11)
    swarm.power_cut()
    swarm.until(SETTINGS.steps)
    swarm.world.run(swarm.world.now + 2.0)
    assert {base.step for *_, base in swarm.installed} == {6}
    assert final_weights(swarm.world) == undisturbed()


def test_a_newer_step_that_some_have_is_waited_for_and_then_given_up() -> None:
    """Exact weights of all stages come before newer ones of some; who has the others' part may be minutes late."""
    swarm = switched_off_without_a_part_of_step_nine()
    started = swarm.world.now
    swarm.until(7)
    assert {base.step for *_, base in swarm.installed} == {6} and set(swarm.rungs().values()) == {Rung.SNAPSHOT}
    assert swarm.commits[-1][0] - started > SETTINGS.restart_wait_seconds


def test_a_stage_that_nobody_kept_is_rebuilt_from_its_neighbours() -> None:
    swarm = Swarm()
    swarm.until(8)
    swarm.power_cut(lose=[swarm.holder_of(2)])
    swarm.until(SETTINGS.steps)
    assert swarm.rungs() == {0: Rung.SNAPSHOT, 1: Rung.SNAPSHOT, 2: Rung.BLEND, 3: Rung.SNAPSHOT}


def test_the_disk_of_somebody_who_holds_another_stage_now_lends_its_snapshot() -> None:
    """A stranger came first and has the stage; who kept it stands by."""
    swarm = Swarm()
    swarm.until(8)
    keeper = swarm.holder_of(2)
    swarm.power_cut(away=[keeper])
    swarm.world.start("stranger", 1, True)
    swarm.world.run(200.0, lambda: any(text.startswith("others who were there") for text in swarm.waiting()))
    swarm.world.start(keeper, 1, True)
    swarm.until(SETTINGS.steps)
    assert set(swarm.rungs().values()) == {Rung.SNAPSHOT}
    assert [stage for peer, stage, _, _ in swarm.installed if peer == "stranger"] == [2]


def test_the_head_that_nobody_kept_halts_the_run_until_its_keeper_comes() -> None:
    swarm = Swarm()
    swarm.until(8)
    head = swarm.holder_of(0)
    swarm.power_cut(away=[head])
    swarm.world.start("stranger", 1, True)
    swarm.world.run(swarm.world.now + 200.0)
    told = [text for text in swarm.waiting() if text.startswith("halted: ")]
    assert len(told) == 1 and "of step 6 the disks here have stages 1 to 3 and not the head" in told[0]
    swarm.world.start(head, 1, True)
    swarm.until(SETTINGS.steps)
    swarm.world.run(swarm.world.now + 2.0)
    assert final_weights(swarm.world) == undisturbed()


def test_who_lived_on_with_too_little_to_go_on_is_waited_for_and_then_goes_back_with_the_others() -> None:
    """Somebody may bring the rest of what is in memory; when nobody does, disks are better than a halt."""
    swarm = Swarm()
    swarm.until(8)
    survivor = swarm.world.by_id[swarm.holder_of(2)]
    swarm.installed.clear()
    for index, host in enumerate(swarm.world.live()):
        if host is not survivor:
            swarm.world.kill(host, "power", silently=False)
            swarm.world.at(swarm.world.now + 0.5 + 0.4 * index, swarm.world.start, (host.peer.id, 1, True))
    swarm.world.run(200.0, lambda: any(text.startswith("halted: ") for text in swarm.waiting()))
    since = swarm.world.now
    told = [text for text in swarm.waiting() if text.startswith("halted: ")]
    assert len(told) == 1
    assert told[0].endswith("; or from disks at step 6, 12 s after it halted")
    swarm.until(SETTINGS.steps)
    assert min(at for at, step in swarm.commits if at > since) - since >= SETTINGS.restart_wait_seconds
    assert {(base.step, rung) for _, _, rung, base in swarm.installed} == {(6, Rung.SNAPSHOT)}
    swarm.world.run(swarm.world.now + 2.0)
    assert final_weights(swarm.world) == undisturbed()


def test_more_steps_than_the_manifest_lets_be_lost_halt_the_run() -> None:
    swarm = Swarm(replace(SETTINGS, rollback_max=4))
    swarm.until(4)
    swarm.world.run(swarm.world.now + 1.0)
    head, swarm.world.disks.seconds = swarm.holder_of(0), 0.0
    swarm.until(10)
    disk = swarm.world.disks.held[head]
    swarm.world.disks.held[head] = [one for one in disk if one.snapshot.version.step == 3]
    saved = [one for one in disk if one.snapshot.version.step == 9]
    swarm.power_cut()
    swarm.world.run(swarm.world.now + 200.0)
    told = [text for text in swarm.waiting() if text.startswith("halted: ")]
    assert told == [
        "halted: the disks here make step 3 possible and step 9 is known; the manifest lets 4 steps be lost; "
        "it goes on when newer disks come"
    ]
    swarm.world.disks.held[head].extend(saved)
    swarm.world.disks.tell(swarm.world.by_id[head])
    swarm.until(SETTINGS.steps)
    assert {base.step for *_, base in swarm.installed} == {9}


def test_a_run_that_was_never_stored_starts_as_ever() -> None:
    """No wait, no other lineage: the same moments to the last message."""
    told = []
    for every in (0, 13):
        swarm = Swarm(replace(SETTINGS, snapshot_every=every, steps=4))
        swarm.until(4)
        told.append((swarm.world.events, swarm.commits))
    assert told[0] == told[1]


def halves(settings: Settings) -> tuple[Swarm, set[str], set[str]]:
    """Eight peers with all groups full, and two sides that have every stage."""
    swarm = Swarm(replace(settings, replicas=2, steps=1000), peers=8)

    def full() -> bool:
        view = best_view(swarm.world)
        return view is not None and all(len(group) == 2 for group in view.holders) and len(view.voters) == 8

    swarm.world.run(60.0, full)
    assert full()
    swarm.until(max(step for _, step in swarm.commits) + 5)
    view = best_view(swarm.world)
    assert view is not None
    near, far = ({group[side].id for group in view.holders} for side in (0, 1))
    return swarm, near, far


def cut(swarm: Swarm, near: set[str], far: set[str]) -> set[tuple[str, str]]:
    pairs = {pair for a in near for b in far for pair in ((a, b), (b, a))}
    swarm.world.network.block(pairs)
    return pairs


class TwoSides(DirectoryService):
    """Each side sees its own records, as long as `near` says who is on which."""

    __slots__ = ("near",)

    def __init__(self, world: World, near: set[str]) -> None:
        super().__init__(world, 0.0)
        self.near = near

    def _visible(self, reader: Host) -> tuple[tuple[Presence, ...], tuple[View, ...]]:
        presences, views = super()._visible(reader)
        side = reader.peer.id in self.near
        seen = tuple(one for one in presences if (one.peer.id in self.near) == side or not self.near)
        return seen, tuple(view for view in views if (view.leader.id in self.near) == side or not self.near)


def lineages(swarm: Swarm) -> set[str]:
    return {host.view.lineage.id for host in swarm.world.live() if host.view is not None}


def test_two_halves_that_start_again_apart_become_one() -> None:
    swarm, near, far = halves(SETTINGS)
    swarm.power_cut()
    pairs = cut(swarm, near, far)
    swarm.world.directory = apart = TwoSides(swarm.world, near)
    swarm.world.run(swarm.world.now + 60.0)
    both = {name for name, commits in swarm.world.ledger.commits.items() if min(commits) > 0}
    assert len(lineages(swarm)) == 2 and lineages(swarm) <= both
    apart.near = set()
    swarm.world.network.heal(pairs)
    swarm.world.run(swarm.world.now + 60.0, lambda: len(lineages(swarm)) == 1)
    assert len(lineages(swarm)) == 1
    swarm.goes_on()


def test_a_lineage_that_lived_on_wins_against_one_from_disks() -> None:
    swarm, near, far = halves(SETTINGS)
    pairs = cut(swarm, near, far)
    shelves = swarm.world.directory.shelves
    swarm.world.directory = apart = TwoSides(swarm.world, near)
    apart.shelves |= {name: shelf for name, shelf in shelves.items() if name in near}
    for host in swarm.world.live():
        if host.peer.id in far:
            swarm.world.kill(host, "power", silently=False)
    swarm.world.run(swarm.world.now + 20.0)
    living = lineages(swarm)
    assert len(living) == 1
    for name in sorted(far):
        swarm.world.start(name, 1, True)
    swarm.world.run(swarm.world.now + 30.0)
    restarted = {host.view.lineage for host in swarm.world.live() if host.peer.id in far and host.view is not None}
    assert len(restarted) == 1 and next(iter(restarted)).start is not None
    assert next(iter(restarted)).id not in living
    apart.near = set()
    swarm.world.network.heal(pairs)
    swarm.world.run(swarm.world.now + 60.0, lambda: len(lineages(swarm)) == 1)
    assert lineages(swarm) == living
    swarm.goes_on()


def test_epochs_go_on_above_those_of_the_past() -> None:
    swarm = Swarm()
    swarm.until(5)
    swarm.world.start("late", 1, True)
    swarm.world.run(swarm.world.now + 1.0)
    swarm.world.kill(swarm.world.by_id[swarm.holder_of(3)], "kill", silently=False)
    swarm.until(10)
    before = best_view(swarm.world)
    assert before is not None and max(before.epochs) > 0
    swarm.power_cut(after=1.0)
    swarm.until(11)
    view = best_view(swarm.world)
    assert view is not None and min(view.epochs) > max(before.epochs)


def test_peers_are_told_from_each_other_by_their_lives() -> None:
    """Nobody who starts again votes with the voice of the life before (rule 1)."""
    swarm = Swarm()
    swarm.until(7)
    names = swarm.power_cut()
    swarm.until(8)
    view = best_view(swarm.world)
    assert view is not None and {peer.id for peer in view.members()} <= set(names)
    assert all(isinstance(peer, Peer) and peer.nonce > 4 for peer in view.voters)


def test_a_run_that_is_over_is_over_again() -> None:
    """For those who want the model: its last step is loaded and validated, and nobody trains on."""
    settings = replace(SETTINGS, steps=9, evaluation_microbatches=1)
    swarm = Swarm(settings)
    swarm.until(9)
    swarm.world.run(swarm.world.now + 3.0)
    swarm.power_cut()
    swarm.world.run(swarm.world.now + 200.0)
    assert {base.step for *_, base in swarm.installed} == {9} and len(swarm.installed) == 4
    assert any(host.participant.leader and host.participant.leader.finished for host in swarm.world.live())
    assert all(host.participant.holder.finished for host in swarm.world.live())
    assert max(swarm.world.live()[0].participant.chronicle.validation) == 9
