"""What a service manager is told of us: ready, alive, stopping, and a line of status (sd_notify(3)).

One datagram per word to the socket that NOTIFY_SOCKET names. Where there is none, as in a terminal, nothing is said.
The watchdog's sign of life comes from the event loop, so that a node whose loop hangs is restarted.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.owner.join_options import Running

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
STATUS_CHARACTERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class State:
    """`stopping`: it was asked to leave, and takes its time."""

    text: str
    stopping: bool = False


class Supervisor:
    """The service manager's ear. `say` never waits and never fails: a manager that is gone is no reason to stop."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        place = environment.get("NOTIFY_SOCKET", "")
        self.address = f"\0{place[1:]}" if place.startswith("@") else place
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        period = environment.get("WATCHDOG_USEC", "")
        self.watchdog_seconds = int(period) / 1e6 if period.isdecimal() and mine else 0.0

    @property
    def there(self) -> bool:
        return self.address.startswith(("/", "\0"))

    def say(self, words: str) -> None:
        if not self.there:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ear:
            try:
                ear.sendto(words.encode(), self.address)
            except OSError as error:
                log.info("the service manager does not hear us: %s", error)

    async def run(self, state: Callable[[], State | None]) -> None:
        """Until cancelled: that we are ready once there is a state, then what it says when it changes, and signs of
        life in half the time that the watchdog allows."""
        if not self.there:
            return
        told, ready = State(""), False
        while True:
            now = state()
            words = ["WATCHDOG=1"] if self.watchdog_seconds else []
            if now is not None:
                words += [] if ready else ["READY=1"]
                words += ["STOPPING=1"] if now.stopping and not told.stopping else []
                words += [f"STATUS={_line(now.text)}"] if now.text != told.text else []
                told, ready = now, True
            if words:
                self.say("\n".join(words))
            await trio.sleep(min(LOOK_SECONDS, self.watchdog_seconds / 2 or LOOK_SECONDS))


def state_of(running: Running | None) -> State | None:
    """By what we last noted of ourselves, whether or not the disk took it; None before there was anything to note."""
    if running is None:
        return None
    text = f"volunteer of run {running.run[:12]}" if running.run else "meeting point"
    if running.paused:
        text = f"paused: {running.paused}"
    if running.leaving:
        text = "keeps the last copy of the model until it is exported" if running.keeps else "hands over"
    return State(text, running.leaving)


def _line(text: str) -> str:
    """One line of printable characters."""
    text = " ".join(text.split())[:STATUS_CHARACTERS_MAX]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
