"""The DHT as strangers see it: records live a while, arrive late, are missed at times, and outlive their owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ftnode.protocol.words.events import Directory, DirectoryLost
from ftnode.protocol.words.records import LIFETIME_SECONDS_MAX, Presence
from ftnode.protocol.words.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.host import Host
    from tests.sim.world import World

Record = TypeVar("Record")
LAG_SECONDS = 0.3
"""A search sees what was stored at least this long ago."""


class Shelf:
    """What one life of one peer keeps in the directory: the last two of each kind, as (stored at, record)."""

    __slots__ = ("host", "presences", "views")

    def __init__(self, host: Host) -> None:
        self.host = host
        self.presences: list[tuple[float, Presence]] = []
        self.views: list[tuple[float, View | None]] = []


class DirectoryService:
    """One eventually consistent map for all."""

    __slots__ = ("down", "lies", "miss", "shelves", "world")

    def __init__(self, world: World, miss: float) -> None:
        self.world = world
        self.miss = miss
        """Chance that a search does not find a record that is there."""
        self.down = False
        self.lies: Callable[[], Directory] | None = None
        """What strangers say in it, at every search."""
        self.shelves: dict[str, list[Shelf]] = {}
        """By PeerId; a new life's presence replaces the old one's, its certificates stay until they expire."""

    def _shelf(self, host: Host) -> Shelf:
        shelves = self.shelves.setdefault(host.peer.id, [])
        for shelf in shelves:
            if shelf.host is host:
                return shelf
        shelves.append(Shelf(host))
        return shelves[-1]

    def announce(self, host: Host, presence: Presence) -> None:
        records = self._shelf(host).presences
        records.append((self.world.now, presence))
        del records[:-2]

    def publish(self, host: Host, view: View | None) -> None:
        """None withdraws what was published. The real directory takes certificates from members only; here that is so
        in worlds with disks, since all others have long been as they are."""
        if self.world.settings.snapshot_every and view is not None and host.peer not in view.members():
            view = None
        records = self._shelf(host).views
        records.append((self.world.now, view))
        del records[:-2]

    def search(self, host: Host) -> None:
        """At most one search of a host is under way."""
        if host.searching:
            return
        host.searching = True
        self.world.at(self.world.now + self.world.chance.uniform(0.01, 0.2), self._answer, (host,))

    def _answer(self, host: Host) -> None:
        host.searching = False
        if not host.alive:
            return
        if self.down:
            self.world.deliver(host, DirectoryLost("no answer"))
        else:
            self.world.deliver(host, Directory(*self._visible(host)))

    def _visible(self, reader: Host) -> tuple[tuple[Presence, ...], tuple[View, ...]]:
        presences: list[Presence] = []
        views: dict[tuple[str, int], View] = {}
        now, chance = self.world.now, self.world.chance
        seen_before = now - LAG_SECONDS
        for peer_id, shelves in self.shelves.items():
            if peer_id == reader.peer.id:
                continue
            presence = None
            for shelf in list(shelves):
                if not _renewed(shelf.host, now):
                    if not shelf.host.alive:
                        shelves.remove(shelf)
                    continue
                if self.miss and chance.random() < self.miss:
                    continue
                presence = newest(shelf.presences, seen_before) or presence
                view = newest(shelf.views, seen_before)
                if view is not None:
                    views[view.lineage.id, view.number] = view
            if presence is not None:
                presences.append(presence)
        told = self.lies() if self.lies is not None else Directory((), ())
        return (*presences, *told.presences), (*(views[key] for key in sorted(views)), *told.certificates)


def newest(records: list[tuple[float, Record]], seen_before: float) -> Record | None:
    """The last record that had been stored by then."""
    if not records:
        return None
    if records[-1][0] <= seen_before:
        return records[-1][1]
    for stored, record in reversed(records):
        if stored <= seen_before:
            return record
    return None


def _renewed(host: Host, now: float) -> bool:
    """Records end a lifetime after their owner stopped renewing them, two thirds of it at the least."""
    if host.alive and not host.paused:
        return True
    return now < host.stopped + LIFETIME_SECONDS_MAX * host.record_luck
