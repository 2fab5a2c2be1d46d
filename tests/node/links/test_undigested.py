"""What a peer makes us raise costs that peer its stream, and is kept and said once; what is ours goes on up."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing

from ftnode.node.links import undigested
from ftnode.node.links.undigested import (
    KEPT_MAX,
    LINE_MAX,
    LINES_MAX,
    PAUSE_MAX,
    PAUSE_SECONDS,
    Failures,
    asking,
    keep_running,
    serving,
)  # fmt: skip
from ftnode.protocol.words.errors import LocalError, PeerError


@pytest.fixture(autouse=True)
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    fresh = Failures()
    monkeypatch.setattr(undigested, "FAILURES", fresh)
    return fresh


def in_virtual_time(run: Callable[[], Awaitable[None]]) -> None:
    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def served(error: BaseException) -> list[tuple[str, str]]:
    """The strikes for a handler that raises this."""
    strikes: list[tuple[str, str]] = []
    with serving("12D3KooWmallory", "/test/1", lambda peer_id, reason: strikes.append((peer_id, reason)), print):
        raise error
    return strikes


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("x" * 10**6), RecursionError(), ValueError("a\nb\x1b[2J"), KeyError(b"\xff"), MemoryError(),
        ZeroDivisionError(), ExceptionGroup("nursery", [ExceptionGroup("inner", [TypeError("who knows")])]),
        ExceptionGroup("nursery", [OSError("line"), IndexError("odd")]),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_what_nobody_thought_of_is_a_strike_and_is_kept(error: BaseException, failures: Failures) -> None:
    ((peer_id, reason),) = served(error)
    assert peer_id == "12D3KooWmallory" and "/test/1" in reason and len(reason) < 200
    (kept,) = failures.newest
    assert kept.protocol == "/test/1" and kept.count == 1 and 0 < len(kept.lines) <= LINES_MAX
    assert all(line.isprintable() and len(line) <= LINE_MAX for line in kept.lines)


@pytest.mark.parametrize(
    "error",
    [OSError("line"), EOFError(), trio.TooSlowError(), trio.BrokenResourceError(), ExceptionGroup("", [OSError("a")])],
    ids=lambda error: type(error).__name__,
)
def test_a_stream_that_breaks_is_nobodys_fault(error: BaseException, failures: Failures) -> None:
    assert served(error) == [] and failures.newest == ()


def test_a_peer_error_is_a_strike_with_its_reason(failures: Failures) -> None:
    assert served(PeerError("out of range")) == [("12D3KooWmallory", "out of range")]
    assert failures.newest == ()


@pytest.mark.parametrize(
    "error",
    [
        LocalError("ours"), AssertionError(), ExceptionGroup("nursery", [ValueError(), LocalError("ours")]),
        KeyboardInterrupt(), BaseExceptionGroup("nursery", [KeyboardInterrupt()]),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_what_is_ours_ends_the_node(error: BaseException, failures: Failures) -> None:
    with pytest.raises(type(error)):
        served(error)
    if isinstance(error, Exception):
        with pytest.raises(type(error)), asking("12D3KooWmallory", "/test/1"):
            raise error
    assert failures.newest == ()


def test_a_cancellation_passes_and_what_was_raised_beside_it_is_kept(failures: Failures) -> None:
    strikes: list[str] = []

    async def fail() -> None:
        raise RuntimeError("odd")

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            outer.cancel()
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        nonlocal outer
        with outer:
            with serving("12D3KooWmallory", "/test/1", lambda peer_id, reason: strikes.append(reason), print):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    nursery.start_soon(fail)
            await trio.lowlevel.checkpoint()
            pytest.fail("the cancellation was swallowed")

    outer = trio.CancelScope()
    trio.run(main)
    assert len(strikes) == len(failures.newest) == 1


def test_an_interrupt_beside_an_error_passes_without_the_error(failures: Failures) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        served(BaseExceptionGroup("nursery", [KeyboardInterrupt(), ValueError("odd")]))
    assert [type(one) for one in caught.value.exceptions] == [KeyboardInterrupt] and len(failures.newest) == 1


def test_the_newest_are_kept_and_each_is_said_once(failures: Failures, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(50):
        served(RuntimeError("odd"))
    (kept,) = failures.newest
    assert kept.count == 50 and caplog.text.count("please report") == 1
    for number in range(3 * KEPT_MAX):
        failures.note(f"peer{number}", f"/test/{number}", RuntimeError())
    assert [failure.peer for failure in failures.newest] == [f"peer{n}" for n in range(3 * KEPT_MAX)][
        : -KEPT_MAX - 1 : -1
    ]


def test_an_answer_that_nobody_thought_of_is_a_peer_error(failures: Failures) -> None:
    def asked(error: Exception) -> Callable[[], None]:
        def ask() -> None:
            with asking("12D3KooWmallory", "/test/1", (LookupError,)):
                raise error

        return ask

    for odd in (RuntimeError("odd"), RecursionError(), ExceptionGroup("nursery", [ValueError()])):
        with pytest.raises(PeerError, match="cannot digest"):
            asked(odd)()
    assert len(failures.newest) == 3
    for expected in (LookupError(), OSError(), trio.TooSlowError(), PeerError("theirs")):
        with pytest.raises(type(expected)):
            asked(expected)()
    assert len(failures.newest) == 3


def test_a_task_beside_training_begins_again_later_and_later(
    failures: Failures, caplog: pytest.LogCaptureFixture
) -> None:
    begun = list[float]()

    async def fails() -> None:
        begun.append(trio.current_time())
        if len(begun) == 10:
            with trio.move_on_after(PAUSE_MAX + 1):
                await trio.sleep_forever()
        if len(begun) == 12:
            return
        async with trio.open_nursery():
            raise KeyError("a peer's word")

    in_virtual_time(partial(keep_running, "the look at connections", fails))
    pauses = [later - before for before, later in pairwise(begun)]
    assert pauses[:3] == pytest.approx([PAUSE_SECONDS, 2 * PAUSE_SECONDS, 4 * PAUSE_SECONDS])
    assert max(pauses[:9]) == pytest.approx(PAUSE_MAX)
    assert pauses[9:] == pytest.approx([PAUSE_MAX + 1 + PAUSE_SECONDS, 2 * PAUSE_SECONDS])
    (kept,) = failures.newest
    assert kept.count == 11 and kept.protocol == "the look at connections"
    assert [record.message.splitlines()[0] for record in caplog.records] == [
        "the look at connections fails and begins again; please report it:"
    ]


@pytest.mark.parametrize("error", [AssertionError("ours"), LocalError("ours")], ids=lambda error: type(error).__name__)
def test_a_task_that_breaks_an_invariant_of_ours_ends(error: Exception) -> None:
    async def fails() -> None:
        raise error

    with pytest.raises(type(error)):
        in_virtual_time(partial(keep_running, "relaying", fails))


def test_a_task_that_is_cancelled_ends(failures: Failures) -> None:
    async def cancelled() -> None:
        with trio.move_on_after(100.0):
            await keep_running("relaying", trio.sleep_forever)

    in_virtual_time(cancelled)
    assert failures.newest == ()
