"""What the owner of a machine wants, from all sides, and which of it counts when several come."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.life.owner_wishes import OwnerWishes
from ftnode.node.owner.join_options import running_nodes
from ftnode.node.owner.machine_use import READ_SECONDS
from ftnode.node.owner.pause_notes import ALL, FOLDER, fields_of, write_word
from ftnode.node.owner.pause_rules import OwnerRules, Readings, Word
from tests.node.life.departing import Life


class Machine:
    """What the owner's machine says."""

    def __init__(self) -> None:
        self.readings = self.said = Readings()
        self.looks: list[Readings] = []
        self.answers = True

    async def read(self) -> Readings:
        self.looks.append(self.readings)
        if self.answers:
            self.said = self.readings
        else:
            with trio.move_on_after(READ_SECONDS):
                await trio.sleep_forever()
        return self.said


class Voice:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, kind: str, text: str, **_fields: str) -> None:
        self.said.append(f"{kind}: {text}")


def owner_of(home: Path, rules: OwnerRules | None = None, notice: float = 0.0) -> tuple[OwnerWishes, Machine, Voice]:
    config: Any = SimpleNamespace(
        home=home,
        rules=rules or OwnerRules(),
        hand_over_seconds=60.0,
        notice_seconds=notice,
        manifest=SimpleNamespace(run_id="r" * 64, run=SimpleNamespace(name="tiny")),
    )
    machine, voice = Machine(), Voice()
    return OwnerWishes(config, "me", voice, machine.read), machine, voice  # type: ignore[arg-type]


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
            state = await owner.handlers["state"]({})
            assert state["state"] == "running" and state["holds"] == (0,)
            machine.readings = Readings(gpu_used_by=("game",))
            while len(machine.looks) < looked + 3:
                await trio.testing.wait_all_tasks_blocked()
                clock.jump(1.0)
            await trio.testing.wait_all_tasks_blocked()
            state = await owner.handlers["state"]({})
            assert state["state"] == "frozen" and "game uses the GPU" in state["why"]
            machine.readings = Readings()
            write_word(tmp_path, ALL, Word(True, None, 1.0, now=True))
            assert (await owner.handlers["pause"]({}))["state"] in ("frozen", "handing over")
            await trio.testing.wait_all_tasks_blocked()
            assert life.done
            nursery.cancel_scope.cancel()

    clock = trio.testing.MockClock()
    trio.run(scenario, clock=clock)


def test_a_note_that_cannot_be_read_pauses_whatever_was_said_by_the_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner, _, _ = owner_of(tmp_path)
        await owner.handlers["resume"](fields_of(Word(False, None, 7.0)))
        (tmp_path / FOLDER).mkdir()
        (tmp_path / FOLDER / "me.json").write_text("{")
        await owner.look()
        assert owner.verdict.pause and "me.json cannot be read" in owner.verdict.why
        write_word(tmp_path, ALL, Word(False, None, 8.0))
        await owner.look()
        assert not owner.verdict.pause

    trio.run(scenario)


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


def test_a_pause_at_once_needs_no_socket_and_no_answer_of_the_machine(tmp_path: Path) -> None:
    async def scenario() -> None:
        for by_socket in (False, True):
            home = tmp_path / str(by_socket)
            owner, machine, _ = owner_of(home)
            life = Life()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(owner.watch)
                await trio.testing.wait_all_tasks_blocked()
                owner.starts(trio.CancelScope())
                owner.begin(life.departure)
                machine.answers = False
                if by_socket:  # and it could not be written down
                    told = {"now": True, "until": None, "written": 1.0}
                    began = trio.current_time()
                    assert (await owner.handlers["pause"](told))["why"].startswith("by its owner")
                    assert trio.current_time() == began
                else:
                    write_word(home, ALL, Word(True, None, 1.0, now=True))
                    await owner.look()
                await trio.testing.wait_all_tasks_blocked()
                assert life.done and not life.left
                nursery.cancel_scope.cancel()

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_resume_counts_though_the_machine_does_not_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        write_word(tmp_path, ALL, Word(True, None, 1.0))
        owner, machine, _ = owner_of(tmp_path)
        await owner.look()
        machine.answers = False
        assert (await owner.handlers["resume"]({"until": None, "written": 2.0}))["state"] == "starting"
        write_word(tmp_path, ALL, Word(True, None, 3.0))
        assert (await owner.handlers["pause"]({}))["state"] == "paused"

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


def test_heat_that_changes_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [0.0]
    monkeypatch.setattr(
        "ftnode.node.life.owner_wishes.time", SimpleNamespace(time=time.time, monotonic=lambda: moment[0])
    )

    async def scenario() -> None:
        owner, machine, voice = owner_of(tmp_path, OwnerRules(temperature_max=80.0))
        async with trio.open_nursery() as nursery:
            for degrees in (83.0, 83.0, 84.0, 85.0, 84.0):
                machine.readings = Readings(temperature=degrees)
                await owner.look()
                if owner.verdict.pause and not voice.said:
                    nursery.start_soon(owner.until_wanted)
                await trio.testing.wait_all_tasks_blocked()
                moment[0] += 20.0
            assert len(voice.said) == 1 and "above 80 degrees (83)" in voice.said[0]
            write_word(tmp_path, ALL, Word(True, None, 1.0))
            await owner.look()
            await trio.testing.wait_all_tasks_blocked()
            assert len(voice.said) == 2 and "by its owner" in voice.said[1]
            nursery.cancel_scope.cancel()

    trio.run(scenario)


def test_a_node_that_is_about_to_begin_does_not_rest_yet(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner, _, _ = owner_of(tmp_path)
        owner.starts(trio.CancelScope())
        told = {"until": None, "written": 1.0}
        assert (await owner.handlers["pause"](told))["state"] == "starting"
        owner.ended()
        state = await owner.handlers["state"]({})
        assert state["state"] == "paused" and state["holds"] == ()

    trio.run(scenario)


@pytest.mark.parametrize(
    ("numbers", "notice", "within", "done"),
    [
        ((signal.SIGTERM,), 30.0, [29.0], False),
        ((signal.SIGTERM,), 0.0, [-1.0], False),
        ((signal.SIGINT,), 30.0, [-1.0], False),
        ((signal.SIGTERM, signal.SIGTERM), 30.0, [29.0], True),
        ((signal.SIGTERM, signal.SIGINT), 30.0, [29.0], True),
        ((signal.SIGINT, signal.SIGTERM), 30.0, [-1.0], True),
    ],
)
def test_a_machine_that_is_taken_away_says_it_by_sigterm(
    tmp_path: Path, numbers: tuple[int, ...], notice: float, within: list[float], done: bool
) -> None:
    async def heard() -> AsyncIterator[int]:
        for number in numbers:
            yield number

    async def scenario() -> None:
        owner, _, _ = owner_of(tmp_path, notice=notice)
        life = Life()
        owner.starts(trio.CancelScope())
        owner.begin(life.departure)
        await owner.listen(heard())
        assert ([round(word.within, 3) for word in life.words], life.done) == (within, done)

    trio.run(scenario, clock=trio.testing.MockClock())


@pytest.mark.parametrize(
    ("given", "within"), [(30, 29.0), (0.5, 0.0), (-3.0, 0.0), (None, -1.0), ("30", -1.0), (float("nan"), -1.0)]
)
def test_a_command_says_how_much_time_there_is(tmp_path: Path, given: Any, within: float) -> None:
    async def scenario() -> None:
        owner, _, _ = owner_of(tmp_path)
        life = Life()
        owner.begin(life.departure)
        await owner.handlers["leave"]({"notice": given})
        assert [round(word.within, 3) for word in life.words] == [within]

    trio.run(scenario, clock=trio.testing.MockClock())


def test_a_time_that_began_before_the_node_is_shorter_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner, _, _ = owner_of(tmp_path)
        owner.starts(trio.CancelScope())
        await owner.handlers["leave"]({"notice": 30})
        await owner.handlers["leave"]({"notice": 90})
        life = Life()
        owner.begin(life.departure)
        assert [round(word.within, 1) for word in life.words] == [29.0]

    trio.run(scenario, clock=trio.testing.MockClock())
