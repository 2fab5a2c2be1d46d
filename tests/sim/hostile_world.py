"""A world in which some peers lie, and in which only this counts: nobody's core raises, grows or dawdles.

Members who lie can break what the world otherwise holds to be true of weights, commits and views. Those checks are off
here. What stays: no exception leaves `Participant.handle`, tables and tensors are bounded, an event takes a bounded
time, nobody sleeps for ever or wakes again and again.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from functools import cache
from itertools import islice
from math import inf
from types import FrameType
from typing import Any

from ftnode.protocol.participant import Participant
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words.events import Event, Received, Wake
from ftnode.protocol.words.messages import Begin, Boundary, Message
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Handle, Peer, Version
from ftnode.protocol.words.view import View
from tests.sim.checks import Ledger, Violation
from tests.sim.compute import Compute, Tensor
from tests.sim.forgiving_world import ForgivingWorld
from tests.sim.host import Host
from tests.sim.rebuild import Rebuilding
from tests.sim.world import CARRY_OUT, SPINS_MAX

SECONDS_MAX = 1.0
"""Of processor time, for one event; a usual one takes a ten-thousandth of it."""
EFFECTS_MAX = 2000
"""Of one event."""
TABLE_MAX = 700
"""Entries of any table of a participant, where nobody invents peers; a run of the fuzzed worlds has less steps."""
SHOWN_EVERY = 50
"""Events after which watchers look again."""
COUNTED_EVERY = 250
"""Events after which the tables are counted again; what grows does not shrink so soon."""
TENSOR = Tensor(False, 0, Attempt(0, 0), 0, 0, "", 1)
CORE = "/protocol/"


class Crash(Exception):
    """A finding: what an honest core did that would end its node, or fill its memory."""


class Untold(Ledger):
    """A ledger that holds nothing against anybody."""

    def view(self, view: View) -> bool:
        return False

    def begin(self, sender: Peer, begin: Begin) -> bool:
        return False

    def commit(self, lineage: str, version: Version) -> bool:
        news = version.step > self._top_commit
        self._top_commit = max(self._top_commit, version.step)
        return news

    def check_base(self, lineage: str, attempt: Attempt, step: int, version: Version) -> None:
        pass

    def applied(
        self, owner: str, stage: int, base: Version, version: Version, skipped: bool, before: int, after: int
    ) -> None:
        pass

    def check_copy(self, owner: str, stage: int, copy: Version, history: int, base: Version) -> None:
        pass


class Credulous(Compute):
    """It computes with whatever numbers come, as a real one does."""

    def _input(self, handle: Handle, tensors: dict[Handle, Tensor], task: Any, want: Tensor) -> Tensor:
        tensor = tensors.get(handle)
        if tensor is None:
            raise Crash(f"{self.owner} uses released handle {handle} for {task}")
        return tensor


class Doubtful(Rebuilding):
    """What a plan cannot mean is an install that failed."""

    def _fetch(self, host: Host, effect: fx.Install, serial: int, seconds: float, begun: float) -> None:
        try:
            super()._fetch(host, effect, serial, seconds, begun)
        except (Violation, LookupError) as error:
            if host.alive and host.installing.get(effect.plan.stage, serial) == serial:
                host.installing[effect.plan.stage] = serial
                self._install_failed(host, effect, None, f"the plan makes no sense: {error}")


class Reach:
    """Which functions of the core the messages of hostile peers have come to: (kind, function) → how often."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self._kind = ""

    def listen(self, kind: str) -> None:
        self._kind = kind
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            if CORE in code.co_filename:
                self.calls[self._kind, code.co_qualname] += 1


class HostileWorld(ForgivingWorld):
    """`hostile`: PeerIds whose messages are not what their cores say. `on_crash` is told of nothing: it raises."""

    def __init__(self, settings: Settings, seed: int, reach: Reach | None, **nature: float) -> None:
        super().__init__(settings, seed, **nature)
        self.ledger = Untold()
        self.rebuilding = Doubtful(self)
        self.hostile: set[str] = set()
        self.reach = reach
        self.received: Counter[str] = Counter()
        """Messages of hostile peers that came to a core, by kind."""
        self.admitted: Counter[str] = Counter()
        """Those among them that admission let in."""
        self.largest: Counter[str] = Counter()
        """The most entries that a table had, by its name."""
        self.slowest = 0.0
        self._within = 0
        """Effects that are being carried out: some bring the next event at once, before those that follow."""
        self._lie: str | None = None
        """The kind of a hostile message that is just arriving."""
        self.recent: deque[str] = deque(maxlen=12)
        self.tampers: Callable[[Host, fx.Send], bool] | None = None
        """Takes a message out of the hands of a hostile host: True if it is not to be sent as it is."""
        self._table = CARRY_OUT | {
            fx.Send: HostileWorld._send, fx.Note: HostileWorld._note, fx.PublishView: HostileWorld._publish,
        }  # fmt: skip

    def start(self, peer_id: str, hold: int, head: bool = True) -> Host:
        host = super().start(peer_id, hold, head)
        host.compute = Credulous(str(host.peer), self.settings, self.ledger, self.poisons)
        return host

    def forgive(self, violation: Violation) -> None:
        """What compute processes do of themselves may go wrong."""
        if violation.invariant in ("I6", "I8", "core"):
            raise Crash(str(violation)) from violation
        self.accidents[violation.invariant] += 1

    # -- lies

    def lie(self, sender: Host, target: Host, message: Message) -> None:
        """A message of a hostile peer arrives, as the wire made it."""
        if not target.alive:
            return
        target.known.add(sender.peer.id)
        if target.paused:
            target.inbox.append((self.lie, (sender, target, message)))
            return
        self._lie = kind = type(message).__name__
        self.received[kind] += 1
        if self.log is None:
            self.recent.append(f"{self.now:.3f} {sender.peer} ~> {target.peer} {str(message)[:600]}")
        else:
            self.log(f"{self.now:9.3f} {sender.peer} ~> {target.peer} {message}")
        if self.reach is not None:
            self.reach.listen(kind)
        try:
            if isinstance(message, Boundary):
                self._unpack(target, sender.peer, message, TENSOR)
            else:
                self.deliver(target, Received(sender.peer, message, None))
        finally:
            sys.setprofile(None)

    # -- the oracle

    def ask(self, host: Host, event: Event) -> list[fx.Effect]:
        """What the core answers. Raises Crash. Going through what else the tests keep in memory is not the core's."""
        collects = gc.isenabled()
        gc.disable()
        started = time.process_time()
        try:
            effects = host.participant.handle(event, self.now)
        except Exception as error:
            sys.setprofile(None)
            places = [f for f in traceback.extract_tb(error.__traceback__) if CORE in f.filename]
            where = " < ".join(f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno}" for f in reversed(places))
            raise Crash(f"{type(error).__name__} in {where}: {error} after {str(event)[:1500]}") from error
        finally:
            seconds = time.process_time() - started
            sys.setprofile(None)
            if collects:
                gc.enable()
        self.slowest = max(self.slowest, seconds)
        if seconds > SECONDS_MAX or len(effects) > EFFECTS_MAX:
            raise Crash(f"{host.peer} takes {seconds:.1f} s and answers {len(effects)} times: {str(event)[:600]}")
        if self._lie is not None and isinstance(event, Received):
            if not any(type(effect) is fx.Strike for effect in effects):
                self.admitted[self._lie] += 1
            self._lie = None
        return effects

    def deliver(self, host: Host, event: Event) -> None:
        if not self.hears(host, event):
            return
        participant = host.participant
        if self.log is not None:
            self.log(f"{self.now:9.3f} {host.peer} <- {str(event)[:1000]}")
        effects = self.ask(host, event)
        if participant.view is not host.view:
            self._see_view(host, participant.view)
        self._within += 1
        for effect in effects:
            try:
                self._table[type(effect)](self, host, effect)
            except Violation as accident:
                self.forgive(accident)
                self.at(self.now, self._compute_dies, (host, host.compute_life, str(accident)))
            if not host.alive:
                break
        self._within -= 1
        if host.alive:
            self._look_at(host, event, participant)

    def _compute_dies(self, host: Host, life: int, reason: str) -> None:
        if host.alive and host.compute_life == life and host.compute_up:
            self.lose_compute(host, reason)

    def _look_at(self, host: Host, event: Event, participant: Participant) -> None:
        if not self._within and len(host.tensors) != participant.holder.tensors:
            held = participant.holder.tensors
            raise Crash(f"{host.peer} has {len(host.tensors)} tensors and knows of {held} after {str(event)[:1000]}")
        deadline = participant.deadline
        if deadline < host.wake_at:
            self._schedule_wake(host, deadline)
        elif not -inf < deadline < inf:
            raise Crash(f"{host.peer} waits without a deadline after {str(event)[:1000]}")
        host.spins = host.spins + 1 if deadline <= self.now and type(event) is Wake else 0
        if host.spins > SPINS_MAX:
            raise Crash(f"{host.peer} wakes again and again at {self.now}: {participant.waiting()}")
        if self.events % SHOWN_EVERY == 0:
            self.show(host)
        if self.events % COUNTED_EVERY == 0:
            self.count_tables(host)

    def show(self, host: Host) -> None:
        """What watchers are shown, and what is announced, between two events. Raises Crash."""
        try:
            host.participant.picture  # noqa: B018  it is made when it is asked for
            host.participant.presence()
        except Exception as error:
            raise Crash(f"{type(error).__name__} in the picture: {error}") from error

    def count_tables(self, host: Host) -> None:
        """Raises Crash for a table that is too long."""
        for name, size in tables(host.participant):
            if size > self.largest[name]:
                self.largest[name] = size
            if size > TABLE_MAX:
                raise Crash(f"{host.peer} has {size} entries in {name}")

    def _see_view(self, host: Host, view: View | None) -> None:
        host.view = view
        if view is not None:
            host.compute.lineage = view.lineage.id
            if self.on_view is not None:
                self.on_view(host, view)

    # -- effects

    def _send(self, host: Host, effect: fx.Send) -> None:
        message = effect.message
        tensor = None if effect.handle is None else host.tensors.get(effect.handle)
        if effect.handle is not None and tensor is None:
            raise Crash(f"{host.peer} sends released handle {effect.handle}: {message}")
        if effect.to == host.peer:
            raise Crash(f"{host.peer} sends to itself: {message}")
        if self.on_send is not None:
            self.on_send(host, effect)
        if self.tampers is not None and host.peer.id in self.hostile and self.tampers(host, effect):
            return
        if self.log is not None:
            self.log(f"{self.now:9.3f} {host.peer} -> {effect.to} {str(message)[:1000]}")
        if isinstance(message, Boundary) and tensor is not None:
            message = self.seals.sealed_tensor(host.peer, message, tensor)
        self.network.send(host, effect.to, self.seals.sealed(host.peer, message), tensor)

    def _note(self, host: Host, effect: fx.Note) -> None:
        line = f"{self.now:9.3f} {host.peer} {effect.kind}: {effect.text}"
        self.notes.append(line)
        if self.log is not None:
            self.log(line)

    def _publish(self, host: Host, effect: fx.PublishView) -> None:
        self.directory.publish(host, effect.view)


TABLES = (dict, set, list, deque)


def tables(participant: Participant) -> list[tuple[str, int]]:
    """(name, entries) of every table of the core, wherever it is: what a participant and its roles own. Messages,
    which are frozen, are no tables."""
    found: list[tuple[str, int]] = []
    seen: set[int] = set()
    level: list[Any] = [participant]
    while level:
        owner = level.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for attribute, value in _attributes(owner):
            place = f"{type(owner).__name__}.{attribute}"
            if isinstance(value, TABLES):
                found.append((place, len(value)))
                items = value.values() if isinstance(value, dict) else value
                level += [item for item in islice(items, 8) if _is_ours(item)]
                inner = [len(item) for item in items if isinstance(item, TABLES)]
                found += [(f"{place}[]", max(inner))] if inner else []
            elif _is_ours(value):
                level.append(value)
    return found


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    found = [*getattr(owner, "__dict__", {}).items()]
    for name in _slots(type(owner)):
        value = getattr(owner, name, None)
        if value is not None:
            found.append((name, value))
    return found


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for each in kind.__mro__ for name in getattr(each, "__slots__", ()))


def _is_ours(value: Any) -> bool:
    return _can_change(type(value))


@cache
def _can_change(kind: type) -> bool:
    """Objects of this class are the core's, and can change."""
    frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    return kind.__module__.startswith("ftnode.protocol") and not frozen and not issubclass(kind, tuple | type)
