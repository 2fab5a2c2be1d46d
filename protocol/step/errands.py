"""Tensors of a visit, seen for one that is not shown them (rule 52).

Who does another's visits again is not shown a tensor that went into them, or came out, by the peer that did the visit
beside. The leader knows by that peer's signed word which one that is, and asks others to look. Each asks the peer for
all tensors between the two visits, and passes on what it gets: they are signed by their makers. So the peer shows them,
by whomever it likes to, or it shows them to nobody.

    Judge, with the word of the accused → Show, again and again → tensors, passed on → Verdict

Who has said that it did a visit has all these tensors until the next Begin, and nothing keeps an honest one from
showing them for longer than a lease, but a line that is broken.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ftnode.protocol.step.admissions import Admissions
from ftnode.protocol.step.group import Groups
from ftnode.protocol.step.outbox import fits, key_of
from ftnode.protocol.step.routes import last_visit, maker_of, route_of
from ftnode.protocol.step.tensor_holds import ERRAND, Holds, TensorKey
from ftnode.protocol.words.effects import Effect, Release, Send
from ftnode.protocol.words.messages import Begin, Boundary, Judge, Show, Verdict
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Direction, Handle, Peer
from ftnode.protocol.words.view import View

ERRANDS_MAX = 8
"""At a time, the newest."""
KEPT_MAX = 8
"""Tensors that are passed on, the newest."""
ASKED_LEASES = 0.4
"""Between two times at which it is asked for the same."""
WAITED_LEASES = 2.0
"""Longer than what counts: then it is not known what is in the way."""


@dataclass(slots=True)
class Errand:
    """`missing`: what the accused made, and what it was given, of what is not here yet. `due`: when it is asked again.
    `waited`: how long it has been asked while there was a link to it."""

    about: Judge
    since: float
    missing: set[TensorKey]
    looked: float
    due: float
    waited: float = 0.0


class Errands:
    """Of one attempt. `holds`, `admissions`: of the attempt."""

    def __init__(
        self, me: Peer, view: View, begin: Begin, settings: Settings, groups: Groups, holds: Holds,
        admissions: Admissions,
    ) -> None:  # fmt: skip
        self.me, self.settings = me, settings
        self._holds, self._admissions = holds, admissions
        self._open: list[Errand] = []
        self._here: dict[TensorKey, Boundary] = {}
        self.view, self.begin, self.groups = view, begin, groups

    def continue_in(self, view: View, begin: Begin, groups: Groups) -> list[Effect]:
        """The same attempt goes on in a new view. Nobody is asked about one of before."""
        keys, self.view, self.begin, self.groups = [*self._here], view, begin, groups
        self._open.clear()
        self._here.clear()
        return _release(self._holds.let_go(ERRAND, keys))

    def take(self, judge: Judge, now: float) -> list[Effect]:
        """Our leader wants to know whether the accused shows the tensors of a visit to us."""
        if any(errand.about == judge for errand in self._open):
            return []
        keys = self._wanted(judge)
        if not keys:
            return [self._verdict(judge, None, "it need not have them, as far as we know")]
        errand = Errand(judge, now, keys, now, now)
        self._open.append(errand)
        dropped = [self._verdict(each.about, None, "too many are asked about") for each in self._open[:-ERRANDS_MAX]]
        self._open = self._open[-ERRANDS_MAX:]
        known = [(key, self._here[key]) for key in keys if key in self._here]
        effects = [effect for key, boundary in known for effect in self._pass_on(errand, key, boundary)]
        return [*dropped, *effects, *self._end_shown(), *self._ask(now)]

    def wants(self, sender: Peer, boundary: Boundary) -> bool:
        """One that is asked for it shows it, as its maker signed it, on the path that who admitted it signed."""
        if boundary.seal is None or not any(self._is_of(errand, sender, boundary) for errand in self._open):
            return False
        path, maker = boundary.path, maker_of(boundary.visit, boundary.direction)
        whole = len(path) == last_visit(self.settings.stages, self.view) + 1 and 0 <= maker < len(path)
        here = whole and fits(path[boundary.visit], path[maker], boundary, self.view, self.begin, self.settings)
        return here and self._admissions.allows(boundary)

    def came(self, sender: Peer, boundary: Boundary, handle: Handle) -> list[Effect]:
        """One that we want is here, perhaps for the second time, from another one who is asked for it: each passes on
        what it was shown itself."""
        key, effects = key_of(boundary), list[Effect]()
        if self._here.pop(key, None) is not None:
            effects += _release(self._holds.let_go(ERRAND, [key]))
        self._here[key] = boundary
        self._holds.hold(ERRAND, key, handle)
        for errand in [each for each in self._open if self._is_of(each, sender, boundary)]:
            effects += self._pass_on(errand, key, boundary)
        while len(self._here) > KEPT_MAX:
            oldest = next(iter(self._here))
            del self._here[oldest]
            effects += _release(self._holds.let_go(ERRAND, [oldest]))
        return [*effects, *self._end_shown()]

    def beat(self, now: float, linked: Collection[Peer]) -> list[Effect]:
        """Every heartbeat. `linked`: to whom we have a link. Time without it does not count, nor when we sleep."""
        for errand in self._open:
            if errand.about.accused in linked:
                errand.waited += min(now - errand.looked, 2 * self.settings.heartbeat_seconds)
            errand.looked = now
        return [*self._end_late(now), *self._ask(now)]

    def _is_of(self, errand: Errand, sender: Peer, boundary: Boundary) -> bool:
        judge, path = errand.about, boundary.path
        shows = sender == judge.accused and key_of(boundary) in errand.missing
        return shows and path[judge.beside : judge.beside + 1] == (judge.accused,)

    def _wanted(self, judge: Judge) -> set[TensorKey]:
        """The tensors between the visit of the accused and those of the stage that is named. None where we do not know
        that it has to have them: it has not signed that it did the visit, or what passed may have been its own."""
        begin, claim, visit = self.begin, judge.claim, (judge.microbatch, judge.beside)
        place = begin.lineage, self.view.number, begin.step, begin.attempt
        if claim is None or (claim.lineage, claim.view, claim.step, claim.attempt) != place:
            return set()
        route = route_of(self.settings, judge.microbatch, self.view)
        fresh = begin.attempt.view == self.view.number and judge.beside < len(route)
        if not fresh or visit not in claim.visits or route[judge.beside] != claim.stage:
            return set()
        keys = set[TensorKey]()
        for at in (judge.beside - 1, judge.beside + 1):
            if 0 <= at < len(route) and route[at] == judge.stage and self._of_another(judge, at):
                onward, back = (Direction.FORWARD, Direction.BACKWARD)[:: 1 if at > judge.beside else -1]
                keys |= {(judge.microbatch, at, onward), (judge.microbatch, judge.beside, back)}
        return keys

    def _of_another(self, judge: Judge, at: int) -> bool:
        """Not the accused did that visit. What passes between two visits of one peer is nobody's to show."""
        if judge.accused not in self.view.holders[judge.stage]:
            return True
        told = self.groups.told(judge.stage)
        return any((judge.microbatch, at) in visits for peer, visits in told.items() if peer != judge.accused)

    def _ask(self, now: float) -> list[Effect]:
        effects, begin = list[Effect](), self.begin
        for errand in (each for each in self._open if each.missing and now >= each.due):
            errand.due, at = now + ASKED_LEASES * self.settings.lease_seconds, errand.about.beside
            made = tuple(sorted(key for key in errand.missing if key[1] != at))
            got = tuple(sorted(errand.missing - {*made}))
            show = Show(begin.lineage, self.view.number, begin.step, begin.attempt, made, got)
            effects.append(Send(errand.about.accused, show, None))
        return effects

    def _pass_on(self, errand: Errand, key: TensorKey, boundary: Boundary) -> list[Effect]:
        if key not in errand.missing:
            return []
        errand.missing.discard(key)
        return [Send(errand.about.accuser, boundary, self._holds.handle(ERRAND, key))]

    def _end_shown(self) -> list[Effect]:
        """Say that all is here."""
        over = [errand.about for errand in self._open if not errand.missing]
        self._open = [errand for errand in self._open if errand.missing]
        return [self._verdict(judge, False, "it shows them") for judge in over]

    def _end_late(self, now: float) -> list[Effect]:
        """Say so where not all has come for too long."""
        settings, effects, left = self.settings, list[Effect](), list[Errand]()
        most = settings.shown_seconds + WAITED_LEASES * settings.lease_seconds
        for errand in self._open:
            if errand.waited >= settings.shown_seconds:
                effects.append(self._verdict(errand.about, True, "it does not show them"))
            elif now - errand.since > most:
                effects.append(self._verdict(errand.about, None, "there is no link to it"))
            else:
                left.append(errand)
        self._open = left
        return effects

    def _verdict(self, judge: Judge, guilty: bool | None, reason: str) -> Effect:
        return Send(self.view.leader, Verdict(judge, guilty, reason), None)


def _release(handles: tuple[Handle, ...]) -> list[Effect]:
    return [Release(handles)] if handles else []
