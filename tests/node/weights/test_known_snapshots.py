"""A stage that was really trained, from the disk of a node into its compute process, or into another node's."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import pytest
import trio
import trio.testing

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.state_shape import shape_of
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.snapshots import store
from ftnode.node.snapshots.format import KeptSnapshot, StageState
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.node.snapshots.write import DiskAllowance, write_snapshot
from ftnode.node.weights.installer import InstallOutcome
from ftnode.node.weights.known_snapshots import SAID_MAX, KnownSnapshots, snapshot_of
from ftnode.protocol.wire.frames import StateRequest
from ftnode.protocol.words.effects import Install
from ftnode.protocol.words.events import Event, Installed, InstallFailed, Snapshots
from ftnode.protocol.words.messages import Donor, Plan
from ftnode.protocol.words.types import Peer, Rung
from tests.node.compute.computing import CONFIG, STAGES, Direct, Port, direct
from tests.node.snapshots.keeping import RUN
from tests.node.snapshots.saving import Node as Trainer
from tests.node.snapshots.saving import settled, version
from tests.node.weights.lending import SETTINGS, Network
from tests.node.weights.test_copies_of_torch import Node as Mover

STAGE = 2


@pytest.fixture
def config(tmp_path: Path) -> ComputeConfig:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 400)
    return replace(CONFIG, data=str(text))


def kept_by(home: Path, config: ComputeConfig, steps: int = 2) -> tuple[Trainer, bytes]:
    """A disk with every stage of each second step, and the state of STAGE after the last one."""
    trainer = Trainer(home, config)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            for step in range(1, steps + 1):
                trainer.train(step)
                await settled(trainer, step // 2 * (STAGES + 1))
            nursery.cancel_scope.cancel()

    trio.run(main)
    return trainer, state_of(trainer.compute)


def state_of(compute: Direct) -> bytes:
    return bytes(compute.backend._stages[STAGE].state("all").detach().numpy().tobytes())  # type: ignore[attr-defined]


class Side(Mover):
    """A node with a disk, whose compute has nothing yet."""

    def __init__(self, name: str, home: Path, config: ComputeConfig, network: Network) -> None:
        self.direct = direct(config, range(0))
        super().__init__(name, config, self.direct.arena, Port(self.direct), network)
        self.told: list[Event] = []
        self.lines: list[str] = []
        """What its owner is told."""
        self.disk = KnownSnapshots(SnapshotStore(home, RUN), shape_of(config), self.told.append, self._say)
        self.installer.disk = self.donor.disk = self.disk

    def _say(self, kind: str, text: str, **fields: str) -> None:
        assert kind == "snapshot"
        self.lines.append(text)


def snapshot(home: Path, step: int = 2) -> KeptSnapshot:
    kept = SnapshotStore(home, RUN).kept()
    return next(one for one in kept if (one.stage, one.version.step) == (STAGE, step))


async def fill(side: Side, home: Path, *donors: str, digest: str = "") -> InstallOutcome:
    lent = tuple(Donor(STAGE, Peer(name, 1), ()) for name in donors)
    digest = digest or snapshot(home).whole_digest
    plan = Plan(STAGE, side.peer, Rung.SNAPSHOT, lent, 1.0, "on a disk", version(2), digest)
    return await side.installer.install(Install(plan, version(2)))


def run(main: Callable[[Network], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await main(Network(nursery))
                nursery.cancel_scope.cancel()

    trio.run(bounded)


@pytest.mark.parametrize("donor", ["me", "other"])
def test_a_stage_comes_back_whole_from_ones_own_disk_or_anothers(
    donor: str, tmp_path: Path, config: ComputeConfig
) -> None:
    """Weights, moments, count of updates: all that trains on is as it was. Who lends holds nothing itself."""
    trainer, state = kept_by(tmp_path / "kept", config)

    async def main(network: Network) -> None:
        me = Side("me", tmp_path / ("kept" if donor == "me" else "bare"), config, network)
        Side("other", tmp_path / "kept", config, network)
        outcome = await fill(me, tmp_path / "kept", donor)
        assert isinstance(outcome.event, Installed), outcome.event
        assert (outcome.event.bytes_fetched > 0) == (donor == "other")
        assert state_of(me.direct) == state
        stages = [compute.backend._stages[STAGE] for compute in (me.direct, trainer.compute)]  # type: ignore[attr-defined]
        mine, theirs = ((s.version, s.updates, s.rate_factor, s.norm_squared) for s in stages)
        assert mine == theirs
        (record,) = outcome.donors
        assert (record.stage, record.peer.id, record.digest) == (STAGE, donor, outcome.event.digest)

    run(main)


def test_who_loads_a_snapshot_shows_that_it_works_after_each_piece(
    tmp_path: Path, config: ComputeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a slow disk would be taken for a hang, and the compute process be killed."""
    kept_by(tmp_path / "kept", config)
    pieces: list[int] = []
    monkeypatch.setattr(store, "PIECE_BYTES", 1024)

    async def main(network: Network) -> None:
        me = Side("me", tmp_path / "kept", config, network)
        me.direct.backend._progress = lambda: pieces.append(1)  # type: ignore[attr-defined]
        assert isinstance((await fill(me, tmp_path / "kept", "me")).event, Installed)

    run(main)
    assert len(pieces) >= snapshot(tmp_path / "kept").bytes // 1024 - 8


def damage(home: Path) -> None:
    path = snapshot(home).folder / "optimiser.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)


def test_a_damaged_snapshot_is_told_of_no_more_and_the_next_donor_is_asked(
    tmp_path: Path, config: ComputeConfig
) -> None:
    _, state = kept_by(tmp_path / "kept", config)
    kept_by(tmp_path / "spoilt", config)
    damage(tmp_path / "spoilt")

    async def main(network: Network) -> None:
        me = Side("me", tmp_path / "spoilt", config, network)
        Side("other", tmp_path / "kept", config, network)
        alone = await fill(me, tmp_path / "kept", "me")
        assert isinstance(alone.event, InstallFailed) and "is damaged" in alone.event.reason
        (told,) = me.told
        assert (
            isinstance(told, Snapshots) and STAGE not in {one.stage for one in told.kept} and len(told.kept) == STAGES
        )
        helped = await fill(me, tmp_path / "kept", "me", "other")
        assert isinstance(helped.event, Installed) and state_of(me.direct) == state

    run(main)


def test_who_lends_finds_the_damage_first(tmp_path: Path, config: ComputeConfig) -> None:
    kept_by(tmp_path / "kept", config)
    digest = snapshot(tmp_path / "kept").whole_digest
    damage(tmp_path / "kept")

    async def main(network: Network) -> None:
        me, other = (Side(name, tmp_path / home, config, network) for name, home in (("me", "bare"), ("other", "kept")))
        other.donor._held = lambda stage: None
        outcome = await fill(me, tmp_path / "kept", "other", digest=digest)
        assert isinstance(outcome.event, InstallFailed) and other.told

    run(main)


def edited(kept: Path, home: Path, edit: Callable[[bytearray, StageState], StageState]) -> None:
    """Another disk with the same snapshot of STAGE, of whose optimiser and counts `edit` makes others; all its hashes
    fit."""
    source = snapshot(kept)
    parts = SnapshotStore(kept, RUN).load(source)
    state = edit(parts["optimiser"], source.index.state)
    whole = memoryview(parts["weights"] + parts["optimiser"])
    write_snapshot(SnapshotStore(home, RUN), whole, replace(source.index, state=state), DiskAllowance(2, 10**9, 0), ())


def another_moment(moments: bytearray, state: StageState) -> StageState:
    moments[-5] ^= 4
    return state


@pytest.mark.parametrize(
    "edit",
    [
        another_moment,
        lambda moments, state: replace(state, updates=state.updates - 1),
        lambda moments, state: replace(state, rate_factor=9.0),
    ],
    ids=["moments", "count", "rate"],
)
def test_weights_alone_do_not_make_a_snapshot_the_one_that_was_agreed_on(
    edit: Callable[[bytearray, StageState], StageState], tmp_path: Path, config: ComputeConfig
) -> None:
    """Whoever lends it has the right weights, and hashes that fit what it lends; the next donor is asked."""
    _, state = kept_by(tmp_path / "kept", config)
    edited(tmp_path / "kept", tmp_path / "liar", edit)
    honest, liar = snapshot(tmp_path / "kept"), snapshot(tmp_path / "liar")
    assert liar.digest == honest.digest and snapshot_of(liar).digest != snapshot_of(honest).digest
    assert liar.folder.name != honest.folder.name, "both can lie on one disk"

    async def main(network: Network) -> None:
        me = Side("me", tmp_path / "bare", config, network)
        Side("liar", tmp_path / "liar", config, network)
        Side("other", tmp_path / "kept", config, network)
        refused = await fill(me, tmp_path / "kept", "liar")
        assert isinstance(refused.event, InstallFailed) and "another digest" in refused.event.reason
        assert refused.event.donor == Peer("liar", 1)
        helped = await fill(me, tmp_path / "kept", "liar", "other")
        assert isinstance(helped.event, Installed) and state_of(me.direct) == state

    run(main)


def test_what_legitimately_differs_is_not_in_the_digest(tmp_path: Path, config: ComputeConfig) -> None:
    kept_by(tmp_path / "kept", config)
    edited(tmp_path / "kept", tmp_path / "other", lambda moments, state: replace(state, norm_squared=7.0))
    one, other = snapshot(tmp_path / "kept"), snapshot(tmp_path / "other")
    assert one.index.state != other.index.state and one.index.saved != other.index.saved
    assert snapshot_of(one) == snapshot_of(other)


def test_a_borrower_that_reads_slowly_keeps_nobody_waiting(tmp_path: Path, config: ComputeConfig) -> None:
    """Nor memory; and what is removed while it reads is lent to its end."""
    kept_by(tmp_path / "kept", config)

    async def main(network: Network) -> None:
        other = Side("other", tmp_path / "kept", config, network)
        other.donor._held = lambda stage: None
        request = replace(REQUEST, run=SETTINGS.run)
        with trio.fail_after(20):
            async with AsyncExitStack() as slow:
                loans = [await slow.enter_async_context(other.donor.lend(request, f"slow {n}")) for n in range(4)]
                first = await loans[0].chunk(0)
                other.direct.arena.release(first.handle)
                me = Side("me", tmp_path / "bare", config, network)
                outcome = await fill(me, tmp_path / "kept", "other")
                assert isinstance(outcome.event, Installed), outcome.event
                shutil.rmtree(snapshot(tmp_path / "kept").folder)
                for loan in loans:
                    for index in range(loan.header.chunks):
                        chunk = await loan.chunk(index)
                        view = other.direct.arena.view(chunk.handle)[: chunk.length]
                        assert hashlib.blake2b(view, digest_size=16).digest() == chunk.hash
                        other.direct.arena.release(chunk.handle)

    run(main)


def test_a_snapshot_with_another_digest_than_agreed_is_refused(tmp_path: Path, config: ComputeConfig) -> None:
    kept_by(tmp_path / "kept", config)

    async def main(network: Network) -> None:
        me = Side("me", tmp_path / "bare", config, network)
        Side("other", tmp_path / "kept", config, network)
        outcome = await fill(me, tmp_path / "kept", "other", digest="0" * 32)
        assert isinstance(outcome.event, InstallFailed) and "another digest" in outcome.event.reason

    run(main)


def test_all_that_is_told_is_read_once_and_what_is_damaged_is_withdrawn(tmp_path: Path, config: ComputeConfig) -> None:
    kept_by(tmp_path / "kept", config, steps=4)
    damage(tmp_path / "kept")

    async def main(network: Network) -> None:
        me = Side("me", tmp_path / "kept", config, network)
        me.disk.tell()
        await me.disk.check()
        first, second = me.told
        assert isinstance(first, Snapshots) and isinstance(second, Snapshots)
        assert len(first.kept) == 2 * (STAGES + 1) and set(first.kept) > set(second.kept)
        (gone,) = set(first.kept) - set(second.kept)
        assert (gone.stage, gone.version, gone.epoch) == (STAGE, version(2), 3)

    run(main)


INSTEAD = "where the run needs that stage, it comes from another disk, an earlier snapshot or the neighbours' weights"


def test_the_owner_is_told_of_what_is_damaged_where_it_is_and_what_comes_instead(
    tmp_path: Path, config: ComputeConfig
) -> None:
    home = tmp_path / "kept"
    kept_by(home, config, steps=4)
    damage(home)
    folder, other = snapshot(home).folder, snapshot(home, 4).folder
    (other / "weights.safetensors").write_bytes(b"torn")

    async def main(network: Network) -> None:
        me = Side("me", home, config, network)
        await me.disk.check()
        torn, damaged = me.lines
        assert torn.startswith(f"a snapshot is not whole ({other}/weights.safetensors has 4 bytes")
        assert torn.endswith(f"it goes with the next save; {INSTEAD}")
        assert damaged.startswith("stage 2 of step 2 is damaged on this disk (optimiser.safetensors is damaged: ")
        assert damaged.endswith(f"; it stays in {folder} until newer ones are kept; {INSTEAD}")

    run(main)


@contextmanager
def refused(part: Path) -> Iterator[None]:
    """A file that nobody may read for so long; root may read all that its rights refuse to others."""
    with pytest.MonkeyPatch.context() as patch:
        path_open, os_open = Path.open, os.open

        def opened_by_path(path: Path, *arguments: Any, **options: Any) -> Any:
            return path_open(path, *arguments, **options) if path != part else refuse()

        def opened_by_name(path: Any, *arguments: Any, **options: Any) -> int:
            return os_open(path, *arguments, **options) if path != part else refuse()

        def refuse() -> Never:
            raise PermissionError(errno.EACCES, "Permission denied")

        patch.setattr(Path, "open", opened_by_path)
        patch.setattr(os, "open", opened_by_name)
        yield


async def read_at_the_start(me: Side, home: Path) -> None:
    await me.disk.check()


async def asked_for_by_another(me: Side, home: Path) -> None:
    async with me.disk.lend(REQUEST, Arena(64, 4)) as reading:
        assert reading is None


async def loaded(me: Side, home: Path) -> None:
    outcome = await fill(me, home, "me")
    assert isinstance(outcome.event, InstallFailed) and "Permission denied" in outcome.event.reason


@pytest.mark.parametrize("use", [read_at_the_start, asked_for_by_another, loaded])
def test_what_cannot_be_read_just_now_is_not_damaged_and_counts_again_when_it_can(
    use: Callable[[Side, Path], Awaitable[None]], tmp_path: Path, config: ComputeConfig
) -> None:
    home = tmp_path / "kept"
    kept_by(home, config)
    kept = snapshot(home)

    async def main(network: Network) -> None:
        me = Side("me", home, config, network)
        with refused(kept.folder / "optimiser.safetensors"):
            await use(me, home)
            await me.disk.try_again()
        (line,) = me.lines
        assert line.startswith(
            "stage 2 of step 2 cannot be read just now (cannot read optimiser.safetensors: Permission"
        )
        assert f"; it stays in {kept.folder} and counts again as soon as it can be read; " in line
        assert isinstance(me.told[-1], Snapshots) and snapshot_of(kept) not in me.told[-1].kept
        await me.disk.try_again()
        assert isinstance(me.told[-1], Snapshots) and snapshot_of(kept) in me.told[-1].kept
        assert isinstance((await fill(me, home, "me")).event, Installed)

    run(main)


def test_an_index_that_cannot_be_read_just_now_is_not_called_torn(tmp_path: Path, config: ComputeConfig) -> None:
    kept_by(tmp_path / "kept", config)
    folder = snapshot(tmp_path / "kept").folder

    async def main(network: Network) -> None:
        me = Side("me", tmp_path / "kept", config, network)
        with refused(folder / "index.json"):
            await me.disk.check()
        (line,) = me.lines
        assert line.startswith(
            f"a snapshot cannot be read just now (cannot read {folder}/index.json: Permission denied)"
        )
        assert "; it stays; " in line

    run(main)


def test_what_is_damaged_as_well_is_called_so_once_it_can_be_read(tmp_path: Path, config: ComputeConfig) -> None:
    kept_by(tmp_path / "kept", config)
    damage(tmp_path / "kept")

    async def main(network: Network) -> None:
        me = Side("me", tmp_path / "kept", config, network)
        with refused(snapshot(tmp_path / "kept").folder / "weights.safetensors"):
            await me.disk.check()
        await me.disk.try_again()
        assert ["is damaged on this disk" in line for line in me.lines] == [False, True]

    run(main)


def test_a_disk_full_of_damage_does_not_fill_the_terminal(tmp_path: Path, config: ComputeConfig) -> None:
    kept_by(tmp_path / "kept", config, steps=4)
    for kept in SnapshotStore(tmp_path / "kept", RUN).kept():
        (kept.folder / "weights.safetensors").write_bytes(b"torn")

    async def main(network: Network) -> None:
        me = Side("me", tmp_path / "kept", config, network)
        await me.disk.check()
        assert len(me.lines) == SAID_MAX < 2 * (STAGES + 1)

    run(main)


REQUEST = StateRequest(RUN, STAGE, 2, version(2).commit, "all", "raw", False, False, -1)


async def lent_by(disk: KnownSnapshots) -> None:
    async with disk.lend(REQUEST, Arena(64, 4)):
        raise AssertionError("it was not read before")


@pytest.mark.parametrize("read", [lambda disk: disk.check(), lent_by], ids=["check", "lend"])
def test_who_ends_does_not_wait_for_a_slow_disk(
    read: Callable[[KnownSnapshots], Awaitable[object]], tmp_path: Path, config: ComputeConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And nothing goes on reading behind its back."""
    kept_by(tmp_path / "kept", config)
    reading, go, pieces = threading.Event(), threading.Event(), list[int]()

    def slow(_descriptor: int, start: int, _length: int) -> None:
        pieces.append(start)
        reading.set()
        go.wait(5)
        go.set()

    monkeypatch.setattr(store, "PIECE_BYTES", 1024)
    monkeypatch.setattr(store, "read_ahead", slow)

    async def main(network: Network) -> None:
        disk = Side("me", tmp_path / "kept", config, network).disk
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, disk)
            assert await trio.to_thread.run_sync(reading.wait, 10)
            nursery.cancel_scope.cancel()
        go.set()
        async with disk._reading:
            assert len(pieces) == 1 and not disk._damaged

    run(main)


def test_a_run_that_keeps_none_tells_of_none() -> None:
    told: list[Event] = []
    disk = KnownSnapshots(None, shape_of(CONFIG), told.append)
    disk.tell()
    trio.run(disk.check)
    assert not told and disk.find(STAGE, version(2), "d") is None
