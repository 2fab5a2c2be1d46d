"""How one life of a node ends at its owner's word: it leaves, or it is paused. Both hand over first.

A node that is alone in its run has nobody to hand over to, and the run would be lost with it. A pause then freezes it:
the core's time stops, and whoever joins waits. Where the run keeps snapshots, all its stages are written to the disk as
they are then, compute ends, and `thaw` ends this life, so that the next goes on from the disk. Else compute stands
still and keeps its memory, and `thaw` goes on where it was. After the end of a run the last copy of a stage stays for
whoever exports the model, as it does when it is asked to leave.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

import trio

from ftnode.node.watch.alarms import on_disk, what_would_be_lost
from ftnode.protocol.holder.own_departure import HandedOver
from ftnode.protocol.words.events import Event, Leave, Stay
from ftnode.protocol.words.types import names_of

if TYPE_CHECKING:
    from ftnode.node.driver.core_clock import CoreClock
    from ftnode.protocol.picture import Picture
    from ftnode.protocol.words.types import Version


LOOK_SECONDS: Final = 1.0
CLOSING_SECONDS: Final = 1.0
"""Before a node's time is up its core stops, so that its processes have ended then."""
LAST_SECONDS: Final = 0.4
"""Before it is up the life ends, whatever the core does."""
SAVE_SECONDS_MIN: Final = 10.0
"""What saving has, however little of the time for handing over is left."""
HAND_OVER_SECONDS: Final = 60.0
HEAR_SECONDS: Final = 2.5
"""For those with the same hours to say that they leave: every node looks at its clock every two seconds."""


class Freezable(Protocol):
    """The compute process."""

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def retire(self) -> None: ...


Keep = Callable[[tuple[int, ...]], Awaitable[str]]
"""Writes stages to the disk, as they are; why not, or nothing."""


class Departure:
    """Of one life. `done` is set when it is over; `look` at the core; `note` is called when something that others read
    has changed."""

    def __init__(
        self,
        look: Callable[[], Picture],
        clock: CoreClock,
        compute: Freezable,
        deliver: Callable[[Event], None],
        say: Callable[[str, str], None],
        note: Callable[[], None],
    ) -> None:
        self._look, self._clock, self._compute = look, clock, compute
        self._deliver, self._say, self._note = deliver, say, note
        self.done = trio.Event()
        self.leaving = False
        """It has been asked to leave, by whatever way it goes."""
        self.keeps: tuple[int, ...] = ()
        """Stages whose last copy keeps us, though we were asked to leave."""
        self.exported = False
        """Somebody has written down the model of the last step."""
        self.pausing = ""
        """Why it steps aside, when that is what it does."""
        self.frozen = ""
        """Why it stands still, and what that means."""
        self.keep: Keep | None = None
        """Where the run keeps snapshots."""
        self.line_rate: Callable[[], float] = float
        """Bytes a second that the node's line takes; 0.0: not known."""
        self.stored: Callable[[], Mapping[int, int]] = dict
        """Stage → step of the newest snapshot on this disk."""
        self.saved = False
        """It stands still, all that it holds is on the disk, and compute is gone."""
        self._put_down: tuple[int, ...] = ()
        """Stages that the disk got at the end."""
        self._patience: trio.CancelScope | None = None
        """Of the wait for others to take over, in a pause."""
        self._stayed = 0
        """How often the core had stayed when it was last told of this pause."""
        self._waits = False
        """It lets others hand over before it does."""
        self._saving: trio.CancelScope | None = None
        self._ends_at = inf
        """When this life ends, whatever is unfinished, on trio's clock."""
        self._hurried = trio.Event()
        self.hand_over_seconds = HAND_OVER_SECONDS
        """For saving what is the last, when it is asked to leave."""

    @property
    def busy(self) -> bool:
        """It is on its way to a pause."""
        return bool(self.pausing) or self._saving is not None

    @property
    def holds(self) -> tuple[int, ...]:
        """Stages, now; while it stands still, those that it goes on with."""
        return tuple(sorted(self._look().versions))

    def leave(self, reason: str, again_ends: bool = True, within: float | None = None) -> None:
        """The first time hands over, or saves what nobody else is there to take; the second ends at once, unless
        `again_ends` is False. After the end of the run whoever has the last copy of a stage waits for the second one,
        however long, or for somebody who gets the model. `within`: it ends after so many seconds in any case; a later
        one can only be sooner, and never ends it at once."""
        if within is not None:
            self._ends_at = min(self._ends_at, trio.current_time() + within)
            self._hurried.set()
            if self.leaving:
                self._deliver(self._word(reason))
                return
        if self.leaving and not self.keeps:
            if again_ends:
                if cost := self._cost_of_an_end():
                    self._say("leaving", f"ends at once: {cost}")
                self.done.set()
            return
        if self.saved:
            self._say("leaving", "leaves; what it held stays on this disk")
            self.end()
            return
        self.thaw()
        last = () if self.keeps else self._last_copies()
        lost = () if last else self._what_would_be_lost()
        if last:
            self.leaving = True
            self._stay(last)
        elif self.keeps:
            goes = f"the last copy of {names_of(self.keeps)} goes with this node{on_disk(self.keeps, self.stored())}"
            self._say("leaving", f"leaves, and {goes}; once more ends at once")
            self.go(reason)
        else:
            lost = lost if not self._can_save() else ()
            if lost:
                cost = "; nobody else is in the run: its training goes with this node; a pause would keep it"
            else:
                cost = self._cost_of_an_end()
                first = "saves" if self._look().only_member and self._can_save() else "hands over"
                cost = f", and {first} first: {cost}" if cost else ""
            if within is not None:
                cost = f" within {within:g} s{cost}"
            self._say("leaving", f"leaving{cost}; once more ends at once")
            self.go(reason)

    def _cost_of_an_end(self) -> str:
        """At once, without a word to anybody."""
        return what_would_be_lost(self._look(), self.stored(), self._clock())

    def _stay(self, last: tuple[int, ...]) -> None:
        self.keeps = last
        self._note()
        left = self._seconds_left()
        limit = f", or in {left:.0f} s" if left < inf else ""
        self._say(
            "leaving", f"the last copy of {names_of(last)} goes with this node, and nobody has exported the model"
            f"{on_disk(last, self.stored())}: it leaves when somebody has (ftnode export){limit}; once more ends it"
        )  # fmt: skip

    async def watch_the_end(self) -> None:
        """Look again and again: who hands over while the run ends, or while all others go, may be the last with
        something then, which nobody takes over any more."""
        while not self.done.is_set():
            hurried = self._hurried
            end = self._ends_at - LAST_SECONDS
            with trio.move_on_at(min(trio.current_time() + LOOK_SECONDS, end)):
                await hurried.wait()
            self._hurried = trio.Event()
            if trio.current_time() >= end:
                self.done.set()
            else:
                self._see_the_end()

    def _seconds_left(self) -> float:
        """Until this life ends in any case."""
        return self._ends_at - trio.current_time()

    def _see_the_end(self) -> None:
        last = () if self.keeps or self.frozen else self._last_copies()
        if last and self.leaving:
            self._stay(last)
        elif self._patience is not None and (last or self._look().stayed > self._stayed):
            self._patience.cancel()

    async def save_the_rest(self, stages: tuple[int, ...]) -> None:
        """The core has stopped, and nobody has taken these over. Nothing but the end of this node's life ends it; a
        pause waits for it, however little of its time is left."""
        if not stages or self.keep is None:
            return
        seconds, kind, trouble = min(self.hand_over_seconds, max(0.0, self._seconds_left())), "leaving", ""
        if self._patience is not None:
            seconds, kind = max(SAVE_SECONDS_MIN, self._patience.deadline - trio.current_time()), "pausing"
            self._patience.deadline = trio.current_time() + seconds + LOOK_SECONDS
        self._clock.stop()
        limit = f"for {round(seconds, 1):g} s at most"
        self._say(kind, f"nobody else has what this node holds: saves {names_of(stages)} first, {limit}")
        with trio.move_on_after(seconds) as patience:
            trouble = await self.keep(stages)
        if patience.cancelled_caught:
            trouble = f"not within {seconds:g} s"
        self._put_down = () if trouble else stages
        self._say(kind, f"nothing was saved: {trouble}" if trouble else f"this disk has {names_of(stages)}")

    def _last_copies(self) -> tuple[int, ...]:
        """Of stages of a model that nobody has exported."""
        return () if self.exported else self._look().last_copies(self._clock())

    def go(self, reason: str) -> None:
        """Leave, whatever goes with us."""
        self.leaving, self.keeps = True, ()
        self._deliver(self._word(reason))
        self._note()

    def _word(self, reason: str) -> Leave:
        """For the core, which stops a little before the node's time is up."""
        if self._ends_at == inf:
            return Leave(reason)
        within = max(0.0, self._seconds_left() - CLOSING_SECONDS)
        return Leave(reason, within=within, bytes_per_second=float(self.line_rate()))

    @property
    def fate(self) -> HandedOver:
        """What has become of the stages that this node held, as of now."""
        fate = self._look().fate
        on_disk = {*self._put_down, *self.stored(), *(self.holds if self.saved else ())}
        kept = tuple(stage for stage in fate.gone if stage in on_disk)
        return fate._replace(gone=tuple(stage for stage in fate.gone if stage not in on_disk), on_disk=kept)

    def end(self) -> None:
        """Leave at once: nothing is handed over."""
        self.leaving = True
        self.done.set()

    def on_export(self, of_the_end: bool, until_exported: bool) -> None:
        """Somebody has a model that includes our stages."""
        self.exported = self.exported or of_the_end
        if self.exported and (self.keeps or (until_exported and not self.leaving)):
            self.go("the model was exported")
        elif self.exported and self.frozen:  # nothing keeps us from the pause any more
            self.pausing, self.frozen = self.frozen.partition(";")[0], ""
            self.done.set()

    # -- pauses

    async def pause(self, why: str, now: bool, hand_over_seconds: float, others_first: bool = False) -> None:
        """Step aside: hand over, for so long at most, or with `now` not at all; or stand still, where that would lose
        the run. Returns when it is over or frozen. `others_first`: others may pause now, too, and whoever leads lets
        them hand over to it first."""
        if self.leaving or self.done.is_set():
            return
        if now:
            if not self.saved:
                self.thaw()
            self.pausing = why
            self.done.set()
        elif not self.busy and not self.frozen and not self._waits:
            if others_first and not await self._others_went_first(hand_over_seconds):
                return
            if not await self._hands_over(why, hand_over_seconds):
                self._say("pausing", f"nobody has taken over within {hand_over_seconds:g} s; goes without")
                self.done.set()

    async def _hands_over(self, why: str, seconds: float) -> bool:
        """Until others have what it holds, or it stands still, since it is alone; False when neither is so in time."""
        deadline = trio.current_time() + seconds
        while not (kept := self._what_would_be_lost()) and trio.current_time() < deadline:
            if not self.pausing:
                self._say("pausing", f"{why}; hands over first, for {seconds:g} s at most")
            self.pausing, self._stayed = why, self._look().stayed
            self._deliver(Leave(f"pauses, {why}"[:200], pauses=True))
            self._note()
            with trio.CancelScope(deadline=deadline) as self._patience:
                await self.done.wait()
            self._patience = None
            if self._look().stayed > self._stayed:  # all others leave, too, or have gone
                await self._others_leave(deadline)
            if self.done.is_set() or self.leaving:
                return True
            if kept := self._last_copies():
                break
        if not kept and self._look().only_member:  # who was to learn it has not in time
            kept = self._look().trained()
        if kept:
            self._deliver(Stay())
            self.pausing = ""
            await self._stand_still(why, kept, max(min(seconds, SAVE_SECONDS_MIN), deadline - trio.current_time()))
        return bool(kept)

    def thaw(self) -> None:
        """Go on where it stood still. A hand-over that has begun goes on: the swarm counts on it."""
        self._waits = False
        if self._saving is not None:
            self._saving.cancel()
        if self.saved:
            self._say("resuming", "joins again, and goes on from its snapshots")
            self.frozen, self.saved, self.pausing = "", False, "to go on from the disk"
            self.done.set()
        elif self.frozen:
            self.frozen = ""
            self._compute.thaw()
            self._clock.go()
            self._note()

    async def _others_went_first(self, seconds: float) -> bool:
        """Were all to go in the same moment, nobody would take anything over. False when it is to stay after all, or
        goes in another way."""
        self._waits, picture = True, self._look()
        with trio.move_on_after(seconds):
            if picture.leads and not picture.only_member:
                await trio.sleep(HEAR_SECONDS)
                await self._others_leave(trio.current_effective_deadline())
        wanted, self._waits = self._waits, False
        return wanted and not self.leaving and not self.done.is_set()

    async def _others_leave(self, deadline: float) -> None:
        with trio.CancelScope(deadline=deadline):
            while self._look().other_leavers:
                await trio.sleep(HEAR_SECONDS / 10)

    def _what_would_be_lost(self) -> tuple[int, ...]:
        """Stages that nobody else has or takes over, of a model that nobody has exported."""
        picture = self._look()
        return () if picture.finished and self.exported else picture.goes_with_us(self._clock())

    async def _stand_still(self, why: str, kept: tuple[int, ...], seconds: float) -> None:
        """With its stages on the disk and without compute, or else with all in memory."""
        if not self._can_save():
            self._freeze(why, kept)
            return
        (version,) = self._versions()
        self._clock.stop()  # nothing more is ordered of compute: what is copied is of one version
        limit = f"for {round(seconds, 1):g} s at most"
        self._say("pausing", f"{why}; nobody else is in the run: saves {names_of(kept)}, {limit}")
        trouble = await self._save(seconds)
        if trouble is None or self.leaving:  # it is to go on, or ends in another way
            self._clock.go()
        elif trouble:
            self._freeze(why, kept, f" ({trouble})")
        else:
            self.saved = True
            self._compute.retire()
            self.frozen = (
                f"{why}; nobody else is in the run, and the last copy of {names_of(kept)} is on this disk, as it was "
                f"after step {version.step if version else 0}; its memory is free, and the run goes on from there"
            )
            self._say("frozen", self.frozen)
            self._note()

    def _versions(self) -> set[Version | None]:
        picture = self._look()
        return {picture.versions.get(stage) for stage in picture.mine}

    def _can_save(self) -> bool:
        return self.keep is not None and not self._look().finished and len(self._versions()) == 1

    async def _save(self, seconds: float) -> str | None:
        """Why it is not saved, empty when it is; None when that is not wanted any more."""
        assert self.keep is not None
        trouble: str | None = None
        async with trio.open_nursery() as nursery:
            self._saving = nursery.cancel_scope
            nursery.start_soon(self._stop_saving)
            with trio.move_on_after(seconds) as patience:
                trouble = await self.keep(self._look().mine)
            if patience.cancelled_caught:
                trouble = f"they were not saved within {seconds:g} s"
            nursery.cancel_scope.cancel()
        self._saving = None
        return None if self.done.is_set() else trouble

    async def _stop_saving(self) -> None:
        await self.done.wait()
        if self._saving is not None:
            self._saving.cancel()

    def _freeze(self, why: str, kept: tuple[int, ...], trouble: str = "") -> None:
        over = self._look().finished
        where = "the run is over and nobody has exported its model" if over else "nobody else is in the run"
        self.frozen = (
            f"{why}; {where}, so that the last copy of {names_of(kept)} stays in memory{trouble}; "
            "to free that too, and lose it: ftnode pause --now"
        )
        if not over:  # else there is nothing to compute, and somebody may want the model
            self._clock.stop()
            self._compute.freeze()
        self._say("frozen", self.frozen)
        self._note()
