"""From a stage that trains to the disk and back: what is kept, when, and that training goes on from it to the bit."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.snapshots.disk import Disk
from ftnode.node.snapshots.format import KeptSnapshot
from ftnode.node.snapshots.save_request import SnapshotRequests
from ftnode.node.snapshots.store import read_snapshot
from ftnode.node.snapshots.write import DiskAllowance
from tests.node.compute.computing import ATTEMPT, CONFIG, STAGES, Direct, Refused, direct, train
from tests.node.snapshots.saving import Node, settled, version


@pytest.fixture
def config(tmp_path: Path) -> ComputeConfig:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 400)
    return replace(CONFIG, data=str(text))


def load(compute: Direct, node: Node, step: int) -> list[str]:
    kept = {each.stage: each for each in node.store.kept() if each.version.step == step}
    return [
        compute.call("snapshot_load", stage=stage, folder=str(kept[stage].folder), step=step, commit=f"c{step}",
                     attempt=ATTEMPT)["digest"] for stage in range(STAGES + 1)
    ]  # fmt: skip


class Slow(Disk):
    """Creates no file before it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def create(self, path: Path) -> int:
        assert self.go_on.wait(20)
        return super().create(path)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_training_goes_on_to_the_bit(tmp_path: Path, config: ComputeConfig, precision: str) -> None:
    if precision == "float64":
        config = replace(config, precision="float64", boundary="float64", slot_bytes=2 * config.slot_bytes)
    node = Node(tmp_path, config)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            second = node.train(2)
            third = node.train(3)  # while it is being written
            await settled(node, STAGES + 1)
            assert all("of step 2 is kept" in line for line in node.said)
            assert any(line.startswith("the head of step 2") for line in node.said)
            assert any(line.startswith("stage 1 of step 2") for line in node.said)
            again = direct(config, range(0))
            assert load(again, node, 2) == second["digests"]
            assert train(again, 3) == third
            nursery.cancel_scope.cancel()

    trio.run(main)
    (kept,) = [each for each in node.store.kept() if each.stage == 2]
    assert kept.version == version(2) and kept.index.lineal.epoch == 3 and kept.index.lineal.view == 5
    assert kept.index.state.updates == 2 and kept.index.state.norm_squared > 0 and kept.index.data.next_step == 3


def test_a_limit_below_two_of_each_is_said_once(tmp_path: Path, config: ComputeConfig) -> None:
    node = Node(tmp_path, config)
    one = sum(map(node.memory.bytes, node.held))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            for limit, step in ((2 * one, 2), (2 * one - 1, 4), (2 * one - 1, 6)):
                node.saver._allowance = DiskAllowance(2, limit, 0)
                node.train(step - 1)
                node.train(step)
                assert sum("two snapshots of all" in line for line in node.said) == (step > 2)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_save_that_is_still_written_makes_the_next_one_wait_its_turn(tmp_path: Path, config: ComputeConfig) -> None:
    """Step 4 is left out and that is said; step 2, whose memory step 4 would have taken, is kept as it was."""
    disk = Slow()
    go_on, node = disk.go_on, Node(tmp_path, config, disk)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            second = node.train(2)
            node.train(3)
            node.train(4)
            assert node.said[0].startswith("step 4 of the head is not kept: an earlier snapshot is still being")
            go_on.set()
            await settled(node, 2 * (STAGES + 1))
            assert load(direct(config, range(0)), node, 2) == second["digests"]
            assert {kept.version.step for kept in node.store.kept()} == {2}
            node.train(5)
            node.train(6)
            await settled(node, 3 * (STAGES + 1))
            assert {kept.version.step for kept in node.store.kept()} == {2, 6}
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_all_is_kept_now_at_any_step(tmp_path: Path, config: ComputeConfig) -> None:
    """Behind what is still being written; the memory of the copies is free then, and training goes on to the bit."""
    disk = Slow()
    go_on, node = disk.go_on, Node(tmp_path, config, disk)
    stages = range(STAGES + 1)
    told: list[str] = []

    async def main() -> None:
        async def keep() -> None:
            told.append(await node.saver.keep_now(stages))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            node.train(2)
            third = node.train(3)
            with trio.move_on_after(0):  # of a pause that is taken back
                await node.saver.keep_now(stages)
            async with trio.open_nursery() as saving:
                saving.start_soon(keep)
                await trio.testing.wait_all_tasks_blocked()
                assert told == []
                go_on.set()
            assert told == [""] and node.saver.keeps
            assert {kept.version.step for kept in node.store.kept()} == {2, 3}
            assert all(node.memory.missing(stage) for stage in stages)
            assert load(direct(config, range(0)), node, 3) == third["digests"]
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_what_cannot_be_kept_now_says_why(tmp_path: Path, config: ComputeConfig) -> None:
    class Full(Disk):
        def write(self, descriptor: int, content: memoryview | bytes, offset: int) -> None:
            raise OSError(28, "no space")

    node = Node(tmp_path, config, Full())

    async def main() -> None:
        assert await node.saver.keep_now([0]) == "this node has no stages now"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            assert "the disk is full" in await node.saver.keep_now([0, 1])
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert not Node(tmp_path, config, every=0).saver.keeps


def test_trouble_is_said_and_training_goes_on(tmp_path: Path, config: ComputeConfig) -> None:
    class Full(Disk):
        def write(self, descriptor: int, content: memoryview | bytes, offset: int) -> None:
            if full:
                raise OSError(28, "no space")
            super().write(descriptor, content, offset)

    full: list[bool] = []
    node = Node(tmp_path, config, Full(), every=1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            await settled(node, 4)
            full.append(True)
            node.train(2)
            await settled(node, 8)
            assert node.said[4].startswith("cannot keep stage") and "step 2: the disk is full" in node.said[4]
            assert {kept.version.step for kept in node.store.kept()} == {1}
            full.clear()
            node.train(3)
            await settled(node, 12)
            assert {kept.version.step for kept in node.store.kept()} == {1, 3}
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_node_that_ends_drops_what_is_half_written(tmp_path: Path, config: ComputeConfig) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow(Disk):
        def create(self, path: Path) -> int:
            begun.set()
            assert go_on.wait(20)
            return super().create(path)

        def remove(self, path: Path) -> None:
            super().remove(path)
            ended.set()

    node = Node(tmp_path, config, Slow(), every=1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            await trio.to_thread.run_sync(begun.wait)
            nursery.cancel_scope.cancel()

    trio.run(main)
    go_on.set()
    assert ended.wait(20)
    assert node.store.kept() == () and node.said == []
    node.saver.applied(1, version(2))
    assert node.said == []


def test_memory_goes_with_the_stage(tmp_path: Path, config: ComputeConfig) -> None:
    node = Node(tmp_path, config)
    train(node.compute, 1)
    node.compute.call("snapshot_copy", stage=1, step=1)
    assert any(node.memory.view(1))
    node.saver.forgotten(1)
    assert not any(node.memory.view(1))


def test_what_cannot_be_loaded_is_refused(tmp_path: Path, config: ComputeConfig) -> None:
    node = Node(tmp_path, config, every=1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            await settled(node, 4)
            nursery.cancel_scope.cancel()

    trio.run(main)
    kept = next(each for each in node.store.kept() if each.stage == 1)
    right: dict[str, Any] = {"folder": str(kept.folder), "stage": 1, "step": 1, "commit": "c1", "attempt": ATTEMPT}
    compute = direct(config)
    for wrong, says in (
        ({"step": 2}, "is stage 1 of step 1 (c1), not stage 1 of step 2 (c1)"),
        ({"commit": "c9"}, "not stage 1 of step 1 (c9)"),
        ({"stage": 2}, "not stage 2 of step 1"),
        ({"folder": str(tmp_path / "none")}, "cannot read"),
    ):
        with pytest.raises(Refused) as caught:
            compute.call("snapshot_load", **{**right, **wrong})
        assert says in str(caught.value) and caught.value.kind == "invalid"
    with pytest.raises(Refused, match=r"q_proj.weight has shape \(16, 16\), not \(32, 32\)"):
        direct(replace(config, dim=32, slot_bytes=2 * config.slot_bytes), range(0)).call("snapshot_load", **right)
    assert compute.call("snapshot_load", **right)["digest"] == kept.digest
    (kept.folder / "weights.safetensors").write_bytes(bytes(kept.index.parts["weights"].bytes))
    with pytest.raises(Refused, match="no safetensors header"):
        compute.call("snapshot_load", **right)
    with pytest.raises(Refused, match="has no weights here"):
        compute.call("snapshot_copy", stage=1, step=1)


def test_a_stage_is_saved_once_to_a_path(tmp_path: Path, config: ComputeConfig) -> None:
    node = Node(tmp_path / "home", config, every=0)
    requests = SnapshotRequests(node.saver)

    async def ask(do: str, **fields: Any) -> dict[str, Any]:
        return dict(await requests.handlers[do]({"do": do, **fields}))

    async def saved(**fields: Any) -> dict[str, Any]:
        state = await ask("snapshot", **fields)
        with trio.fail_after(20):
            while state.get("waiting"):
                await trio.testing.wait_all_tasks_blocked(0.001)
                state = await ask("snapshot-state")
        return state

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            state = await saved(to=str(tmp_path / "all"), stage=None)
            assert sorted(each["folder"] for each in state["saved"]) == [
                str(tmp_path / "all" / f"stage-{k}") for k in range(4)
            ]
            assert state["troubles"] == [] and {each["step"] for each in state["saved"]} == {1}
            for place, stage, says in (
                (tmp_path / "all", None, "is there already"),
                (tmp_path / "one", 9, "stage 9 is not held here, which holds 0, 1, 2, 3"),
                (Path("one"), 1, "choose another place"),
                (tmp_path / "none" / "all", None, "cannot create"),
                (tmp_path / ("x" * 300), 1, "File name too long; choose another place"),
            ):
                assert says in (await saved(to=str(place), stage=stage))["error"]
            assert len((await saved(to=str(tmp_path / "one"), stage=2))["saved"]) == 1
            state = await saved(to=str(tmp_path / "none" / "one"), stage=2)
            assert "No such file or directory" in state["troubles"][0]
            node.held.clear()
            assert "it holds no stage" in (await saved(to=str(tmp_path / "x"), stage=None))["error"]
            nursery.cancel_scope.cancel()

    trio.run(main)
    kept = read_snapshot(tmp_path / "one")
    assert kept.version == version(1) and node.store.verify(kept) == "" and not (tmp_path / "home").exists()


def test_who_asks_while_a_snapshot_is_written_waits_for_it(tmp_path: Path, config: ComputeConfig) -> None:
    """Or until the node rests, and is told so then."""
    go_on = threading.Event()

    class Slow(Disk):
        def create(self, path: Path) -> int:
            assert go_on.wait(20)
            return super().create(path)

    node = Node(tmp_path / "home", config, Slow())
    done: list[KeptSnapshot] = []
    failed: list[str] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            node.train(2)
            node.saver.once(1, tmp_path / "one", done.append, failed.append)
            node.saver.once(1, tmp_path / "two", done.append, failed.append)
            assert failed == ["stage 1 is to be saved already"] and not done
            go_on.set()
            await settled(node, STAGES + 1)
            with trio.fail_after(20):
                while not done:
                    await trio.testing.wait_all_tasks_blocked(0.001)
            go_on.clear()
            node.train(3)
            node.train(4)
            node.saver.once(2, tmp_path / "three", done.append, failed.append)
            nursery.cancel_scope.cancel()

    trio.run(main)
    go_on.set()
    assert [kept.folder for kept in done] == [tmp_path / "one"] and failed[1:] == ["this node has no stages now"]


def test_without_memory_nothing_is_copied(config: ComputeConfig) -> None:
    with pytest.raises(Refused, match="this node keeps no snapshots"):
        direct(config).call("snapshot_copy", stage=1, step=0)


def test_a_paced_stage_is_kept_and_loaded(tmp_path: Path, config: ComputeConfig) -> None:
    node = Node(tmp_path, replace(config, backend="paced"), every=1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            second = node.train(1)
            await settled(node, 4)
            again = direct(replace(config, backend="paced"), range(0))
            assert load(again, node, 1) == second["digests"]
            assert train(again, 2) == train(node.compute, 2)
            nursery.cancel_scope.cancel()

    trio.run(main)
