"""Copies of stages that others keep in memory, so that a lost stage is restored (docs/explanation/recovery.md).

The head's copy is exact, weights and optimiser, and lies with the holders of the first and the last block stage, its
neighbours (CheckFree+, section 4.3 of "All is Not Lost"). A shadow is a block stage's weights, compressed, with a peer
of a stage that is not adjacent where there is one, so that two neighbours lost together do not take each other's shadow
along. Both are refreshed while the next steps are computed, whenever the commit's number is divisible by a setting, and
at once when a keeper has none, one at a time. The old copy stays until the new one is whole and a Begin tells of it: a
copy of which nobody but its keeper has heard counts for nothing (rule 49). Where the next one is due before any Begin
could tell of it, the next one waits for one more Begin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ftnode.protocol.planning.keepers import closeness, keepers_of
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.effects import DropCopy, Keep, TakeCopy
from ftnode.protocol.words.events import KeepFailed, Kept
from ftnode.protocol.words.messages import Begin, Donor
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Copied, Peer, Version, spoken_stage, steps_of
from ftnode.protocol.words.view import View

NO_SITES: Final[Mapping[Peer, str]] = MappingProxyType({})


def keepers(
    view: View, settings: Settings, sites: Mapping[Peer, str] = NO_SITES, kept: Collection[Peer] = ()
) -> tuple[tuple[int, Peer], ...]:
    """(stage, peer): who keeps copies of what in this view. `sites`: where peers are, as far as it is known; `kept`:
    who has a copy of the head already.

    Nobody keeps a copy of what it holds itself. A site is lost as a whole, so somebody at another site than all that
    hold the stage comes first. Of the head, who has a copy comes next: for as long as another one fetches it, there
    would be none.
    """
    head, blocks = settings.head_every > 0, settings.shadow_every > 0
    return keepers_of(view.holders, sites, kept, head=head, blocks=blocks)


def in_words(view: View, kept: Sequence[tuple[int, Peer]], sites: Mapping[Peer, str]) -> str:
    """How many of these copies do not go with what they are of, and where the head's lie."""
    known = [(stage, peer) for stage, peer in kept if sites.get(peer)]
    away = sum(not closeness(peer, view.holders[stage], sites) for stage, peer in known)
    heads = [f"{peer} at {sites.get(peer) or 'an unknown site'}" for stage, peer in kept if stage == HEAD]
    text = f"{away} of {len(kept)} copies lie at other sites than their stages"
    return text + (f"; the head's with {' and '.join(heads)}" if heads else "")


class OwnCopies:
    """The copies that this peer keeps. They live beside compute and outlive it."""

    def __init__(self) -> None:
        self.held: dict[int, Version] = {}
        self.fetched: dict[int, int] = {}
        """Stage → bytes that whole copies of it have taken over the wire, those that were dropped included."""
        self._made_in: dict[int, str] = {}
        """Stage → the lineage in which its copy was made."""
        self.named: frozenset[tuple[int, str]] = frozenset()
        """(stage, PeerId) of all keepers, by the last Begin."""
        self._pending: dict[int, tuple[Version, str]] = {}
        """Stage → the version on its way, and the lineage that made it."""
        self._whole: dict[int, tuple[Version, str]] = {}
        """As `_pending`: what lies beside the copy of before, until a Begin tells of it."""
        self._put_off: set[int] = set()
        """Stages whose next copy was due, and waits for one more Begin to tell of what is in `_whole`."""
        self._lenders: dict[tuple[int, Version], Peer] = {}
        """(stage, version) of a copy → who lent it, unless the stage was made anew since then."""
        self._told: dict[int, Version] = {}
        """Stage → what a Begin said was lent to us, of what is on its way or whole."""

    def versions(self) -> tuple[tuple[int, Version], ...]:
        """(stage, version) of each, for Statuses and presences."""
        return tuple(sorted(self.held.items()))

    def told(self) -> tuple[Copied, ...]:
        """Each, for heartbeats."""
        return tuple(Copied(stage, step, self.fetched.get(stage, 0)) for stage, step in steps_of(self.versions()))

    def keeps(self, stage: int, version: Version) -> bool:
        """It is here, or on its way."""
        return version == self.held.get(stage) or version in self._coming(stage)

    def lent_by(self, stage: int, version: Version) -> Peer | None:
        """The lender of a copy that we keep. None: the stage was made anew since then, with the same version and other
        weights."""
        return self._lenders.get((stage, version))

    def has(self, stage: int, version: Version) -> bool:
        """It is whole, and here, whether a Begin has told of it or not."""
        return version in (self.held.get(stage), self._whole.get(stage, (None, ""))[0])

    def on_begin(self, s: Situation, begin: Begin) -> Outcome:
        """The weights of `begin.base` are there to be copied until the next commit. A member drops what others keep
        now, but not while the stage comes back from copies; a peer that is out of the view may come back to it."""
        out, view, base, settings = Outcome(), s.view, begin.base, s.settings
        anew = {plan.stage for plan in begin.installs}
        self._lenders = {of: peer for of, peer in self._lenders.items() if of[0] not in anew}
        self._hear(out, s, begin)
        if view is None or base.step == 0 or not begin.training:
            return out
        self.named = frozenset((stage, peer.id) for stage, peer in begin.keepers)
        named = [stage for stage, peer in begin.keepers if peer == s.me and every(stage, settings)]
        wanted = {*named, *s.mine, *(plan.stage for plan in begin.installs)}
        others = (self.held.keys() | self._pending.keys()) - wanted if s.member else ()
        for stage in sorted(others):
            self._drop(out, stage)
        for stage in [stage for stage in s.mine if stage in self.held]:
            if s.own.versions.get(stage) == base:
                self._drop(out, stage)
        for stage in named:
            due = base.step % every(stage, settings) == 0 or stage not in self.held or stage in self._put_off
            group = view.holders[stage]
            if not due or not group or s.me in group or stage in self._pending or self.keeps(stage, base):
                continue
            if stage in self._whole and stage not in self._put_off:
                self._put_off.add(stage)
                continue
            self._put_off.discard(stage)
            self._whole.pop(stage, None)
            out.append(self.fetch(s, begin, stage))
        return out

    def may_fetch(self, stage: int) -> bool:
        """One that is not due: where we keep one, and a Begin has told of it."""
        return stage in self.held and not self._coming(stage)

    def fetch(self, s: Situation, begin: Begin, stage: int) -> Keep:
        """A copy of the Begin's base, of a stage that has a holder."""
        assert s.view is not None
        self._pending[stage] = begin.base, begin.lineage
        lender = s.view.holders[stage][0]
        kept = {self.held.get(stage), *self._coming(stage)}
        self._lenders = {
            (of, version): peer for (of, version), peer in self._lenders.items() if of != stage or version in kept
        } | {(stage, begin.base): lender}  # fmt: skip
        donor = Donor(stage, lender, s.contacts.get(lender, ()))
        encoding, parts = ("raw", "all") if stage == HEAD else (s.settings.shadow_encoding, "weights")
        return Keep(donor, begin.base, parts, encoding, s.history.known_up_to())

    def on_kept(self, event: Kept) -> Outcome:
        """A copy is whole; nothing, if it was dropped in the meantime."""
        out, stage = Outcome(), event.stage
        self.fetched[stage] = self.fetched.get(stage, 0) + event.bytes_fetched
        if self._pending.get(stage, (None, ""))[0] == event.version:
            self._whole[stage] = self._pending.pop(stage)
            if stage not in self.held or self._told.get(stage) == event.version:
                self._take(out, stage)
        return out

    def _hear(self, out: Outcome, s: Situation, begin: Begin) -> None:
        """What all members know to be lent to us from now on is what we keep."""
        for copy in begin.lent:
            if copy.keeper == s.me.id and copy.version in self._coming(copy.stage):
                self._told[copy.stage] = copy.version
        for stage in [stage for stage, (version, _) in self._whole.items() if version == self._told.get(stage)]:
            self._take(out, stage)

    def _coming(self, stage: int) -> list[Version]:
        """What is on its way, and what is whole and not taken."""
        return [found[stage][0] for found in (self._pending, self._whole) if stage in found]

    def _take(self, out: Outcome, stage: int) -> None:
        self.held[stage], self._made_in[stage] = self._whole.pop(stage)
        out.append(TakeCopy(stage))

    def on_failed(self, event: KeepFailed) -> Outcome:
        """The next commit brings another chance; until then the old copy is the copy."""
        out = Outcome()
        if self._pending.get(event.stage, (None, ""))[0] == event.version:
            del self._pending[event.stage]
            out.note("copy", f"no new copy of {spoken_stage(event.stage)}: {event.reason}", stages=str(event.stage))
        return out

    def forget(self, lineages: list[str] | None) -> Outcome:
        """Drop what these lineages made (None: everything): weights of two lineages never mix (rule 16)."""
        out, made = Outcome(), {stage: lineage for stage, (_, lineage) in self._pending.items()} | self._made_in
        for stage in sorted(made):
            if lineages is None or made[stage] in lineages or self._coming(stage):
                self._drop(out, stage)
        return out

    def _drop(self, out: Outcome, stage: int) -> None:
        self.held.pop(stage, None)
        self._made_in.pop(stage, None)
        self._pending.pop(stage, None)
        self._whole.pop(stage, None)
        self._told.pop(stage, None)
        self._put_off.discard(stage)
        out.append(DropCopy(stage))


def every(stage: int, settings: Settings) -> int:
    """So many commits lie between two copies of the stage; 0: nobody keeps any."""
    return settings.head_every if stage == HEAD else settings.shadow_every
