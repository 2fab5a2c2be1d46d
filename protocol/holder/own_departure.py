"""This peer's own way out, and what it gives up: the one place that says how far it is, and why.

A peer whose owner wants it to go hands over: it says so to the leader at each heartbeat, and works on until others have
learnt what only it holds. Then a view between two steps goes on without it, and it is free to go. Where nobody takes
over, it goes without handing over; in a run that keeps snapshots it saves first what nobody else has.

A peer that pauses comes back. Where nobody is left to take over what it holds, the request is as if it had not been
made, and the owner lets the node stand still instead. After the end of the run whoever has the last copy of a stage
waits until its owner asks again.

A peer whose machine is taken away at a certain time tells the leader how long that is. At that time it stops, whatever
is unfinished.

A peer that lost the weights of a stage gives that stage up. It has nothing to hand over, and stays.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ftnode.protocol.recovery.last_copy import last_copies, left_behind, trained
from ftnode.protocol.situation import ClearTimer, Outcome, Situation
from ftnode.protocol.words.effects import Save, Stop
from ftnode.protocol.words.events import Leave
from ftnode.protocol.words.messages import Resign
from ftnode.protocol.words.view import View


class WayOut(Enum):
    """How far this peer is on its way out."""

    STAYS = "nobody has asked it to go, or it stays after all"
    HANDS_OVER = "it goes as soon as others have what only it holds"
    GOES = "it waits for nobody to learn what it holds: others have it, or nobody takes it"


class HandedOver(NamedTuple):
    """What becomes of the stages of a peer that goes."""

    handed_over: tuple[int, ...] = ()
    """Others hold them."""
    under_way: tuple[int, ...] = ()
    """Others learn them, and may have all of it already."""
    left_out: tuple[int, ...] = ()
    """Nobody does: they come back from copies or neighbours, as if this peer had been killed."""
    gone: tuple[int, ...] = ()
    """Nobody else is in the run: they go with this peer."""
    on_disk: tuple[int, ...] = ()
    """As `gone`, but this machine's disk has them; the core does not know of that."""


class OwnDeparture:
    """What this peer gives up, and what has become of its owner's wish that it goes."""

    def __init__(self) -> None:
        self.way = WayOut.STAYS
        self.leaving = ""
        """Why the owner wants us to go; empty otherwise."""
        self.pauses = False
        """All that was asked for are pauses."""
        self.until: float | None = None
        """When we end, whatever is unfinished; None: we have the time that handing over takes."""
        self._line = 0.0
        """Bytes a second, for the leader; 0.0: not known."""
        self._had: tuple[int, ...] = ()
        """Stages that were ours when we were asked to go."""
        self._taken: set[int] = set()
        """Those of them that somebody had learnt, or held besides us, when a view took them from us."""
        self.stayed = 0
        """How often it stayed after all."""
        self._given_up: tuple[int, ...] = ()
        """Stages whose weights we do not have, until a view without us in them comes."""
        self._reason = ""
        """What the leader is told."""
        self._over_since = 0.0
        """The last moment at which the run had not ended, or its end kept us."""

    # -- what the leader hears

    def give_up(self, s: Situation, stages: tuple[int, ...], reason: str) -> Outcome:
        """These are lost here. Who is on its way out goes at once: it does not know what else is."""
        if not s.member:
            return Outcome()
        self._given_up = tuple(sorted({*self._given_up, *stages}))
        if self.way is WayOut.HANDS_OVER:
            self.way = WayOut.GOES
        self._reason = reason[:500]
        return self.say(s)

    def say(self, s: Situation) -> Outcome:
        """At each heartbeat."""
        out, goes, view = Outcome(), self.way is not WayOut.STAYS, s.view
        if view is not None and (goes or self._given_up):
            stages, hands_over = s.mine if goes else self._given_up, self.way is WayOut.HANDS_OVER
            left = max(0.0, self.until - s.now) if self.until is not None and goes else -1.0
            told = Resign(view.lineage.id, view.number, stages, goes, hands_over, self._reason, left, self._line)
            out.send(view.leader, told)
        return out

    # -- the owner's wish

    def wish(self, event: Leave) -> None:
        """The owner has said so; `leave` is next, in the situation that follows."""
        self.pauses = event.pauses and (self.pauses or not self.leaving)
        self.leaving = self.leaving or event.reason

    def leave(self, s: Situation, event: Leave) -> Outcome:
        """Hand the stages over and stop when others have them and have agreed, or when that takes too long. A second
        wish can only shorten the time."""
        self._had = self._had or s.mine
        if event.within >= 0:
            until = s.now + event.within
            self.until = until if self.until is None else min(self.until, until)
            self._line = event.bytes_per_second
        if not s.member or s.alone or s.own.finished or not (s.mine or s.led is not None):
            return self._stop(s)
        self.way, self._reason = WayOut.HANDS_OVER, f"leaves: {event.reason}"[:500]
        out = self.say(s)
        self._wait(s, out, s.settings.hand_over_seconds * max(1, len(s.mine)))
        return out

    def on_view(self, s: Situation, was: tuple[int, ...], before: View | None) -> Outcome:
        """When the view is without us, or without all others, we go. Who led the one `before` stays a heartbeat longer,
        to tell those who miss it. `was`: the stages that we held in it."""
        led = before is not None and before.leader == s.me
        self._see_who_has_them(s, was, before)
        if not {*self._given_up} & {*s.mine} & {*was}:
            self._given_up = ()
        if not self.leaving or (s.member and s.members != {s.me}):
            return Outcome()
        if not s.member:
            self.way = WayOut.GOES
        if led and not self._loses_all(s):
            out = Outcome()
            self._wait(s, out, s.settings.heartbeat_seconds)
            return out
        return self._stop(s)

    def _see_who_has_them(self, s: Situation, was: tuple[int, ...], before: View | None) -> None:
        """Whoever else takes a stage of ours in this view rebuilds it."""
        if s.view is None or before is None or not self.leaving:
            return
        learnt = s.own.begin.learners if s.own.begin is not None else ()
        for stage in {*was} - {*s.mine}:
            have = {*before.holders[stage], *(peer for learned, peer in learnt if learned == stage)} - {s.me}
            if have & {*s.view.holders[stage]}:
                self._taken.add(stage)

    def fate(self, s: Situation) -> HandedOver:
        """What becomes of our stages if we go now."""
        had = self._had or s.mine
        others = {stage for stage in s.mine if s.view is not None and len(s.view.holders[stage]) > 1}
        learnt = {stage for stage, _ in s.own.begin.learners} if s.own.begin is not None else set[int]()
        over = {*had} & (self._taken | others)
        way = {*s.mine} & {*had} & learnt - over if not s.alone else set[int]()
        rest = tuple(sorted({*had} - over - way))
        out, gone = ((), rest) if s.alone else (rest, ())
        return HandedOver(tuple(sorted(over)), tuple(sorted(way)), out, gone)

    def let_go(self, s: Situation, everybody: bool) -> Outcome:
        """We lead, and nobody takes over what we hold; `everybody`: all others leave, too, and of those who pause the
        leader goes last."""
        if everybody and self.pauses and s.members != {s.me}:
            return self._stay(s, "everybody leaves, and whoever leads goes last")
        return self._stop(s) if s.members == {s.me} else self._go(s)

    def due(self, s: Situation) -> Outcome:
        """It has taken too long."""
        if self.until is not None and s.now >= self.until:
            self.way = WayOut.GOES
            return self.say(s).extended([Stop(self.leaving)])
        if last_copies(s):
            return Outcome()
        if self.way is not WayOut.HANDS_OVER or self._loses_all(s):
            return self._stop(s)
        out = Outcome()
        out.note("leave", "nobody has taken over what this node holds: leaves without handing over")
        out.extend(self._go(s))
        self._wait(s, out, 2 * s.settings.lease_seconds)
        return out

    def beat(self, s: Situation) -> Outcome:
        """A run that has ended lets a leaver go that has no last copy. Others may ask us meanwhile who is right."""
        if not s.member:
            return Outcome()
        if not (self.leaving and s.own.finished) or last_copies(s):
            self._over_since = s.now
        elif s.now - self._over_since > 2 * s.settings.lease_seconds:
            return Outcome([Stop(self.leaving)])
        return Outcome()

    def waited_enough(self, s: Situation) -> Outcome:
        """Nobody who might learn from us has done so in the time that the pause has, or nobody does after the end."""
        if self._loses_all(s) or (self.pauses and last_copies(s)):
            return self._stay(s, "nobody has learnt what it holds in time")
        return Outcome()

    def _wait(self, s: Situation, out: Outcome, seconds: float) -> None:
        """For so long, but never beyond our time."""
        at = s.now + seconds
        out.set_timer("leave", at if self.until is None else min(at, self.until))

    def _go(self, s: Situation) -> Outcome:
        """Without handing over."""
        self.way = WayOut.GOES
        return self.say(s)

    def _stop(self, s: Situation) -> Outcome:
        """Nothing more is to be waited for. What nobody has taken over is saved first."""
        if self._loses_all(s):
            return self._stay(s, "nobody is there to take over what it holds")
        out, stages = Outcome(), left_behind(s)
        if stages:
            out.append(Save(stages))
        out.append(Stop(self.leaving))
        return out

    def _stay(self, s: Situation, reason: str) -> Outcome:
        """As if nobody had asked."""
        self.way, self.leaving, self.pauses = WayOut.STAYS, "", False
        self.until, self._had, self._taken = None, (), set()
        self.stayed += 1
        out = Outcome([ClearTimer("leave")])
        out.note("leave", f"stays, and may stand still: {reason}")
        return out

    def _loses_all(self, s: Situation) -> bool:
        """It pauses alone in a run with training in it, which would be gone."""
        return self.pauses and s.members == {s.me} and not s.own.finished and bool(trained(s.own.versions))
