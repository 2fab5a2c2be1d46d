"""What one peer shows of an attempt's tensors to those who do a visit of others again (rules 42, 48 and 50).

It shows what it made, which it keeps to send it again, and what was made for it. And it says whether it was given what
others show of that, and, when it has accused somebody, whether it was shown what they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ftnode.protocol.step.admissions import Admissions
from ftnode.protocol.step.group import Groups
from ftnode.protocol.step.outbox import Outbox, key_of
from ftnode.protocol.step.routes import last_visit, maker_of, route_of
from ftnode.protocol.step.sealed_tensors import SealedTensors
from ftnode.protocol.step.tensor_holds import RESEND, SEEN, Holds, TensorKey
from ftnode.protocol.words.effects import Effect, Send
from ftnode.protocol.words.messages import Begin, Boundary, Show, WasGiven
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Handle, Peer
from ftnode.protocol.words.view import View

SHOWN_TIMES = 6
"""Each tensor to each peer: for a check of its own, for the leader, and again where it was lost with a link."""
ANSWERS_MAX = 8
"""To one peer, of what we were given."""
REBUILT_VIEWS = 8
"""For so many views a stage counts as one that may just have been made of others."""


class Showing:
    """Of one attempt. `outbox`, `holds`, `paths`, `admissions`: of the attempt, whose work goes on filling them."""

    def __init__(
        self, view: View, begin: Begin, groups: Groups, settings: Settings, outbox: Outbox, holds: Holds,
        paths: Mapping[int, tuple[Peer, ...]], admissions: Admissions,
    ) -> None:  # fmt: skip
        self.view, self.begin, self.groups, self.settings = view, begin, groups, settings
        self._outbox, self._holds, self._paths, self._admissions = outbox, holds, paths, admissions
        self._shown = Counter[tuple[Peer, TensorKey]]()
        """Who was shown what, or will be, and how often."""
        self._given = SealedTensors()
        """What others made for us."""
        self.shown = SealedTensors()
        """What others showed us, by which we told somebody to lie."""
        self._answered = Counter[Peer]()
        """Whom we told what we were given, and how often."""
        self._curious: dict[TensorKey, list[Peer]] = {}
        """Who wants to see what was made for us, and is not here yet."""

    def continue_in(self, view: View, begin: Begin, groups: Groups) -> None:
        """The same attempt goes on in a new view."""
        self.view, self.begin, self.groups = view, begin, groups

    def came(self, boundary: Boundary, handle: Handle) -> list[Effect]:
        """A tensor of the step's own that was made for us, and signed. It stays until the attempt ends."""
        key = key_of(boundary)
        self._holds.hold(SEEN, key, handle)
        self._given.add(boundary)
        return self._show_given(key)

    def on_show(self, sender: Peer, show: Show) -> list[Effect]:
        """Another of a group does a visit again, by its own lot or for the leader."""
        begin, effects = self.begin, list[Effect]()
        if (show.view, show.step, show.attempt) != (self.view.number, begin.step, begin.attempt):
            return []
        begun_here = begin.attempt.view == show.view  # else who made it may be gone
        for key in show.taken if begun_here else ():
            if self._may_see(sender, key) and self._shows_again(sender, key):
                self._curious.setdefault(key, []).append(sender)
                effects += self._show_given(key)
        if show.given and begun_here:
            effects += self._tell_given(sender, show)
        for key in show.tensors:
            kept = self._outbox.kept(key)
            if kept is None or key[0] >= self.settings.microbatches:  # of a validation
                continue
            if self._may_see(sender, key) and self._shows_again(sender, key):
                effects.append(Send(sender, kept.boundary, self._holds.handle(RESEND, key)))
        return effects

    def _tell_given(self, sender: Peer, show: Show) -> list[Effect]:
        """Whether we were given what others showed the sender, who does our visits again; or, where it does the visits
        of whom we accused, were shown that."""
        self._answered[sender] += 1
        if self._answered[sender] > ANSWERS_MAX:
            return []

        def may_see(key: TensorKey) -> bool:
            return self._does_again(sender, key[0], key[1])

        other = self._given.other(show.given, may_see) or self.shown.other(show.given, may_see)
        return [Send(sender, WasGiven(show.lineage, show.view, show.step, show.attempt, other), None)]

    def _shows_again(self, peer: Peer, key: TensorKey) -> bool:
        """Nobody is sent the same tensor without end."""
        self._shown[peer, key] += 1
        return self._shown[peer, key] <= SHOWN_TIMES

    def _show_given(self, key: TensorKey) -> list[Effect]:
        """A tensor that was made for us, to those who want to see it, once it is here."""
        given = self._given_to_us(key) if key in self._curious else None
        return [Send(peer, *given) for peer in self._curious.pop(key)] if given is not None else []

    def own(self, key: TensorKey) -> tuple[Boundary, Handle] | None:
        """What others would be shown, if it is here: what we made, or what was made for us."""
        kept, handle = self._outbox.kept(key), self._holds.handle(RESEND, key)
        return (kept.boundary, handle) if kept is not None and handle is not None else self._given_to_us(key)

    def _given_to_us(self, key: TensorKey) -> tuple[Boundary, Handle] | None:
        begin, (microbatch, visit, direction) = self.begin, key
        handle, sealed = self._holds.handle(SEEN, key), self._given.of(key)
        if handle is None or sealed is None:
            return None
        place = begin.lineage, self.view.number, begin.step, begin.attempt, microbatch, visit, direction
        word = self._admissions.word_of(microbatch)
        return Boundary(*place, self._paths[microbatch], sealed.seal, word), handle

    def _may_see(self, peer: Peer, key: TensorKey) -> bool:
        """Who may do the visits again between which it passes, or is asked whether it is shown: at either end. Nobody
        where it is none of the step's own."""
        microbatch, visit, direction = key
        before, last = maker_of(visit, direction), last_visit(self.settings.stages, self.view)
        if not (0 <= microbatch < self.settings.microbatches and 0 <= visit <= last and 0 <= before <= last):
            return False
        return any(self._does_again(peer, microbatch, at) for at in (visit, before))

    def _does_again(self, peer: Peer, microbatch: int, visit: int) -> bool:
        return peer in self._those_who_may_see(self._stage_of(microbatch, visit))

    def _stage_of(self, microbatch: int, visit: int) -> int:
        return route_of(self.settings, microbatch, self.view)[visit]

    def _those_who_may_see(self, stage: int) -> tuple[Peer, ...]:
        """Who may do visits of the stage again: those who hold or learn it, who keeps a copy of it (rule 53), and those
        who have lately come to hold another one alone, which may be made of it (rule 48)."""
        view = self.view
        if not self.settings.checks:
            return self.groups.of(stage)
        late = view.number - REBUILT_VIEWS
        alone = (group[0] for at, group in enumerate(view.holders) if len(group) == 1 and view.epochs[at] > late)
        return (*self.groups.of(stage), *keepers_in(self.begin, stage), *alone)


def keepers_in(begin: Begin, stage: int) -> tuple[Peer, ...]:
    """Who keeps copies of the stage, as the Begin names them."""
    return tuple(peer for at, peer in begin.keepers if at == stage)
