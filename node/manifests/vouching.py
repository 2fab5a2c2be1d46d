"""Who may take part by the signature of others: vouchers that lead to a listed volunteer, within the run's limits.

The peers of the list may vouch first. With `vouch_depth = 2` those whom they vouch for may vouch as well. Of what one
volunteer has signed only so much counts, the earliest first. So all nodes that know the same vouchers admit the same
peers, and a volunteer that signs hundreds brings in as many as one that keeps to the limits. A place is free again a
day after its voucher has ended: who writes false dates gains nothing.

Whose protege lies is believed no more for a day: what it vouches for from then on does not count here.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Final

from ftnode.node.links.newest import newest
from ftnode.node.manifests.voucher import BYTES_MAX, DAY, FALSE, Voucher, read_vouchers
from ftnode.protocol.manifest.sections import Membership
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

FOLDER: Final = "manifests"
VOUCHERS_MAX: Final = 1024
"""Of one run, that a node remembers and passes on: 300 kB, and a tenth of a second for their signatures."""
CHAIN_MAX: Final = 8
"""Vouchers that somebody may show who is no member, or who joins: a chain has two."""
BARRED_SECONDS: Final = float(DAY)
"""For so long nobody believes who vouched for a liar."""
BARRED_MAX: Final = 1024


def counted(signed: Iterable[Voucher], membership: Membership, now: float) -> list[Voucher]:
    """Of what one volunteer has signed, what counts: the earliest, within its limits. The last of a peer stands for
    all that it got."""
    latest: dict[str, Voucher] = {}
    for each in sorted(signed, key=lambda one: one.until):
        latest[each.peer] = each
    kept: list[Voucher] = []
    for each in sorted(latest.values(), key=lambda one: one.bound):
        today = sum(each.made - other.made < DAY for other in kept)
        if each.until + DAY > now and len(kept) < membership.vouched_at_once and today < membership.vouched_a_day:
            kept.append(each)
    return kept


class Vouching:
    """The vouchers of one run that this node knows. `clock`: seconds since 1970."""

    def __init__(
        self, run_id: str, membership: Membership, home: Path | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.run_id, self.membership = run_id, membership
        self._home, self._clock = home, clock or time.time
        self._signed: dict[str, dict[str, Voucher]] = {}
        """By who vouches, by whom it vouches for."""
        self._chains: dict[str, tuple[Voucher, ...]] = {}
        """Of each that may take part, its vouchers, that of a listed volunteer first."""
        self._changes_at = inf
        self._barred: dict[str, float] = {}
        """Who vouched for a liar, and until when that counts."""
        self.taken = 0
        """How often somebody was taken in by vouchers."""
        for voucher in load(home, run_id) if home is not None else ():
            self._signed.setdefault(voucher.by, {})[voucher.peer] = voucher
        self._count()

    @property
    def _on(self) -> bool:
        return self.membership.join == "vouched"

    def chain(self, peer_id: str) -> tuple[Voucher, ...]:
        """By which the peer may take part; () where it may not, or is listed itself."""
        self._look()
        return self._chains.get(peer_id, ())

    def answers_for(self) -> dict[str, str]:
        """PeerId of each that may take part by vouchers → that of the listed volunteer that they lead to."""
        self._look()
        return {peer: chain[0].by for peer, chain in self._chains.items()}

    def all(self) -> tuple[Voucher, ...]:
        """That count now, those of listed volunteers first."""
        self._look()
        return tuple(dict.fromkeys(each for depth in (0, 1) for c in self._chains.values() for each in c[depth:][:1]))

    def adopt(self, membership: Membership) -> None:
        """The list or the limits have changed."""
        self.membership = membership
        self._count()

    def signed_by(self, peer_id: str) -> tuple[Voucher, ...]:
        """Those of this peer that are known."""
        return tuple(self._signed.get(peer_id, {}).values())

    def may_vouch(self, peer_id: str) -> bool:
        """Listed, or vouched for where that may go on."""
        return peer_id in self.membership.peers or 0 < len(self.chain(peer_id)) < self.membership.vouch_depth

    def take(self, vouchers: Iterable[Voucher]) -> tuple[list[Voucher], str]:
        """What was new and counts from now on, and why something does not, or nothing."""
        taken: list[Voucher] = []
        shown, listed, refusal = [*vouchers], frozenset(self.membership.peers), ""
        for first in (True, False):  # the others may vouch by what these say
            for voucher in shown:
                if (voucher.by in listed) != first or self._knows(voucher):
                    continue
                why = self._objection(voucher) or self._take(voucher)
                taken += [] if why else [voucher]
                refusal = refusal or why
                if why.startswith(FALSE):  # to look at the others' signatures would take long, and they are no better
                    shown = []
                    break
            self._count()
        self.taken += bool(taken)
        for voucher in taken:
            log.info("%s vouches for %s", voucher.by, voucher.peer)
        if taken and self._home is not None:
            save(self._home, self.run_id, self.all())
        return taken, refusal

    def _knows(self, voucher: Voucher) -> bool:
        """It, or a later one for the same peer."""
        known = self._signed.get(voucher.by, {}).get(voucher.peer)
        return known is not None and known.until >= voucher.until

    def bar(self, liar: str) -> tuple[str, ...]:
        """The peer has lied or was banned: who vouched for it is not believed for a while. PeerIds of those."""
        barred = tuple(each.by for each in self.chain(liar))
        for by in barred:
            newest(self._barred, by, self._clock() + BARRED_SECONDS, BARRED_MAX)
        return barred

    def _objection(self, voucher: Voucher) -> str:
        now = self._clock()
        if not self._on:
            return "nobody vouches in this run"
        if voucher.run == self.run_id and not self.may_vouch(voucher.by):
            return f"{voucher.by} may not vouch in this run"
        if why := voucher.objection(self.run_id, now):
            return why
        if any(now < self._barred.get(by, 0.0) for by in (voucher.by, *(each.by for each in self.chain(voucher.by)))):
            return f"{voucher.by} vouched for somebody who lied; what it vouches for now does not count for a day"
        return ""

    def _take(self, voucher: Voucher) -> str:
        """Why not, or nothing."""
        known, now = self._signed.get(voucher.by, {}), self._clock()
        kept = counted([*known.values(), voucher], self.membership, now)
        if voucher not in kept:
            most = f"{self.membership.vouched_at_once} at a time and {self.membership.vouched_a_day} a day"
            return f"{voucher.by} vouches for too many: {most} count, and {voucher.peer} is none of the first"
        before = sum(map(len, self._signed.values())) - len(known)
        if before + len(kept) > VOUCHERS_MAX:
            return f"{VOUCHERS_MAX} vouchers are known already"
        self._signed[voucher.by] = {each.peer: each for each in kept}
        return ""

    def _look(self) -> None:
        if self._clock() >= self._changes_at:
            self._count()

    def _count(self) -> None:
        """Who may take part now, and when that changes by itself."""
        now, listed = self._clock(), frozenset(self.membership.peers)
        self._chains, self._changes_at = {}, inf
        for by in [by for by, signed in self._signed.items() if all(v.until + DAY <= now for v in signed.values())]:
            del self._signed[by]
        level: dict[str, tuple[Voucher, ...]] = dict.fromkeys(sorted(listed), ())
        for _ in range(self.membership.vouch_depth if self._on else 0):
            found: dict[str, tuple[Voucher, ...]] = {}
            for by, chain in level.items():
                for voucher in counted(self._signed.get(by, {}).values(), self.membership, now):
                    if voucher.until > now and voucher.peer not in listed and voucher.peer not in self._chains:
                        found.setdefault(voucher.peer, (*chain, voucher))
            self._chains |= found
            level = dict(sorted(found.items()))
        every = [each.until for signed in self._signed.values() for each in signed.values()]
        ends = (until + later for until in every for later in (0, DAY))
        self._changes_at = min((end for end in ends if end > now), default=inf)


def _path(home: Path, run_id: str, made_here: bool) -> Path:
    return home / FOLDER / f"{run_id}.{'made' if made_here else 'vouchers'}"


def load(home: Path, run_id: str, made_here: bool = False) -> tuple[Voucher, ...]:
    """What this home has kept, and with `made_here` what it has signed; () where there is nothing that can be read."""
    try:
        with _path(home, run_id, made_here).open("rb") as file:
            text = file.read(VOUCHERS_MAX * BYTES_MAX + 1).decode("ascii")
        return read_vouchers(text, VOUCHERS_MAX)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, PeerError) as error:
        log.warning("no vouchers of %s are kept here: %s", run_id[:8], error)
        return ()


def save(home: Path, run_id: str, vouchers: Iterable[Voucher], made_here: bool = False) -> None:
    """Keep them, whole or not at all. A disk that does not take them costs a convenience."""
    path = _path(home, run_id, made_here)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text("\n".join(map(str, vouchers)) + "\n", encoding="ascii")
        draft.replace(path)
    except OSError as error:
        log.warning("cannot keep vouchers in %s: %s", path, error.strerror)
