"""The driver and its books of tensors, with a core and adapters that do what the test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from ftnode.node.compute.client import ComputeProcess
from ftnode.node.driver import driver as driver_module
from ftnode.node.driver.driver import Driver
from ftnode.node.driver.tasks import TaskRunner
from ftnode.node.driver.trace import TraceWriter, read_trace
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import REASON_TEXT_MAX, ComputeError
from ftnode.node.weights.copies import Copy
from ftnode.node.weights.copy_fetching import CopyFetcher, Fetched
from ftnode.node.weights.installer import Installer, InstallOutcome
from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.participant import Participant
from ftnode.protocol.picture import Picture
from ftnode.protocol.wire.frames import HEADER_BYTES_MAX, StateHeader, encode_frame
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.messages import Boundary, Commit, Donor, Plan, Suspect
from ftnode.protocol.words.types import Attempt, Direction, Handle, Peer, Rung, Version
from ftnode.protocol.words.view import View
from tests.protocol.pictures import picture
from tests.protocol.situations import A, B, C, D

ME, OTHER = Peer("me", 1), Peer("other", 1)
FIRST, SECOND = Attempt(0, 1), Attempt(0, 2)
Answer = dict[str, Any] | ComputeError


class FakeCompute:
    """Commands and how to answer them."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(stages=3)
        self.posted: list[tuple[str, Callable[[Answer], None]]] = []
        self.restarts: list[str] = []

    def post(self, op: str, answer: Callable[[Answer], None], **fields: Any) -> None:
        self.posted.append((op, answer))

    def restart(self, reason: str) -> None:
        self.restarts.append(reason)

    def place_of(self, stage: int) -> int:
        return 1

    def ops(self) -> list[str]:
        return [op for op, _ in self.posted]


class FakeTransport:
    def __init__(self) -> None:
        self.handled_events: list[ev.Received] = []
        self.known: list[str] = []

    def know(self, peer_id: str, addresses: tuple[str, ...]) -> None:
        self.known.append(peer_id)

    def handled(self, event: ev.Received) -> None:
        self.handled_events.append(event)


class ScriptedCore:
    """Does what the test wants for the events that come; stops at Leave."""

    def __init__(self) -> None:
        self.deadline = float("inf")
        self.picture = picture()
        self.seen: list[ev.Event] = []
        self.effects: dict[type, list[fx.Effect]] = {ev.Leave: [fx.Stop("left")]}

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        self.seen.append(event)
        return self.effects.get(type(event), [])


class Tasks:
    """A task runner with everything around it."""

    def __init__(self, slots: int = 4) -> None:
        self.arena, self.compute = Arena(64, slots), FakeCompute()
        self.events: list[ev.Event] = []
        self.failures: list[str] = []
        self.runner = TaskRunner(
            self.arena,
            cast(ComputeProcess, self.compute),
            self.events.append,
            self.failures.append,
        )


def forward(handle: Handle | None, attempt: Attempt = FIRST, visit: int = 1) -> fx.Forward:
    return fx.Forward(1, 1, attempt, 0, visit, handle, True, False)


GOOD = {"value": 0.0, "tokens": 8, "fault": ""}
TASKS = [
    ("forward", forward(None)),
    ("backward", fx.Backward(1, 1, FIRST, 0, 1, None, None, False)),
    ("reduce", fx.Reduce(1, 1, FIRST)),
]


def test_a_task_without_a_slot_for_its_output_waits_and_the_next_behind_it() -> None:
    tasks = Tasks(slots=2)
    handles = [tasks.arena.take(), tasks.arena.take()]
    tasks.runner.start(forward(handles[0]))
    tasks.runner.start(fx.Reduce(1, 1, FIRST))
    assert tasks.compute.ops() == []
    tasks.arena.release(handles[1])
    tasks.runner.resume()
    assert tasks.compute.ops() == ["forward", "reduce"]
    tasks.compute.posted[0][1](GOOD)
    assert isinstance(tasks.events[0], ev.Done) and tasks.events[0].output is not None


@pytest.mark.parametrize(("op", "task"), TASKS[:2])
def test_the_norm_of_what_a_task_was_given_is_told_where_it_was_measured(op: str, task: fx.Task) -> None:
    for measured, told in (({"received": 12.5}, 12.5), ({"received": 0.0}, 0.0), ({}, -1.0)):
        tasks = Tasks(slots=2)
        tasks.runner.start(task)
        tasks.compute.posted[0][1]({**GOOD, **measured})
        assert isinstance(tasks.events[0], ev.Done) and tasks.events[0].received == told
        assert tasks.events[0].way == ()


def test_which_way_it_points_is_told_too() -> None:
    tasks = Tasks(slots=2)
    tasks.runner.start(TASKS[0][1])
    tasks.compute.posted[0][1]({**GOOD, "received": 1.0, "way": [3, -4]})
    assert isinstance(tasks.events[0], ev.Done) and tasks.events[0].way == (3, -4)


def test_a_waiting_task_goes_with_its_attempt_and_with_the_process() -> None:
    for drop in (lambda tasks: tasks.discard(SECOND), lambda tasks: tasks.drop_waiting(None)):
        tasks = Tasks(slots=1)
        handle = tasks.arena.take()
        tasks.runner.start(forward(handle))
        drop(tasks.runner)
        tasks.arena.release(handle)
        assert tasks.arena.free == 1
        tasks.runner.resume()
        assert "forward" not in tasks.compute.ops()


@pytest.mark.parametrize("answer", [GOOD, ComputeError("lost", "it was killed", -1)], ids=["done", "lost"])
def test_an_output_is_the_tasks_until_done_and_then_the_cores(answer: Answer) -> None:
    """Also when its attempt is over: the core is told of it, and says when it is needed no more."""
    tasks = Tasks(slots=1)
    tasks.runner.start(forward(None))
    tasks.runner.discard(SECOND)
    assert tasks.arena.free == 0
    tasks.compute.posted[0][1](answer)
    for event in tasks.events:
        assert isinstance(event, ev.Done) and event.output is not None
        tasks.arena.release(event.output)
    assert (len(tasks.events), tasks.arena.free) == (int(answer is GOOD), 1)


@pytest.mark.parametrize(("op", "task"), TASKS)
def test_a_failure_of_the_process_is_no_fault_of_the_data(op: str, task: fx.Task) -> None:
    """Poisoned would skip every step to come: what failed is this process, not the numbers."""
    tasks = Tasks()
    tasks.runner.start(task)
    assert tasks.compute.ops() == [op]
    tasks.compute.posted[0][1](ComputeError("broken", "CUDA error: unspecified launch failure" + "!" * 9999, 1))
    assert tasks.events == []
    assert len(tasks.failures) == 1 and len(tasks.failures[0]) < 2 * REASON_TEXT_MAX


@pytest.mark.parametrize(("op", "task"), TASKS)
def test_a_lost_stage_ends_no_process(op: str, task: fx.Task) -> None:
    """The group tells of it; what the task had is given back."""
    for kind in ("oom", "lost"):
        tasks = Tasks()
        tasks.runner.start(task)
        tasks.compute.posted[0][1](ComputeError(kind, "no memory", 1))
        assert (tasks.events, tasks.failures) == ([], [])


@pytest.mark.parametrize(("op", "task"), TASKS)
def test_broken_numbers_are_a_fault_in_few_words(op: str, task: fx.Task) -> None:
    for number, fault in ((0.0, "x" * 9999), (float("nan"), ""), (float("inf"), "")):
        tasks = Tasks()
        tasks.runner.start(task)
        answer = {"value": number, "norm_squared": number, "tokens": 0, "gradient": "", "covered": [], "fault": fault}
        tasks.compute.posted[0][1](answer)
        (done,) = tasks.events
        assert isinstance(done, ev.Done) and done.value == 0.0
        assert 0 < len(done.fault) <= REASON_TEXT_MAX
        assert tasks.failures == []


class Hands:
    """A driver between fakes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trace.jsonl"
        self.core, self.transport, self.compute = ScriptedCore(), FakeTransport(), FakeCompute()
        self.arena = Arena(64, 4)
        self.trace = TraceWriter(
            self.path,
            {"peer": list(ME), "run": "r", "settings": {}, "chance": 1, "addresses": [], "hold": 1, "site": "",
             "wall": 0.0, "version": "test", "precision": "float32"},
        )  # fmt: skip
        self.driver = Driver(
            cast(Participant, self.core),
            cast(Any, self.transport),
            cast(ComputeProcess, self.compute),
            cast(Any, None),
            self.arena,
            self.trace,
            lambda note: None,
        )

    def run(self, *events: ev.Event) -> None:
        """Handle these events and no more."""

        async def main() -> None:
            with trio.fail_after(5):
                async with trio.open_nursery() as nursery:
                    for event in (*events, ev.Leave("")):
                        self.driver.deliver(event)
                    await self.driver.run(nursery)

        trio.run(main)


def received(handle: Handle | None = None) -> ev.Received:
    if handle is None:
        return ev.Received(OTHER, Suspect("l", 0, ME, "silent", ""), None)
    return ev.Received(OTHER, Boundary("l", 0, 1, FIRST, 0, 1, Direction.FORWARD, ()), handle)


def test_the_transport_hears_of_every_message_that_was_handled_or_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "EVENTS_MAX", 2)
    hands = Hands(tmp_path)
    events = [received(), received(hands.arena.take()), received(hands.arena.take())]
    for event in events:
        hands.driver.deliver(event)
    assert hands.transport.handled_events == [events[2]]  # there was no room for it
    assert hands.arena.free == 3
    hands.run()
    assert hands.transport.handled_events == [events[2], events[0], events[1]]


def test_what_strangers_say_has_no_more_than_its_share_of_the_trace(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    hands.driver.members = frozenset({OTHER})
    hands.trace._strangers_room = 0
    stranger = Peer("stranger", 1)
    foreign = [ev.LinkUp(stranger), ev.LinkDown(stranger, False, ""), ev.Directory((), ())]
    foreign.append(replace(received(), sender=stranger))
    hands.run(received(), *foreign, ev.LinkUp(OTHER), ev.DirectoryLost(""))
    hands.trace.close(0.0, "left")
    records = read_trace(hands.path)
    assert [record["k"] for record in records].count("left_out") == 1
    events = [record["e"][0] for record in records if record["k"] == "event"]
    assert events == ["Received", "LinkUp", "DirectoryLost", "Leave"]


def test_a_message_that_does_not_fit_a_frame_is_lost_and_the_node_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What others told is in it. It is said once."""
    hands, said = Hands(tmp_path), list[bytes]()

    def send(to: Peer, message: Any, handle: Handle | None) -> None:
        said.append(encode_frame(message))

    hands.transport.send = send  # type: ignore[attr-defined]
    small, large = (Suspect("l", 0, ME, "silent", "x" * size) for size in (10, HEADER_BYTES_MAX))
    hands.core.effects[ev.LinkUp] = [fx.Send(OTHER, message, None) for message in (large, large, small)]
    hands.run(ev.LinkUp(OTHER))
    assert said == [encode_frame(small)]
    assert caplog.text.count("does not fit a frame") == 1


class Shelf:
    """A directory that takes no notice."""

    def publish_view(self, view: View | None) -> None: ...


@pytest.mark.parametrize(
    ("shown", "senders", "evaluated"),
    [
        (picture(me=A, leads=True), {A, B, C}, 1),
        (picture(me=B), {A, B, C}, 0),
        (picture(me=D), None, 0),
        (picture(view=None), None, 0),
    ],
    ids=["leader", "member", "standby", "alone"],
)
def test_a_change_of_view_says_who_may_send_tensors_and_who_writes_evaluations_down(
    shown: Picture, senders: set[Peer] | None, evaluated: int, tmp_path: Path
) -> None:
    hands = Hands(tmp_path)
    hands.driver.directory = cast(Any, Shelf())
    history = hands.core.picture.history
    assert isinstance(history, Chronicle)
    history.evaluate(5, 2.5)
    hands.core.picture = shown
    hands.core.effects[ev.Wake] = [fx.PublishView(None)]
    hands.run(ev.Wake())
    assert hands.driver.tensor_senders == senders
    assert hands.driver.members == shown.members
    hands.trace.close(0.0, "left")
    assert sum(record["k"] == "evaluated" for record in read_trace(hands.path)) == evaluated


def evaluated(hands: Hands) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_trace(hands.path) if row["k"] == "evaluated"]


def evaluating(tmp_path: Path) -> tuple[Hands, Chronicle]:
    """A leader that knows one validation."""
    hands = Hands(tmp_path)
    hands.driver.directory = cast(Any, Shelf())
    history = hands.core.picture.history
    assert isinstance(history, Chronicle)
    hands.core.picture = picture(me=A, leads=True)
    hands.core.effects[ev.Wake] = [fx.PublishView(None)]
    history.evaluate(5, 2.5)
    return hands, history


def test_a_validation_that_is_done_again_is_written_down_again(tmp_path: Path) -> None:
    """With what was rebuilt once more, or after the swarm went back to its disks."""
    hands, history = evaluating(tmp_path)
    history.evaluate(6, 2.4)
    driver = hands.driver
    driver._turn(ev.Wake())
    driver._turn(ev.Wake())
    history.evaluate(6, 2.25)
    driver._turn(ev.Wake())
    history.forget(5)
    driver._turn(ev.Wake())
    history.evaluate(6, 2.25)
    driver._turn(ev.Wake())
    hands.trace.close(0.0, "left")
    assert evaluated(hands) == [(5, 2.5), (6, 2.4), (6, 2.25), (6, 2.25)]


def test_at_an_event_without_a_validation_none_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hands, history = evaluating(tmp_path)
    hands.driver._turn(ev.Wake())
    monkeypatch.setattr(history, "validation", None)
    hands.driver._turn(ev.Wake())


BASE = Version(5, "c5", Attempt(0, 3))
INSTALL = fx.Install(Plan(2, ME, Rung.INITIAL, (), 1.0, "because", None), BASE)


class ScriptedInstaller:
    """Gives its outcomes, one after the other, at once."""

    def __init__(self, *outcomes: ev.Installed | ev.InstallFailed) -> None:
        self.outcomes = list(outcomes)

    async def install(self, effect: fx.Install) -> InstallOutcome:
        return InstallOutcome(self.outcomes.pop(0), (), "")


def installed(digest: str) -> ev.Installed:
    return ev.Installed(2, BASE, 0, 0.0, 0.0, digest)


@pytest.mark.parametrize("stale", [installed("old"), ev.InstallFailed(2, BASE, None, "too late")])
@pytest.mark.parametrize("again", [True, False])
def test_a_result_that_a_new_installation_overtook_is_dropped(
    stale: ev.Installed | ev.InstallFailed, again: bool, tmp_path: Path
) -> None:
    """Its weights are gone when the core would hear of it."""
    hands = Hands(tmp_path)
    driver = hands.driver
    driver.installer = cast(Installer, ScriptedInstaller(stale, installed("new")))

    async def main() -> None:
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                driver._nursery = nursery
                driver._start_install(INSTALL)
                while not driver._events:
                    await trio.lowlevel.checkpoint()
                if again:
                    driver._start_install(INSTALL)
                else:
                    driver.compute_lost("killed")
                while len(driver._events) < 2:  # the stale one is still in the queue
                    await trio.lowlevel.checkpoint()
                driver.deliver(ev.Leave(""))
                await driver.run(nursery)

    trio.run(main)
    hands.trace.close(0.0, "")
    seen = [event for event in hands.core.seen if isinstance(event, ev.Installed | ev.InstallFailed)]
    assert seen == ([replace(installed("new"), place=hands.driver.compute.place_of(2))] if again else [])
    assert [record["digest"] for record in read_trace(hands.path) if record["k"] == "installed"] == (
        ["new"] if again else []
    )


class SlowInstaller:
    """Its end cannot be cancelled, as an export's."""

    def __init__(self) -> None:
        self.ending, self.may_end = trio.Event(), trio.Event()

    async def install(self, effect: fx.Install) -> InstallOutcome:
        with trio.CancelScope(shield=True):
            self.ending.set()
            await self.may_end.wait()
        return InstallOutcome(installed("late"), (), "")


@pytest.mark.parametrize("how", ["forgotten", "compute is lost", "another takes its place"])
def test_an_install_that_ends_after_it_was_cancelled_is_nothing(how: str, tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    driver, slow, other = hands.driver, SlowInstaller(), SlowInstaller()
    driver.installer = cast(Installer, slow)

    async def main() -> None:
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                driver._nursery = nursery
                driver._start_install(INSTALL)
                await slow.ending.wait()
                if how == "forgotten":
                    driver._perform(fx.Forget(2), 0.0)
                elif how == "compute is lost":
                    driver.compute_lost("killed")
                else:
                    driver.installer = cast(Installer, other)
                    driver._start_install(INSTALL)
                    driver._perform(fx.Apply(2, Version(6, "c6", Attempt(0, 4)), Attempt(0, 4), False), 0.0)
                slow.may_end.set()
                await trio.testing.wait_all_tasks_blocked()
                assert not any(isinstance(event, ev.Installed) for event in driver._events)
                if how == "another takes its place":
                    current = driver._installs.get(2)
                    assert current is not None
                    assert current.waiting.popleft().version.step == 6, "its applies are its own"
                nursery.cancel_scope.cancel()
                other.may_end.set()

    trio.run(main)


KEEP = fx.Keep(Donor(0, OTHER, ()), BASE, "all", "raw", 0)
TOLD = ev.History((Commit(1, 5.0, 8, 0.1, False, (1.0,)),))


def copy_of(version: Version) -> Copy:
    return Copy(StateHeader(version, 1.0, 1, 4, "d", 1, 1.0, "raw"), "all", (bytearray(4),), (b"",))


class ScriptedKeeper:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.go = trio.Event()
        self.asked: list[fx.Keep] = []

    async def fetch(self, effect: fx.Keep) -> Fetched:
        self.asked.append(effect)
        await self.go.wait()
        return Fetched(ev.Kept(effect.donor.stage, effect.version, 4, 0.1), copy_of(effect.version), (TOLD,))


def keeping(folder: Path, main: Callable[[Hands, ScriptedKeeper], Awaitable[None]]) -> list[ev.Event]:
    """What the core sees of copies, when `main` has done with the driver what it wants."""
    hands, keeper = Hands(folder), ScriptedKeeper()
    hands.driver.copy_fetcher = cast(CopyFetcher, keeper)

    async def bounded() -> None:
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                hands.driver._nursery = nursery
                await main(hands, keeper)
                hands.driver.deliver(ev.Leave(""))
                await hands.driver.run(nursery)

    trio.run(bounded)
    return [event for event in hands.core.seen if not isinstance(event, ev.Leave)]


def test_a_copy_is_kept_and_then_told_and_compute_has_no_part_in_it(tmp_path: Path) -> None:
    async def main(hands: Hands, keeper: ScriptedKeeper) -> None:
        hands.driver._perform(KEEP, 0.0)
        keeper.go.set()
        await trio.testing.wait_all_tasks_blocked()
        hands.driver._perform(fx.TakeCopy(0), 0.0)
        assert hands.driver.copies.held[0].header.version == BASE and hands.transport.known == [OTHER.id]
        hands.driver._perform(fx.RestartCompute("why not"), 0.0)
        hands.driver.compute_lost("killed")
        assert hands.driver.copies.held[0].header.version == BASE

    assert keeping(tmp_path, main) == [TOLD, ev.Kept(0, BASE, 4, 0.1), ev.ComputeLost("killed")]


def test_a_newer_copy_lies_beside_the_older_one_until_it_is_taken(tmp_path: Path) -> None:
    newer = replace(KEEP, version=Version(6, "c6", FIRST))

    async def main(hands: Hands, keeper: ScriptedKeeper) -> None:
        hands.driver.copies.held[0] = copy_of(Version(4, "c4", FIRST))
        for effect in (KEEP, newer):
            hands.driver._perform(effect, 0.0)
            await trio.testing.wait_all_tasks_blocked()
        assert hands.driver.copies.held[0].header.version.step == 4  # until a whole one is here
        keeper.go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert keeper.asked == [KEEP, newer], "the older one on its way has ended"
        assert hands.driver.copies.held[0].header.version.step == 4
        hands.driver._perform(fx.TakeCopy(0), 0.0)
        assert hands.driver.copies.held[0].header.version == newer.version and not hands.driver.copies.fetched

    assert keeping(tmp_path, main) == [TOLD, ev.Kept(0, newer.version, 4, 0.1)]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_dropped_copy_is_gone_and_so_is_the_word_of_it(arrived: bool, tmp_path: Path) -> None:
    async def main(hands: Hands, keeper: ScriptedKeeper) -> None:
        hands.driver._perform(KEEP, 0.0)
        hands.driver._perform(replace(KEEP, donor=Donor(3, OTHER, ())), 0.0)
        await trio.testing.wait_all_tasks_blocked()
        if arrived:
            keeper.go.set()
            await trio.testing.wait_all_tasks_blocked()
        hands.driver._perform(fx.DropCopy(0), 0.0)
        keeper.go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert list(hands.driver.copies.fetched) == hands.driver._keeps.stages() == [3]

    seen = keeping(tmp_path, main)
    assert [event for event in seen if event != TOLD] == [ev.Kept(3, BASE, 4, 0.1)], "another stage's"
    assert len(seen) == (3 if arrived else 2)


def test_what_is_to_be_saved_before_the_end_is_known_when_the_core_has_stopped(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    hands.core.effects[ev.Leave] = [fx.Save((1, 2)), fx.Stop("left")]
    assert hands.driver.saves == ()
    hands.run()
    assert hands.driver.saves == (1, 2)
