"""What the owner of this machine wants of its node, from all sides: signals, the control socket, notes, the machine.

It outlives the lives of `Node`: while one runs it hears pauses and the wish to leave, and between two it decides when
the next begins.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from math import inf, isfinite
from typing import Any, Final

import trio

from ftnode.node.life.departure import Departure
from ftnode.node.owner.announcements import Speaking
from ftnode.node.owner.control_socket import Handler
from ftnode.node.owner.join_options import JoinConfig, Running
from ftnode.node.owner.pause_notes import newest, read_word, told_word
from ftnode.node.owner.pause_rules import Hysteresis, Readings, Verdict, Word, wanted
from ftnode.node.owner.running_note import RunningNote

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""Between two looks at the machine; a command does not wait for the next."""
NUDGE_SECONDS: Final = 4.0
"""For the answer to a command."""


class OwnerWishes:
    """`verdict` is what counts now. `read` asks the machine, in a task of the caller's, for some seconds at
    most."""

    def __init__(
        self, config: JoinConfig, peer: str, speaking: Speaking, read: Callable[[], Awaitable[Readings]]
    ) -> None:
        self._config, self._peer, self._speaking, self._read = config, peer, speaking, read
        self.running_note = RunningNote(config.home, speaking.say)
        """Of this process: in a life the node writes it."""
        self.verdict = Verdict(False)
        self.leaving = False
        self._ends_at = inf
        """When a node that was asked to leave ends in any case, on trio's clock."""
        self._told: Word | None = None
        """What a command said by the socket, which may not have been able to write it down."""
        self._seen, self._readings = Hysteresis(), Readings()
        self._changed = trio.Event()
        self._departure: Departure | None = None
        self._scope: trio.CancelScope | None = None
        """Of the life that there is."""
        self._nursery: trio.Nursery | None = None
        self._of_life: tuple[str, ...] = ()
        self.handlers: dict[str, Handler] = {
            "state": self._tell, "pause": self._on_pause, "resume": self._on_resume, "leave": self._on_leave,
        }  # fmt: skip
        """For the control socket. A life adds its own."""

    # -- lives

    def starts(self, scope: trio.CancelScope) -> None:
        """A life begins, which `scope` ends at once."""
        self._scope = scope

    def begin(self, departure: Departure, handlers: Mapping[str, Handler] | None = None) -> None:
        """A node is there, this is how to end it, and what commands may ask of it."""
        self._departure, self._of_life = departure, tuple(handlers or ())
        self.handlers.update(handlers or {})
        if self.leaving:
            left = self._ends_at - trio.current_time()
            departure.leave("asked before it began", within=max(0.0, left) if left < inf else None)
        self._apply()

    def ended(self) -> None:
        """Nothing of the node is kept here: its memory goes with it."""
        for name in self._of_life:
            self.handlers.pop(name, None)
        self._departure, self._scope, self._of_life = None, None, ()

    async def until_wanted(self) -> bool:
        """Rest until the node may work again; False when it is to leave instead."""
        said = ""
        while self.verdict.pause and not self.leaving:
            if self.verdict.cause != said:
                said = self.verdict.cause
                how = "ftnode resume goes on" if self.verdict.by_owner else "goes on by itself"
                self._speaking.say("paused", f"{self.verdict.why}; {how}; ftnode leave ends it")
                self._note(self.verdict.why)
            await self._changed.wait()
        if said and not self.leaving:
            self._speaking.say("resuming", "joins again")
            self._note("")
        return not self.leaving

    def _note(self, paused: str) -> None:
        """While there is no node that says where it can be reached."""
        run = self._config.manifest
        note = Running(os.getpid(), self._peer, run.run_id, (), self.leaving, paused=paused, name=run.run.name)
        self.running_note.write(note)

    async def left(self) -> None:
        """Wait until it is asked to leave."""
        while not self.leaving:
            await self._changed.wait()

    # -- what is heard

    async def look(self) -> None:
        """At the machine and the notes, and act on it."""
        self._readings = await self._read()
        self._seen = self._judge()

    def _judge(self) -> Hysteresis:
        """What counts by the last readings, and what to remember of them."""
        word = newest(word for word in (self._told, read_word(self._config.home, self._peer)) if word is not None)
        self.verdict, seen = wanted(
            time.time(), time.monotonic(), self._readings, self._config.rules, word, self._seen
        )  # fmt: skip
        self._changed.set()
        self._changed = trio.Event()
        self._apply()
        return seen

    async def watch(self) -> None:
        """Look again and again."""
        async with trio.open_nursery() as self._nursery:
            while True:
                await self.look()
                await trio.sleep(LOOK_SECONDS)

    async def listen(self, signals: AsyncIterator[int]) -> None:
        """A closed terminal is told by one signal or by two, and means no more by the second."""
        async for number in signals:
            notice = self._config.notice_seconds if number == signal.SIGTERM and not self.leaving else 0.0
            reason = f"asked by {signal.Signals(number).name}"
            self._leave(reason, again_ends=number != signal.SIGHUP, within=notice or None)

    def _leave(self, reason: str, again_ends: bool = True, at_once: bool = False, within: float | None = None) -> None:
        before, self.leaving = self.leaving, True
        if within is not None:
            self._ends_at = min(self._ends_at, trio.current_time() + within)
        self._changed.set()
        self._changed = trio.Event()
        if self._departure is not None and at_once:
            self._departure.end()
        elif self._departure is not None:
            self._departure.leave(reason, again_ends, within)
        elif self._scope is not None and before and again_ends and within is None:
            self._scope.cancel()

    def _apply(self) -> None:
        departure = self._departure
        if departure is None or self._nursery is None or self.leaving:
            return
        if self.verdict.pause:
            told, seconds = self.verdict, self._config.hand_over_seconds
            self._nursery.start_soon(departure.pause, told.why, told.at_once, seconds, told.by_hours)
        else:
            departure.thaw()

    # -- the control socket

    async def _tell(self, _question: Mapping[str, Any]) -> Mapping[str, Any]:
        holds = self._departure.holds if self._departure is not None else ()
        state, until = self._state(), self.verdict.until
        return {"peer": self._peer, "state": state, "why": self._why(), "until": until, "holds": holds}

    def _state(self) -> str:
        departure = self._departure
        if self.leaving:
            return "leaving"
        if departure is None:
            return "paused" if self.verdict.pause and self._scope is None else "starting"
        if departure.frozen:
            return "frozen"
        if departure.busy and departure.done.is_set() and not self.verdict.pause:  # the next life begins
            return "starting"
        return "handing over" if departure.busy else "running"

    def _why(self) -> str:
        departure = self._departure
        return (departure.frozen if departure is not None else "") or self.verdict.why

    def _hear(self, paused: bool, question: Mapping[str, Any]) -> None:
        """A question without a word means the note."""
        if "written" in question:
            self._told = told_word(paused, question)

    async def _on_pause(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """The owner's word counts whatever the machine does, so that nobody waits for a look at it."""
        self._hear(True, question)
        self._judge()
        return await self._tell(question)

    async def _on_resume(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        self._hear(False, question)
        with trio.move_on_after(NUDGE_SECONDS) as nudge:
            await self.look()
        if nudge.cancelled_caught:
            self._judge()
        return await self._tell(question)

    async def _on_leave(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        notice = question.get("notice")
        within = max(0.0, float(notice)) if isinstance(notice, int | float) and isfinite(notice) else None
        self._leave("asked by ftnode leave", at_once=question.get("now") is True, within=within)
        return await self._tell(question)
