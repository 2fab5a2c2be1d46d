"""One life of a node after the other: which ends let another one begin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.home.identity import take_identity
from ftnode.node.life import lives as lives_module
from ftnode.node.links.p2pd import P2pdError
from ftnode.node.owner.join_options import Running, note_running, running_nodes
from ftnode.node.owner.limits import NO_LIMITS
from ftnode.node.owner.pause_rules import Verdict
from ftnode.protocol.words.errors import UserError

PAUSED, LEFT = (None, True), (None, False)
NOBODY = (UserError("no peer answered within 60 s", 69), False)
UNLISTED = (UserError("this run is for listed peers", 77), False)
End = tuple[UserError | None, bool]


class FakeOwner:
    """Wants so many lives, and leaves when told."""

    def __init__(self, lives: int, rests: bool = False) -> None:
        self.lives = lives
        self.verdict = Verdict(rests)
        self.leaving = False

    async def until_wanted(self) -> bool:
        self.lives -= 1
        return self.lives >= 0

    async def left(self) -> None:
        await trio.sleep_forever()


def lives(
    monkeypatch: pytest.MonkeyPatch, ends: list[End], wanted: int = 9, rests: bool = False
) -> tuple[UserError | None, int, float]:
    """The result, how many lives there were, and the seconds between them."""
    left: Iterator[End] = iter(ends)
    count = [0]

    async def life(*_arguments: Any) -> End:
        count[0] += 1
        return next(left)

    monkeypatch.setattr(lives_module, "_life", life)
    monkeypatch.setattr(lives_module, "newest_kept", lambda config: config)
    monkeypatch.setattr(lives_module, "gc", SimpleNamespace(collect=lambda: None))  # seconds, after thousands of tests
    voice = SimpleNamespace(say=lambda kind, text: None)

    async def scenario() -> tuple[UserError | None, float]:
        begun = trio.current_time()
        found = await lives_module._lives(Any, Any, FakeOwner(wanted, rests), SimpleNamespace(speaking=voice))  # type: ignore[arg-type]
        return found, trio.current_time() - begun

    failure, seconds = trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
    return failure, count[0], seconds


def test_the_note_of_who_had_the_identity_before_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was killed while it left, and the process that it names is another one meanwhile: ours."""
    before = take_identity(tmp_path)
    before.release()
    note_running(tmp_path, Running(os.getpid(), before.peer_id, "run", (), leaving=True))
    noted: list[tuple[Running, ...]] = []

    async def live(_config: Any, _identity: Any) -> None:
        noted.append(running_nodes(tmp_path))

    monkeypatch.setattr(lives_module, "_live", live)
    monkeypatch.setattr(lives_module, "admitted", lambda config, peer: config)
    config: Any = SimpleNamespace(
        home=tmp_path, log_directory=tmp_path / "logs", log_format="text", log_bytes_max=0,
        manifest=SimpleNamespace(run_id="run"),
    )  # fmt: skip
    assert lives_module.run(config) == 0
    assert noted == [()]


@pytest.mark.parametrize(("logs", "option"), [("home/logs", "--home"), ("elsewhere", "--log-dir")])
def test_logs_that_cannot_be_written_name_the_option_that_moves_them(tmp_path: Path, logs: str, option: str) -> None:
    """A home that is read-only was answered with --log-dir, which leaves the identity where it cannot be written."""
    (tmp_path / "home").mkdir()
    (tmp_path / logs).write_text("in the way")
    config: Any = SimpleNamespace(home=tmp_path / "home", log_directory=tmp_path / logs / "run")
    with pytest.raises(UserError, match=f"cannot write to .*; choose another {option}$") as caught:
        lives_module.run(config)
    assert caught.value.exit_code == 73


@pytest.mark.parametrize(
    ("ends", "failure", "count"),
    [
        ([LEFT], None, 1),
        ([NOBODY], NOBODY[0], 1),
        ([UNLISTED], UNLISTED[0], 1),
        ([PAUSED, PAUSED, LEFT], None, 3),
        ([PAUSED, UNLISTED], UNLISTED[0], 2),
        ([PAUSED, NOBODY, NOBODY, PAUSED, LEFT], None, 5),
    ],
)
def test_lives(monkeypatch: pytest.MonkeyPatch, ends: list[End], failure: UserError | None, count: int) -> None:
    found, lived, seconds = lives(monkeypatch, ends)
    assert (found, lived) == (failure, count)
    assert seconds == lives_module.AGAIN_SECONDS * ends[1:].count(NOBODY)


def test_asked_to_leave_while_it_rests_there_is_no_next_life(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lives(monkeypatch, [PAUSED, LEFT], wanted=1) == (None, 1, 0.0)


def test_who_starts_paused_tries_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    failure, count, seconds = lives(monkeypatch, [NOBODY, LEFT], rests=True)
    assert failure is None and count == 2 and seconds == lives_module.AGAIN_SECONDS
    assert lives(monkeypatch, [NOBODY])[0] is NOBODY[0]


def test_a_p2pd_that_does_not_answer_is_a_line_for_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is overloaded, before the node is there: out of a nursery it would be a traceback."""
    closed = []

    class Deaf:
        async def addresses(self) -> tuple[str, ...]:
            raise P2pdError("no answer within 5 s")

        def close(self) -> None:
            closed.append(self)

    async def start(*_arguments: Any, **_options: Any) -> Deaf:
        return Deaf()

    monkeypatch.setattr(lives_module.P2pd, "start", start)
    owner: Any = SimpleNamespace(starts=lambda scope: None, ended=lambda: None)
    config: Any = SimpleNamespace(listen=(), announce=(), port_mapping=False, log_directory=Path(), limits=NO_LIMITS)
    failure, paused = trio.run(lives_module._life, config, SimpleNamespace(path=Path()), owner, Any)
    assert failure is not None and failure.exit_code == lives_module.UNAVAILABLE and "no answer within" in str(failure)
    assert closed and not paused
