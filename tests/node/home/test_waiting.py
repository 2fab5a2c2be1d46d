"""Who waits says what for, by a clock that nobody has to wait for."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from ftnode.node.home import waiting
from ftnode.node.home.waiting import LongWait, spoken, tell_waits


def said(looks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    wait = LongWait()
    return [(now, line) for now, what in looks if (line := wait.look(what, now))]


def test_a_wait_is_told_after_ten_seconds_and_then_ever_less_often() -> None:
    told = said([(float(second), "a peer") for second in range(3 * 3600 + 1)])
    assert [now for now, _ in told] == [10, 60, 600, 3600, 7200, 10800]
    assert [line.partition(", ")[2] for _, line in told] == [
        "for 10 s now", "for 60 s now", "for 10 min now", "for 60 min now", "for 2 h now", "for 3 h now",
    ]  # fmt: skip


def test_what_goes_on_in_time_is_not_worth_a_word() -> None:
    assert said([(float(second), "a" if second % 9 else "") for second in range(100)]) == []
    assert said([(float(second), f"stage {second // 9}") for second in range(100)]) == []


def test_who_was_not_looked_at_for_long_speaks_once() -> None:
    assert [now for now, _ in said([(0.0, "a peer"), (700.0, "a peer"), (701.0, "a peer")])] == [700.0]


def test_a_node_tells_its_owner() -> None:
    told = list[tuple[float, str, str]]()

    async def main() -> None:
        with trio.move_on_after(100):
            await tell_waits(
                lambda: "its compute process" if trio.current_time() - began < 30 else "",
                lambda kind, line: told.append((trio.current_time() - began, kind, line)),
            )

    clock = trio.testing.MockClock(autojump_threshold=0)
    began = clock.current_time()
    trio.run(main, clock=clock)
    assert told == [(10, "waiting", "waits for its compute process, for 10 s now")]


def test_a_command_that_blocks_is_told_of_from_outside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "SAID_AFTER_SECONDS", (0.01, 60.0, 600.0))
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.02)
    heard = threading.Event()
    lines = list[str]()

    def hear(line: str) -> None:
        lines.append(line)
        heard.set()

    with spoken("an answer", hear):
        assert heard.wait(10)
    assert lines[0].startswith("waits for an answer, for ")
    with spoken(lambda: "a quick one"):
        pass
    assert capsys.readouterr() == ("", "")
