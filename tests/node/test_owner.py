"""What a node does at its owner's word: leave, pause, stand still, go on, and in which order when several come."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.configuration import running_nodes
from ftnode.node.core_clock import CoreClock
from ftnode.node.departure import Departure
from ftnode.node.owner import Owner
from ftnode.node.pause_notes import ALL, write_word
from ftnode.node.pausing import OwnerRules, Readings, Word
from ftnode.protocol.events import Leave
from ftnode.protocol.types import Peer, Version

ME, OTHER = Peer("me", 1), Peer("other", 2)


class FakeCompute:
    """Whether it stands still."""

    def __init__(self) -> None:
        self.frozen = False

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False


class FakeLeavers(set[Peer]):
    """The leader's list of those who leave."""

    def __init__(self, hopeful: bool) -> None:
        super().__init__()
        self.hopeful = lambda: hopeful


class Life:
    """A departure with a core of our making, and what came of it."""

    def __init__(self, others: bool = True, steps: int = 5, finished: bool = False, hopeful: bool = False) -> None:
        members = frozenset({ME, OTHER} if others else {ME})
        view = SimpleNamespace(holders=((ME, OTHER) if others else (ME,),))
        self.core: Any = SimpleNamespace(
            me=ME, members=members, member=True, mine=(0,), view=view,
            holder=SimpleNamespace(finished=finished, versions={0: Version(steps, "c", (1, 1))}),
            leader=SimpleNamespace(leavers=FakeLeavers(hopeful)),
            liveness=SimpleNamespace(silent=lambda peer, now: False),
        )  # fmt: skip
        self.compute, self.clock = FakeCompute(), CoreClock()
        self.left: list[str] = []
        self.said: list[str] = []
        self.departure = Departure(
            self.core, self.clock, self.compute, self._deliver,
            lambda kind, text: self.said.append(f"{kind}: {text}"), lambda: None,
        )  # fmt: skip

    def _deliver(self, event: Any) -> None:
        assert isinstance(event, Leave)
        self.left.append(event.reason)

    @property
    def done(self) -> bool:
        return self.departure.done.is_set()


def run(scenario: Callable[..., Any], *arguments: Any) -> None:
    trio.run(scenario, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))


# -- one life


def test_the_second_wish_to_leave_ends_it() -> None:
    async def scenario() -> None:
        life = Life()
        life.departure.leave("Ctrl-C")
        assert life.left == ["Ctrl-C"] and not life.done
        life.departure.leave("a closed terminal", again_ends=False)
        assert not life.done
        life.departure.leave("Ctrl-C")
        assert life.done and life.departure.leaving

    run(scenario)


def test_a_last_copy_stays_until_it_is_exported() -> None:
    async def scenario() -> None:
        life = Life(others=False, finished=True)
        life.departure.leave("Ctrl-C")
        assert life.departure.keeps == (0,) and not life.left
        life.departure.on_export(False, False)
        assert not life.left
        life.departure.on_export(True, False)
        assert life.left == ["the model was exported"]

    run(scenario)


def test_a_pause_hands_over_and_then_goes_anyway() -> None:
    async def scenario() -> None:
        life = Life()
        began = trio.current_time()
        await life.departure.pause("a game", False, 60.0)
        assert trio.current_time() - began == 60.0 and life.done
        assert life.left == ["pauses, a game"] and "goes without" in life.said[-1]
        assert life.departure.pausing and not life.departure.leaving

    run(scenario)


def test_a_pause_that_was_taken_over_ends_with_it_and_another_word_changes_nothing() -> None:
    async def scenario() -> None:
        life, began = Life(), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "a game", False, 60.0)
            await trio.testing.wait_all_tasks_blocked()
            await life.departure.pause("a game", False, 60.0)
            life.departure.done.set()
        assert trio.current_time() - began < 1.0 and len(life.left) == 1

    run(scenario)


def test_asked_to_leave_while_it_hands_over_it_does_not_come_back() -> None:
    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "a game", False, 60.0)
            await trio.testing.wait_all_tasks_blocked()
            life.departure.leave("Ctrl-C")
            assert life.departure.leaving and not life.done and life.left == ["pauses, a game", "Ctrl-C"]
            life.departure.leave("Ctrl-C")
            assert life.done

    run(scenario)


@pytest.mark.parametrize("same_hours", [False, True])
def test_who_leads_lets_others_with_the_same_hours_go_first_and_keeps_it_all(same_hours: bool) -> None:
    async def scenario() -> None:
        life = Life()

        async def other() -> None:
            life.core.leader.leavers.add(OTHER)
            await trio.testing.wait_all_tasks_blocked()
            assert bool(life.left) is not same_hours
            life.core.members, life.core.view.holders = frozenset({ME}), ((ME,),)
            life.core.leader.leavers.clear()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "outside of its hours", False, 60.0, same_hours)
            nursery.start_soon(life.departure.pause, "outside of its hours", False, 60.0, same_hours)
            nursery.start_soon(other)
        assert bool(life.departure.frozen) is same_hours and life.done is not same_hours

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_who_waits_for_others_and_may_work_again_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "outside of its hours", False, 60.0, True)
            await trio.testing.wait_all_tasks_blocked()
            life.departure.thaw()
        assert not life.done and not life.left and not life.departure.pausing

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_who_waits_for_others_can_still_be_told_to_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        life = Life()
        life.core.leader.leavers.add(OTHER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "outside of its hours", False, 60.0, True)
            await trio.testing.wait_all_tasks_blocked()
            await life.departure.pause("outside of its hours", True, 60.0)
            assert life.done and not life.left

    run(scenario)


def test_now_is_now() -> None:
    async def scenario() -> None:
        for life in (Life(), Life(others=False), Life(others=False, finished=True)):
            await life.departure.pause("a game", True, 60.0)
            assert life.done and not life.left

    run(scenario)


def test_who_is_alone_stands_still_and_loses_nothing() -> None:
    async def scenario() -> None:
        life = Life(others=False)
        await life.departure.pause("a game", False, 60.0)
        assert life.compute.frozen and not life.left and not life.done
        assert "ftnode pause --now" in life.departure.frozen and "the head" in life.departure.frozen
        before = life.clock()
        assert life.clock() == before
        life.departure.thaw()
        assert not life.compute.frozen and not life.departure.frozen and life.clock() >= before
        await life.departure.pause("a game", False, 60.0)
        await life.departure.pause("a game", True, 60.0)
        assert life.done and not life.compute.frozen

    run(scenario)


def test_who_is_frozen_can_be_told_to_leave() -> None:
    async def scenario() -> None:
        life = Life(others=False)
        await life.departure.pause("a game", False, 60.0)
        life.departure.leave("Ctrl-C")
        assert not life.compute.frozen and life.left == ["Ctrl-C"] and not life.departure.frozen

    run(scenario)


@pytest.mark.parametrize(
    "life", [lambda: Life(others=False, steps=0), lambda: Life(others=False, hopeful=True)], ids=["untrained", "heir"]
)
def test_alone_with_nothing_to_lose_or_with_an_heir_it_goes(life: Callable[[], Life]) -> None:
    async def scenario() -> None:
        one = life()
        await one.departure.pause("a game", False, 1.0)
        assert one.left and one.done and not one.compute.frozen

    run(scenario)


def test_the_last_copy_of_a_finished_run_stays_in_memory_and_is_lent() -> None:
    async def scenario() -> None:
        life = Life(others=False, finished=True)
        await life.departure.pause("a game", False, 60.0)
        assert life.departure.frozen and not life.compute.frozen and not life.done
        life.departure.on_export(True, False)
        assert life.done and life.departure.pausing == "a game"

    run(scenario)


def test_the_cores_time_stands_still() -> None:
    now = [100.0]

    async def scenario() -> None:
        clock = CoreClock(lambda: now[0])
        now[0] = 105.0
        clock.stop()
        now[0] = 200.0
        clock.stop()
        assert clock() == 105.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.going)
            await trio.testing.wait_all_tasks_blocked()
            clock.go()
        now[0] = 201.0
        assert clock() == 106.0

    trio.run(scenario)


# -- all lives


class Machine:
    """What the owner's machine says."""

    def __init__(self) -> None:
        self.readings = Readings()
        self.looks: list[Readings] = []

    async def read(self) -> Readings:
        self.looks.append(self.readings)
        return self.readings


class Voice:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, kind: str, text: str, **_fields: str) -> None:
        self.said.append(f"{kind}: {text}")


def owner_of(home: Path, rules: OwnerRules | None = None) -> tuple[Owner, Machine, Voice]:
    config: Any = SimpleNamespace(
        home=home, rules=rules or OwnerRules(), hand_over_seconds=60.0, manifest=SimpleNamespace(run_id="r" * 64)
    )
    machine, voice = Machine(), Voice()
    return Owner(config, "me", voice, machine.read), machine, voice  # type: ignore[arg-type]


def test_a_home_that_was_paused_starts_paused_and_a_word_wakes_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        write_word(tmp_path, ALL, Word(True, None, 1.0))
        owner, _, voice = owner_of(tmp_path)
        await owner.look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.watch)
            nursery.start_soon(owner.until_wanted)
            await trio.testing.wait_all_tasks_blocked()
            assert "until ftnode resume" in voice.said[-1]
            (node,) = running_nodes(tmp_path)
            assert node.paused and node.addresses == ()
            assert (await owner.handlers["state"]({}))["state"] == "paused"
            write_word(tmp_path, ALL, Word(False, None, 2.0))
            assert (await owner.handlers["resume"]({}))["state"] == "starting"
            await trio.testing.wait_all_tasks_blocked()
            assert await owner.until_wanted() and voice.said[-1].startswith("resuming")
            assert not running_nodes(tmp_path)[0].paused
            nursery.cancel_scope.cancel()

    trio.run(scenario)


def test_a_pause_reaches_the_node_and_a_resume_lets_it_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner, machine, _ = owner_of(tmp_path)
        life = Life(others=False)
        looked = len(machine.looks)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.watch)
            await trio.testing.wait_all_tasks_blocked()
            owner.starts(trio.CancelScope())
            owner.begin(life.departure)
            assert (await owner.handlers["state"]({}))["state"] == "running"
            machine.readings = Readings(gpu_used_by=("game",))
            while len(machine.looks) < looked + 3:
                await trio.testing.wait_all_tasks_blocked()
                clock.jump(1.0)
            await trio.testing.wait_all_tasks_blocked()
            state = await owner.handlers["state"]({})
            assert state["state"] == "frozen" and "game uses the GPU" in state["why"]
            machine.readings = Readings()
            write_word(tmp_path, ALL, Word(True, None, 1.0))
            assert (await owner.handlers["pause"]({"now": True}))["state"] in ("frozen", "handing over")
            await trio.testing.wait_all_tasks_blocked()
            assert life.done
            nursery.cancel_scope.cancel()

    clock = trio.testing.MockClock()
    trio.run(scenario, clock=clock)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_rests_ends_it(tmp_path: Path, number: int) -> None:
    async def heard() -> AsyncIterator[int]:
        yield number

    async def scenario() -> None:
        write_word(tmp_path, ALL, Word(True, time.time() + 3600, 1.0))
        owner, _, voice = owner_of(tmp_path)
        await owner.look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.listen, heard())
            assert not await owner.until_wanted()
        assert "until" in voice.said[0]

    trio.run(scenario)


def test_signals_that_come_before_the_node_reach_it(tmp_path: Path) -> None:
    async def heard(*numbers: int) -> AsyncIterator[int]:
        for number in numbers:
            yield number

    async def scenario() -> None:
        owner, _, _ = owner_of(tmp_path)
        scope = trio.CancelScope()
        owner.starts(scope)
        await owner.listen(heard(signal.SIGTERM))
        assert not scope.cancel_called
        life = Life()
        owner.begin(life.departure)
        assert life.departure.leaving and not life.done
        await owner.listen(heard(signal.SIGHUP, signal.SIGHUP))
        assert not life.done
        await owner.listen(heard(signal.SIGINT))
        assert life.done
        again, _, _ = owner_of(tmp_path)
        again.starts(scope)
        await again.listen(heard(signal.SIGINT, signal.SIGINT))
        assert scope.cancel_called

    trio.run(scenario)


def test_leave_by_the_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        for now in (False, True):
            owner, _, _ = owner_of(tmp_path)
            life = Life()
            owner.starts(trio.CancelScope())
            owner.begin(life.departure)
            assert (await owner.handlers["leave"]({"now": now}))["state"] == "leaving"
            assert life.done is now and life.departure.leaving

    trio.run(scenario)
