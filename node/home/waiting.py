"""No silent hang: whatever waits longer than ten seconds says what for, and again when it goes on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ftnode.node.home.duration import duration

SAID_AFTER_SECONDS: Final = (10.0, 60.0, 600.0)
"""Then every hour."""
HOUR: Final = 3600.0
LOOK_SECONDS: Final = 1.0


class LongWait:
    """Decides when to speak. Another thing to wait for begins anew."""

    def __init__(self) -> None:
        self._what = ""
        self._since = 0.0
        self._said = 0

    def look(self, what: str, now: float) -> str:
        """`what`: what is being waited for at `now`, empty for nothing. A line to say, or none."""
        if what != self._what:
            self._what, self._since, self._said = what, now, 0
        waited = now - self._since
        if not what or waited < self._next():
            return ""
        while waited >= self._next():
            self._said += 1
        return f"waits for {what}, for {duration(waited)} now"

    def _next(self) -> float:
        beyond = self._said - len(SAID_AFTER_SECONDS)
        return SAID_AFTER_SECONDS[self._said] if beyond < 0 else HOUR * (beyond + 1)


async def tell_waits(waiting: Callable[[], str], say: Callable[[str, str], None]) -> None:
    """Until cancelled: say what `waiting` names, when it does for long."""
    import trio  # only nodes need it: a command that merely waits for something starts in half the time

    wait = LongWait()
    while True:
        if line := wait.look(waiting(), trio.current_time()):
            say("waiting", line)
        await trio.sleep(LOOK_SECONDS)


@contextmanager
def spoken(what: str | Callable[[], str], say: Callable[[str], None] | None = None) -> Iterator[None]:
    """While the body runs, whatever it blocks in, say on stderr what it waits for."""
    done = threading.Event()
    tell = say or _on_stderr

    def watch() -> None:
        wait = LongWait()
        wait.look(what if isinstance(what, str) else what(), time.monotonic())
        while not done.wait(LOOK_SECONDS):
            if line := wait.look(what if isinstance(what, str) else what(), time.monotonic()):
                tell(line)

    thread = threading.Thread(target=watch, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LOOK_SECONDS)


def _on_stderr(line: str) -> None:
    print(f"ftnode: {line}", file=sys.stderr, flush=True)
