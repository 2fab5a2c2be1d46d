"""Copies of stages that others keep in memory, so that a lost stage is restored (docs/explanation/recovery.md).

The head's copy is exact, weights and optimiser, and lies with the holders of the first and the last block stage, its
neighbours (CheckFree+, section 4.3 of "All is Not Lost"). A shadow is a block stage's weights, compressed, with a peer
of a stage that is not adjacent, so that two neighbours lost together do not take each other's shadow along. Both are
refreshed while the next steps are computed, whenever the commit's number is divisible by a setting, and at once when a
keeper has none, one at a time. The old copy stays until the new one is whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.effects import DropCopy, Keep
from ftnode.protocol.words.events import KeepFailed, Kept
from ftnode.protocol.words.messages import Begin, Donor
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Copied, Peer, Version, steps_of
from ftnode.protocol.words.view import View


def keeping_stage(stage: int, stages: int) -> int:
    """The block stage whose first holder keeps the shadow of block stage `stage`: half the pipeline away."""
    return (stage - 1 + max(2, stages // 2)) % stages + 1


def keepers(view: View, stage: int, settings: Settings) -> tuple[Peer, ...]:
    """Who keeps copies of `stage` in this view. Nobody keeps a copy of what it holds itself: then whoever holds the
    next stage does."""
    stages = settings.stages
    if stage == HEAD:
        orders: list[Sequence[int]] = [range(1, stages + 1), range(stages, 0, -1)] if settings.head_every else []
    else:
        first = keeping_stage(stage, stages)
        orders = [[*range(first, stages + 1), *range(1, first)]] if settings.shadow_every else []
    found: list[Peer] = []
    for order in orders:
        firsts = (view.holders[other][0] for other in order if view.holders[other])
        able = (peer for peer in firsts if peer not in view.holders[stage] and peer not in found)
        found += [*able][:1]
    return tuple(sorted(found))


class OwnCopies:
    """The copies that this peer keeps. They live beside compute and outlive it."""

    def __init__(self) -> None:
        self.held: dict[int, Version] = {}
        self.fetched: dict[int, int] = {}
        """Stage → bytes that whole copies of it have taken over the wire, those that were dropped included."""
        self._made_in: dict[int, str] = {}
        """Stage → the lineage in which its copy was made."""
        self._pending: dict[int, tuple[Version, str]] = {}
        """Stage → the version on its way, and the lineage that made it."""

    def versions(self) -> tuple[tuple[int, Version], ...]:
        """(stage, version) of each, for Statuses and presences."""
        return tuple(sorted(self.held.items()))

    def told(self) -> tuple[Copied, ...]:
        """Each, for heartbeats."""
        return tuple(Copied(stage, step, self.fetched.get(stage, 0)) for stage, step in steps_of(self.versions()))

    def on_view(self, s: Situation, view: View) -> Outcome:
        """A member drops what it is no longer the keeper of; a peer that is out of the view may come back to it. Who is
        to hold the stage itself needs the copy first."""
        out = Outcome()
        if s.member:
            needed = {*_kept_by(s, view), *s.mine}
            for stage in sorted((self.held.keys() | self._pending.keys()) - needed):
                self._drop(out, stage)
        return out

    def on_begin(self, s: Situation, begin: Begin) -> Outcome:
        """The weights of `begin.base` are there to be copied until the next commit."""
        out, view, base, settings = Outcome(), s.view, begin.base, s.settings
        if view is None or base.step == 0 or not begin.training:
            return out
        for stage in [stage for stage in s.mine if stage in self.held]:
            if s.own.versions.get(stage) == base:
                self._drop(out, stage)
        for stage in _kept_by(s, view):
            every = settings.head_every if stage == HEAD else settings.shadow_every
            due = base.step % every == 0 or stage not in self.held
            group = view.holders[stage]
            if not due or not group or stage in self._pending or base == self.held.get(stage):
                continue
            self._pending[stage] = base, begin.lineage
            donor = Donor(stage, group[0], s.contacts.get(group[0], ()))
            encoding = "raw" if stage == HEAD else settings.shadow_encoding
            parts = "all" if stage == HEAD else "weights"
            out.append(Keep(donor, base, parts, encoding, s.history.known_up_to()))
        return out

    def on_kept(self, event: Kept) -> None:
        """What is kept now; nothing, if it was dropped in the meantime."""
        self.fetched[event.stage] = self.fetched.get(event.stage, 0) + event.bytes_fetched
        pending, lineage = self._pending.get(event.stage, (None, ""))
        if pending == event.version:
            self.held[event.stage], self._made_in[event.stage] = event.version, lineage
            del self._pending[event.stage]

    def on_failed(self, event: KeepFailed) -> Outcome:
        """The next commit brings another chance; until then the old copy is the copy."""
        out = Outcome()
        if self._pending.get(event.stage, (None, ""))[0] == event.version:
            del self._pending[event.stage]
            out.note("copy", f"no new copy of stage {event.stage}: {event.reason}", stages=str(event.stage))
        return out

    def forget(self, lineages: list[str] | None) -> Outcome:
        """Drop what these lineages made (None: everything): weights of two lineages never mix (rule 16)."""
        out, made = Outcome(), {stage: lineage for stage, (_, lineage) in self._pending.items()} | self._made_in
        for stage in sorted(made):
            if lineages is None or made[stage] in lineages or stage in self._pending:
                self._drop(out, stage)
        return out

    def _drop(self, out: Outcome, stage: int) -> None:
        self.held.pop(stage, None)
        self._made_in.pop(stage, None)
        self._pending.pop(stage, None)
        out.append(DropCopy(stage))


def _kept_by(s: Situation, view: View) -> list[int]:
    """The stages whose copies we keep in this view."""
    return [stage for stage in range(len(view.holders)) if s.me in keepers(view, stage, s.settings)]
