"""What a role is given and what it gives back: one frozen `Situation` in, one `Outcome` of effects and decisions out.

A role (leader, holder, follower, …) owns its private state and never sees the participant or another role. It is
called with the situation of the moment and answers with an `Outcome`: effects for the driver, and decisions that
another role or the participant carries out. `carry_out` in `participant.py` says who hears which decision.

What a role may ask of another one stands here as a protocol of questions; no question changes anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import NamedTuple, Protocol

from ftnode.protocol.liveness.liveness import Liveness
from ftnode.protocol.liveness.moves import Moves
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.doubts import Doubts
from ftnode.protocol.step.patience import leader_seconds, leader_seconds_min
from ftnode.protocol.step.probation import Probation
from ftnode.protocol.wire.admission import REASON_MAX
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words.crowds import NOBODY_KNOWN, Crowds
from ftnode.protocol.words.messages import Begin, Commit, Convicted, Heartbeat, Message, Offer, Proof, Roll, Suspect
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import NO_ORDER, Copied, Peer, RollbackOrder, Snapshot, Version
from ftnode.protocol.words.view import Lineage, View

# -- questions that roles ask of each other


class Own(Protocol):
    """What we hold: questions that the other roles ask of the holder."""

    @property
    def compute_ready(self) -> bool: ...
    @property
    def capacity(self) -> int:
        """Stages that our compute has room for."""
        ...

    @property
    def may_head(self) -> bool: ...
    @property
    def refuses(self) -> set[int]:
        """Stages that did not fit into memory."""
        ...

    @property
    def begin(self) -> Begin | None:
        """The Begin that we work on."""
        ...

    @property
    def work(self) -> StepWork | None: ...
    @property
    def doubts(self) -> Doubts:
        """What looks unusual of others' parts."""
        ...

    @property
    def finished(self) -> bool:
        """All steps are committed."""
        ...

    @property
    def moves(self) -> Moves:
        """Who gets something done."""
        ...

    @property
    def versions(self) -> dict[int, Version]: ...
    @property
    def ours(self) -> dict[int, Version]:
        """Versions that have a common past with the lineage that we are in."""
        ...

    @property
    def given_up(self) -> View | None:
        """The view by which we went when our lineage lost, while the weights that we had then are still here."""
        ...

    @property
    def learning(self) -> tuple[int, ...]: ...
    def exact(self, lineage: str) -> tuple[tuple[int, Version], ...]:
        """The versions that we have, or can make at once of what an attempt reduced."""
        ...

    def copies_told(self) -> tuple[Copied, ...]: ...
    def pace_of(self, stage: int) -> float:
        """Seconds that a microbatch takes here; 0 while nothing is known."""
        ...

    def snapshots_told(self) -> tuple[Snapshot, ...]:
        """The newest on our disk."""
        ...

    def rolls_kept(self) -> tuple[Roll, ...]:
        """Those on our disk, in the order in which they were kept."""
        ...

    def disbelieves(
        self, lineage: Lineage, shown: Roll | None, present: Collection[str], tellers: Collection[str]
    ) -> bool:
        """Whether a lineage may not go on from the snapshots that it goes on from, with the roll that is shown for it,
        where these PeerIds are about, and these tell of such snapshots."""
        ...


class RunHistory(Protocol):
    """What is known of the run's past."""

    @property
    def newest_step(self) -> int:
        """The highest committed step that we were told of."""
        ...

    @property
    def validation(self) -> Mapping[int, float]:
        """Step → nats per token."""
        ...

    def newest_commits(self, count: int = 2) -> tuple[Commit, ...]: ...
    def rebuilt_at(self) -> list[int]:
        """The steps in which stages got weights that are not the lost ones, one for each stage."""
        ...

    @property
    def probation(self) -> Probation:
        """Who is new."""
        ...

    def known_up_to(self) -> int:
        """The step up to which we know all that is to be known; later ones may have gaps."""
        ...


class Led(Protocol):
    """The leader of our view, when that is us: questions that the other roles ask of it."""

    @property
    def order_trouble(self) -> str:
        """Why nothing has come of the author's order to roll back so far, in words."""
        ...

    def wanting(self, s: Situation) -> bool:
        """Is somebody looked for?"""
        ...

    def waiting(self, s: Situation) -> str:
        """What the run waits for, in words; empty while it trains."""
        ...

    def hopeful(self, s: Situation) -> bool:
        """Somebody who is no member learns something, or could."""
        ...

    def told_step(self, s: Situation) -> int:
        """What we say of our lineage in certificates."""
        ...

    def worth(self, s: Situation) -> int:
        """The step that would be lost if our lineage yielded."""
        ...


class Ballots(Protocol):
    """The vote on the next view."""

    @property
    def proposing(self) -> bool: ...
    @property
    def since(self) -> float: ...


# -- in


class Situation(NamedTuple):
    """What is the case at one moment, as this peer sees it. Tables are to be read only.

    A named tuple is made three times as fast as a frozen dataclass, and one is made for every event.
    """

    me: Peer
    settings: Settings
    now: float
    chance: Random
    view: View | None
    members: frozenset[Peer]
    mine: tuple[int, ...]
    """Stages that the view gives us."""
    hold: int
    """Stages that our owner lets us hold."""
    contacts: Mapping[Peer, tuple[str, ...]]
    presences: Mapping[Peer, Presence]
    """What the directory says of others."""
    reports: Mapping[Peer, Heartbeat]
    """The newest heartbeat of each member."""
    liveness: Liveness
    own: Own
    ballots: Ballots | None
    leaving: str
    """Why our owner wants us to go; empty otherwise."""
    pauses: bool
    """We come back."""
    quorate_at: float
    """When we last knew that a quorum stands behind our view."""
    history: RunHistory
    led: Led | None
    """Our leader, when we lead the view."""
    here: str = ""
    """The site where we are; empty: not known."""
    crowds: Crowds = NOBODY_KNOWN
    """Who belongs together."""
    order: RollbackOrder = NO_ORDER
    """The newest order to roll back, by the author or by members."""
    convicted: Mapping[str, Convicted] = MappingProxyType({})
    """PeerId → the signed words for that it lied (rule 51)."""
    leader_doubted: bool = False
    """Who keeps a copy of a stage that the leader holds alone says that it does something else there (rule 53)."""

    @property
    def to_roll_back(self) -> bool:
        """Our lineage has not followed that order."""
        return self.view is not None and self.view.lineage.order < self.order.number

    @property
    def member(self) -> bool:
        return self.me in self.members

    @property
    def alone(self) -> bool:
        """We are the only member, and nobody else learns something, or could."""
        return self.members == {self.me} and (self.led is None or not self.led.hopeful(self))

    @property
    def proposing(self) -> bool:
        """A ballot of ours is under way."""
        return self.ballots is not None and self.ballots.proposing

    @property
    def highest_step(self) -> int:
        """The highest committed step that we know of."""
        begin, held = self.own.begin, self.own.ours.values()
        begun = begin.base.step if begin is not None else 0
        return max(begun, self.history.newest_step, max((version.step for version in held), default=0))

    @property
    def over(self) -> bool:
        """All steps are committed, as far as we know."""
        start = self.view.lineage.start if self.view is not None else None
        return max(self.highest_step, start.step if start is not None else 0) >= self.settings.steps

    @property
    def quorate(self) -> bool:
        """A leader: hears a quorum. Others: the leader said so within the lease, and we were not blocked since."""
        if self.view is None:
            return False
        if self.view.leader == self.me:
            return self.liveness.quorate(self.view, self.me, self.now)
        recent = self.now - self.quorate_at <= self.settings.lease_seconds
        return recent and self.quorate_at >= self.liveness.grace

    @property
    def leader_silent(self) -> bool:
        """The leader is silent, refused, idle, has long been without a quorum itself, or has lied."""
        if self.view is None or self.view.leader == self.me:
            return False
        if self.leader_lied:
            return True
        useless = self.now - max(self.quorate_at, self.liveness.grace) > 2 * self.settings.lease_seconds
        return useless or self.liveness.silent(self.view.leader, self.now) or self.leader_idle

    @property
    def another_leads(self) -> bool:
        """We would have another leader."""
        return self.leader_silent or self.leader_doubted

    @property
    def leader_lied(self) -> bool:
        """It has signed two things of which an honest peer signs one."""
        case = self.convicted.get(self.view.leader.id) if self.view is not None else None
        return case is not None and bool(case.proof)

    @property
    def leader_idle(self) -> bool:
        """The leader is heard and hears a quorum, the view is whole, and nobody gets anything done for longer than a
        leader that does its duty lets pass (rule 38). Where nobody has weights, it may rightly look for disks."""
        view, begin = self.view, self.own.begin
        if view is None or not self.member or view.leader == self.me or not (self.quorate and self.hears(view.leader)):
            return False
        if self.still_seconds <= leader_seconds_min(self.settings):  # as nearly always, and the rest takes longer
            return False
        if self.own.finished or view.vacancies():
            return False
        if begin is not None and (begin.lineage, begin.view) != (view.lineage.id, view.number):
            begin = None
        if begin is None and self._nobody_has_weights(view):
            return False
        return self.still_seconds > leader_seconds(self.settings, view, begin)

    @property
    def still_seconds(self) -> float:
        """For how long nobody under our leader has got anything done, as far as we were awake."""
        assert self.view is not None
        return self.now - max(self.own.moves.last_under(self.view.leader), self.liveness.grace)

    def _nobody_has_weights(self, view: View) -> bool:
        """Of a committed step, in a run where steps may be stored."""
        if view.lineage.start is not None or not (self.settings.snapshot_every or self.highest_step):
            return False
        told = (stage.applied for report in self.reports.values() for stage in report.stages)
        held = (version.step for version in self.own.ours.values())
        return max((*told, *held), default=0) <= 0

    @property
    def room(self) -> int:
        """How many more stages we would hold."""
        if self.leaving or not self.own.compute_ready:
            return 0
        return max(0, min(self.hold, self.own.capacity) - len(self.mine))

    def site(self, peer: Peer) -> str:
        """Where the peer is, by its own word; empty: not known."""
        if peer == self.me:
            return self.here
        return self.presences[peer].site if peer in self.presences else ""

    def new(self, peers: Iterable[Peer]) -> frozenset[Peer]:
        """Those of them who are on probation, in a run with checks."""
        if not self.settings.checks:
            return frozenset()
        lasts = self.history.probation.lasts
        return frozenset(peer for peer in peers if peer != self.me and lasts(peer.id))

    def only_beside_others(self, peers: Iterable[Peer]) -> frozenset[Peer]:
        """Those of them who are new, in a run in which a stage may have several holders (rule 45)."""
        return self.new(peers) if self.settings.replicas > 1 else frozenset()

    def hears(self, peer: Peer) -> bool:
        """The peer has given a sign of life lately, or is us."""
        return peer == self.me or (peer in self.liveness.heard and not self.liveness.silent(peer, self.now))

    def of_view(self, lineage: str, number: int) -> bool:
        return self.view is not None and self.view.lineage.id == lineage and self.view.number == number

    def paces(self) -> dict[tuple[Peer, int], float]:
        """(peer, stage) → seconds that a microbatch takes there, by the holders' own word, and our own."""
        told = {(peer, r.stage): r.pace for peer, report in self.reports.items() for r in report.stages}
        told |= {(self.me, stage): self.own.pace_of(stage) for stage in self.mine}
        return {place: seconds for place, seconds in told.items() if seconds > 0}


# -- out


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Wake the role that owns this name at `at`; `keep`: not later than it is set already."""

    name: str
    at: float
    keep: bool = False


@dataclass(frozen=True, slots=True)
class ClearTimer:
    name: str


@dataclass(frozen=True, slots=True)
class ShowView:
    """Send the certificate of our view. `since`: the peer goes by the view of our lineage with this number; -1: by none
    of it."""

    to: Peer
    since: int = -1


@dataclass(frozen=True, slots=True)
class Remember:
    """Where a peer can be dialled."""

    peer: Peer
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GoOnFromDisks:
    """Found a lineage that goes on from snapshots of `start` (rule 36)."""

    number: int
    start: Version
    exact_stages: int
    reason: str
    order: int = 0
    """The author's newest order to roll back that the lineage follows (rule 47)."""


@dataclass(frozen=True, slots=True)
class MakeOffer:
    """Send this offer, with the addresses of those `near`, whom the peer will have to dial."""

    to: Peer
    offer: Offer
    near: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class TakeUp:
    """Go by this view from now on, and send its certificate to `tell`; with `both`, that of the view before first."""

    view: View
    proof: Proof | None
    """None: the directory shows it, and nobody has proved it."""
    tell: tuple[Peer, ...] = ()
    both: bool = False


@dataclass(frozen=True, slots=True)
class YieldTo:
    """Our lineage loses to that of the view: drop what it made, and go by the view."""

    view: View
    proof: Proof | None


@dataclass(frozen=True, slots=True)
class GoBack:
    """Nobody stands behind the lineage that ours lost to: go by the view that we gave up, with the weights."""

    view: View


@dataclass(frozen=True, slots=True)
class GiveViewUp:
    """Nobody stands behind our view: go by none."""


@dataclass(frozen=True, slots=True)
class ForgetWeights:
    """A new run begins: nothing of an earlier one may get into it."""


@dataclass(frozen=True, slots=True)
class Introduce:
    """Tell these what we can do for the run."""

    to: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Beat:
    """Send our heartbeat to these."""

    to: tuple[Peer, ...]
    wants_reply: bool


@dataclass(frozen=True, slots=True)
class AskAround:
    """Is anybody of these there?"""

    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class BeatNow:
    """Send what is due at every heartbeat."""


@dataclass(frozen=True, slots=True)
class OrderChanged:
    """Members have given an order to roll back, or one of theirs is not believed any more."""


@dataclass(frozen=True, slots=True)
class LetUsGo:
    """We lead and leave, and nobody takes over what we hold; `everybody`: all others leave, too."""

    everybody: bool


Decision = (
    SetTimer | ClearTimer | ShowView | Remember | MakeOffer | Introduce | TakeUp | YieldTo | GoBack | GiveViewUp
    | ForgetWeights | Beat | AskAround | BeatNow | GoOnFromDisks | OrderChanged | LetUsGo
)  # fmt: skip


class Outcome(list["fx.Effect | Decision"]):
    """What a role answers, in order."""

    def send(self, to: Peer, message: Message) -> None:
        self.append(fx.Send(to, message, None))

    def note(self, kind: str, text: str, **fields: str) -> None:
        """A decision and its reason; the participant repeats it only when it changes."""
        self.append(fx.Note(kind, text, tuple(fields.items())))

    def beat(self, wants_reply: bool, *to: Peer) -> None:
        if to:
            self.append(Beat(to, wants_reply))

    def suspect(self, s: Situation, peer: Peer, kind: str, detail: str) -> None:
        """Tell the leader."""
        if s.view is not None and peer != s.view.leader:
            self.send(s.view.leader, Suspect(s.view.lineage.id, s.view.number, peer, kind, detail[:REASON_MAX]))

    def set_timer(self, name: str, at: float, keep: bool = False) -> None:
        self.append(SetTimer(name, at, keep))

    def extended(self, more: Iterable[fx.Effect | Decision]) -> Outcome:
        self.extend(more)
        return self
