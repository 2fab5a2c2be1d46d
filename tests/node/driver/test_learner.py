"""A learner: it fetches a stage's state while the stage goes on, and goes along with the commits that it misses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from ftnode.node.compute.client import ComputeProcess
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.state_shape import shape_of
from ftnode.node.driver import under_way
from ftnode.node.driver.driver import Driver
from ftnode.node.driver.trace import TraceWriter, read_trace
from ftnode.node.ports import ComputeError
from ftnode.node.weights.donor import StateDonor
from ftnode.node.weights.installer import Installer
from ftnode.node.weights.source import Borrower
from ftnode.protocol.participant import Participant
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.errors import LocalError
from ftnode.protocol.words.messages import Donor, Plan
from ftnode.protocol.words.types import Attempt, Peer, Rung, Version
from tests.node.compute.computing import Direct, Port, Refused, read_out
from tests.node.reduction.reducing import GROUP_CONFIG, STAGE, Member, Wires, group, task
from tests.node.weights.lending import SETTINGS, Network
from tests.protocol.pictures import picture


def attempt(step: int) -> Attempt:
    return Attempt(0, step)


def version(step: int) -> Version:
    return Version(step, f"c{step}" if step else "lineage", attempt(step) if step else Attempt(-1, 0))


class Gate(Port):
    """Gives no chunk of state before it is opened."""

    def __init__(self, direct: Direct) -> None:
        super().__init__(direct)
        self.asked, self.opened = trio.Event(), trio.Event()

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        if op == "export_chunk":
            self.asked.set()
            await self.opened.wait()
        return await super().call(op, **fields)


class Posting(Port):
    """Commands that answer at once, also those of the driver."""

    config = SimpleNamespace(stages=GROUP_CONFIG.stages)

    def __init__(self, direct: Direct) -> None:
        super().__init__(direct)
        self.restarts: list[str] = []

    def place_of(self, stage: int) -> int:
        return 0

    def post(self, op: str, answer: Callable[[dict[str, Any] | ComputeError], None], **fields: Any) -> None:
        try:
            answer(self.direct.call(op, **fields))
        except Refused as refused:
            answer(ComputeError(refused.kind, str(refused), refused.stage))

    def restart(self, reason: str) -> None:
        self.restarts.append(reason)


class Learner:
    """A member without weights, and a driver around it that does what it is told."""

    def __init__(self, wires: Wires, network: Network, path: Path, config: ComputeConfig) -> None:
        self.member = wires.member("learner", learner=True)
        self.compute = Posting(self.member.compute)
        self.trace = TraceWriter(
            path,
            {"peer": ["learner", 1], "run": "run", "settings": {}, "chance": 1, "addresses": [], "hold": 1,
             "wall": 0.0, "version": "test", "precision": "float32", "site": ""},
        )  # fmt: skip
        arena = self.member.compute.arena
        core = SimpleNamespace(picture=picture(), handle=lambda event, now: [])
        nothing = cast(Any, SimpleNamespace(know=lambda peer_id, addresses: None))
        self.driver = Driver(
            cast(Participant, core), nothing, cast(ComputeProcess, self.compute), nothing, arena, self.trace,
            lambda note: None,
        )  # fmt: skip
        self.driver._nursery = wires.nursery
        self.driver.tasks.reductions = self.member.reductions
        donor = StateDonor("run", arena, self.compute, lambda who, why: None, lambda exported: None)
        borrower = Borrower(self.member.peer, SETTINGS, arena, network, donor, shape_of(config))
        self.driver.installer = Installer("run", SETTINGS, arena, self.compute, borrower)

    def install(self, base: int) -> None:
        plan = Plan(STAGE, self.member.peer, Rung.REPLICA, (Donor(STAGE, Peer("holder", 1), ()),), 1.0, "", None)
        self.driver._perform(fx.Install(plan, version(base)), 0.0)

    async def event(self) -> ev.Event:
        """The next one for the core, recorded as it would be."""
        while not self.driver._events:
            await trio.lowlevel.checkpoint()
        found = self.driver._events.popleft()
        self.driver._record_result(found, 0.0)
        return found

    def apply(self, step: int) -> None:
        self.driver._perform(fx.Apply(STAGE, version(step), attempt(step), False), 0.0)
        self.driver._perform(fx.Discard(None), 0.0)


class Holder:
    """Trains the stage, by itself or with the learner in its group, and lends it."""

    def __init__(self, wires: Wires, network: Network) -> None:
        self.member = wires.member("holder")
        self.peer, self.at = self.member.peer, 0
        self.gate = Gate(self.member.compute)
        self.donor = StateDonor(
            "run", self.member.compute.arena, self.gate, lambda who, why: None, lambda exported: None,
            held=lambda stage: version(self.at) if stage == STAGE else None,
        )  # fmt: skip
        network.hosts["holder"] = self  # type: ignore[assignment]

    async def train(self, step: int, learner: Learner | None = None) -> str:
        self.member.accumulate(step, step=step, attempt=attempt(step))
        shares = group((self.member, 1), *([(learner.member, 0)] if learner else []))
        reduce = task(shares, step=step, attempt=attempt(step))
        self.member.start(reduce)
        if learner is not None:
            learner.driver._perform(fx.Compute(reduce), 0.0)
            done = await learner.event()
            assert isinstance(done, ev.Done) and done.task == reduce and not done.fault
        await self.member.answer()
        self.at = step
        return self.member.apply(step, attempt(step))


def run(main: Callable[[Holder, Learner], Awaitable[None]], path: Path, config: ComputeConfig = GROUP_CONFIG) -> None:
    async def bounded() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                wires, network = Wires(nursery, config), Network(nursery)
                await main(Holder(wires, network), Learner(wires, network, path, config))
                nursery.cancel_scope.cancel()

    trio.run(bounded)


def weights(compute: Direct, step: int) -> tuple[Any, bytes]:
    """Everything of the stage, as the donor would lend it."""
    begun = compute.call("export_begin", stage=STAGE, step=step, parts="all")
    found = begun["digest"], b"".join(read_out(compute, begun))
    compute.call("export_end", export=begun["export"])
    return found


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_commits_during_an_installation_are_applied_behind_it(kind: str, tmp_path: Path) -> None:
    async def main(holder: Holder, learner: Learner) -> None:
        base = await holder.train(1)
        learner.install(1)
        await holder.gate.asked.wait()
        for step in (2, 3):
            newest = await holder.train(step, learner)
            learner.apply(step)
        assert not learner.compute.restarts
        holder.gate.opened.set()
        event = await learner.event()
        assert isinstance(event, ev.Installed) and (event.base, event.digest) == (version(1), base)
        assert weights(learner.member.compute, 3) == weights(holder.member.compute, 3)
        assert weights(learner.member.compute, 3)[0] == newest != base
        assert await holder.train(4, learner) != newest
        learner.apply(4)
        assert weights(learner.member.compute, 4) == weights(holder.member.compute, 4)
        assert not learner.compute.restarts
        learner.trace.close(0.0, "")

    run(main, tmp_path / "trace", replace(GROUP_CONFIG, optimiser=kind))
    told = [(r["k"], r["step"]) for r in read_trace(tmp_path / "trace") if r["k"] in ("installed", "applied")]
    assert told == [("installed", 1), ("applied", 2), ("applied", 3), ("applied", 4)]


def failing(event: ev.Event) -> str:
    assert isinstance(event, ev.InstallFailed) and event.base == version(1) and event.donor is None
    return event.reason


def test_too_many_commits_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core's bound is the only one: beyond it the core is at fault, and no donor is."""
    monkeypatch.setattr(under_way, "BACKLOG_MAX", 1)

    async def main(holder: Holder, learner: Learner) -> None:
        await holder.train(1)
        learner.install(1)
        await holder.gate.asked.wait()
        await holder.train(2, learner)
        learner.apply(2)
        with pytest.raises(LocalError, match="more than 1 commits"):
            learner.apply(3)
        holder.gate.opened.set()
        assert not learner.compute.restarts

    run(main, tmp_path / "trace")


def test_a_commit_whose_gradient_is_not_here_ends_the_installation(tmp_path: Path) -> None:
    async def main(holder: Holder, learner: Learner) -> None:
        await holder.train(1)
        learner.install(1)
        await holder.gate.asked.wait()
        learner.apply(2)
        assert "no reduced gradient" in failing(await learner.event())
        learner.install(1)
        holder.gate.opened.set()
        event = await learner.event()
        assert isinstance(event, ev.Installed)
        assert not learner.compute.restarts

    run(main, tmp_path / "trace")


def test_a_new_installation_forgets_what_waited_for_the_one_before(tmp_path: Path) -> None:
    async def main(holder: Holder, learner: Learner) -> None:
        await holder.train(1)
        learner.install(1)
        await holder.gate.asked.wait()
        newest = await holder.train(2, learner)
        learner.apply(2)
        waiting = learner.member.compute.backend._group._shelf  # type: ignore[attr-defined]
        assert len(waiting) == 1
        learner.install(2)
        assert not waiting
        holder.gate.opened.set()
        event = await learner.event()
        assert isinstance(event, ev.Installed) and (event.base, event.digest) == (version(2), newest)
        assert await holder.train(3, learner)
        learner.apply(3)
        assert weights(learner.member.compute, 3) == weights(holder.member.compute, 3)

    run(main, tmp_path / "trace")


def test_a_commit_between_the_end_of_an_installation_and_the_cores_hearing_of_it(tmp_path: Path) -> None:
    async def main(holder: Holder, learner: Learner) -> None:
        await holder.train(1)
        holder.gate.opened.set()
        await holder.train(2, learner)
        learner.install(1)
        while not learner.driver._events:
            await trio.lowlevel.checkpoint()
        learner.apply(2)
        assert isinstance(await learner.event(), ev.InstallFailed), "the base is over and nobody reads it"
        assert not learner.compute.restarts, "nothing is updated where nothing is"
        learner.install(2)
        while not learner.driver._events:
            await trio.lowlevel.checkpoint()
        unheard = learner.driver._events.popleft()
        await holder.train(3, learner)
        learner.apply(3)
        learner.driver._record_result(unheard, 0.0)
        assert isinstance(unheard, ev.Installed)
        assert weights(learner.member.compute, 3) == weights(holder.member.compute, 3)
        learner.trace.close(0.0, "")

    run(main, tmp_path / "trace")
    told = [(r["k"], r["step"]) for r in read_trace(tmp_path / "trace") if r["k"] in ("installed", "applied")]
    assert told == [("installed", 2), ("applied", 3)]


def test_a_gap_between_base_and_commit_ends_the_installation(tmp_path: Path) -> None:
    async def main(holder: Holder, learner: Learner) -> None:
        await holder.train(1)
        learner.install(1)
        await holder.gate.asked.wait()
        await holder.train(2)
        await holder.train(3, learner)
        learner.apply(3)
        holder.gate.opened.set()
        assert "does not follow" in failing(await learner.event())
        with pytest.raises(Refused, match="no weights"):
            weights(learner.member.compute, 1)

    run(main, tmp_path / "trace")


def test_who_comes_late_reads_along_while_somebody_reads_and_is_refused_afterwards(tmp_path: Path) -> None:
    async def main(holder: Holder, learner: Learner) -> None:
        await holder.train(1)
        before = weights(holder.member.compute, 1)
        begun = [holder.member.compute.call("export_begin", stage=STAGE, step=1, parts="all")]
        frozen = holder.member.compute.backend._exports._frozen  # type: ignore[attr-defined]
        assert not frozen
        await holder.train(2)
        await holder.train(3)
        begun.append(holder.member.compute.call("export_begin", stage=STAGE, step=1, parts="all"))
        assert len(frozen) == 1
        holder.gate.opened.set()
        learner.install(1)
        event = await learner.event()
        assert isinstance(event, ev.Installed) and event.digest == before[0]
        for one in begun:
            assert b"".join(read_out(holder.member.compute, one)) == before[1]
            assert {**one, "export": 0} == {**begun[0], "export": 0}
        end(holder.member, begun)
        assert not frozen
        learner.install(1)
        assert "those of 1 were not being read" in (await _failure(learner)).reason

    run(main, tmp_path / "trace")


def test_only_so_many_versions_are_frozen(tmp_path: Path) -> None:
    async def main(holder: Holder, learner: Learner) -> None:
        begun = []
        for step in (1, 2, 3):
            await holder.train(step)
            begun.append(holder.member.compute.call("export_begin", stage=STAGE, step=step, parts="all"))
        await holder.train(4)
        for one in begun[:2]:
            read_out(holder.member.compute, one)
        with pytest.raises(Refused, match="moved on"):
            read_out(holder.member.compute, begun[2])

    run(main, tmp_path / "trace")


async def _failure(learner: Learner) -> ev.InstallFailed:
    event = await learner.event()
    assert isinstance(event, ev.InstallFailed)
    return event


def end(member: Member, begun: Iterable[dict[str, Any]]) -> None:
    for one in begun:
        member.compute.call("export_end", export=one["export"])
