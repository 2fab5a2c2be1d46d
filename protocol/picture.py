"""What the core shows of itself: one frozen `Picture` for those who look between two events.

Whoever carries out the core's effects, or tells watchers and the owner of the run, reads a picture and nothing else. A
picture is as of the end of one event. It is made when somebody asks for it, and costs an event nothing otherwise.
What has happened to the run is too long to be copied each time: `history` goes on after the picture was taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from ftnode.protocol.chronicle import Rebuild
from ftnode.protocol.holder.heartbeats import beats_to
from ftnode.protocol.holder.own_departure import HandedOver
from ftnode.protocol.liveness.liveness import SignsShown
from ftnode.protocol.recovery.last_copy import held_alone, trained
from ftnode.protocol.situation import RunHistory, Situation
from ftnode.protocol.step.credit import CreditLedger
from ftnode.protocol.step.doubts import Doubt
from ftnode.protocol.words.messages import Commit, Convicted, Heartbeat
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import NO_ORDER, Peer, RollbackOrder, Version
from ftnode.protocol.words.view import View

Key = TypeVar("Key")
Value = TypeVar("Value")


class WholeHistory(RunHistory, Protocol):
    """All that is known of the run's past. It goes on, and is only read."""

    @property
    def commits(self) -> Mapping[int, Commit]:
        """By step."""
        ...

    @property
    def rebuilds(self) -> Mapping[tuple[int, int], Rebuild]:
        """(step, stage) → how the stage came back."""
        ...

    @property
    def credit(self) -> CreditLedger:
        """What each peer gave."""
        ...

    @property
    def evaluations(self) -> int:
        """How often `validation` has changed."""
        ...

    def left_out_since(self, stage: int) -> int | None:
        """The first step without the stage, where it has not come back since."""
        ...

    def after(self, since: int) -> tuple[Commit, ...]:
        """All commits after step `since`, oldest first."""
        ...

    def around(self, rebuild: Rebuild) -> tuple[float | None, float | None]:
        """The last validation loss before a rebuild, and the one of the step that it interrupted."""
        ...


class Picture(NamedTuple):
    """One peer after one event. Times are those of the core's clock."""

    me: Peer
    settings: Settings
    view: View | None
    """The one that we go by."""
    members: frozenset[Peer]
    mine: tuple[int, ...]
    """Stages that the view gives us."""
    leads: bool
    contacts: Mapping[Peer, tuple[str, ...]]
    """Where peers can be dialled, ourselves included."""
    presences: Mapping[Peer, Presence]
    """Records in the directory, our own among them."""
    reports: Mapping[Peer, Heartbeat]
    """The newest heartbeat of each member, and what we would say now."""
    signs: SignsShown
    versions: Mapping[int, Version]
    """The weights that we hold, by stage."""
    finished: bool
    """All steps are committed, and we were told so as a holder."""
    over: bool
    """All steps are committed, as far as we know."""
    learners: tuple[tuple[int, Peer], ...]
    """(stage, peer): who learns a stage in the step that we work on."""
    other_leavers: frozenset[Peer]
    """Other members that leave as soon as somebody has what they hold; only who leads knows of them."""
    leaving: bool
    """Our owner wants us to go."""
    alone: bool
    """We are the only member, and nobody else learns something, or could."""
    stayed: int
    """How often we stayed although our owner wanted us to go."""
    fate: HandedOver
    """What becomes of our stages if we go now."""
    highest_step: int
    """The highest committed step that we know of."""
    history: WholeHistory
    here: str = ""
    """The site where we are; empty: not known."""
    plan: str = ""
    """As a leader: what it last chose of who should hold what, over what, and with which numbers."""
    doubts: tuple[Doubt, ...] = ()
    """Whose parts of sums looked unlike the others', oldest first. Nobody is accused by that."""
    convicted: tuple[Convicted, ...] = ()
    """Who was found to lie, by words that others have signed, oldest first."""
    cut_off: int = 0
    """Parts of sums that we made which did not count in full."""
    order: RollbackOrder = NO_ORDER
    """The newest order to roll back, by the author or by members."""
    order_trouble: str = ""
    """As a leader: why nothing has come of it so far, in words."""
    undo_votes: Mapping[int, frozenset[Peer]] = MappingProxyType({})
    """Step → the voters who want to roll back to it now."""
    wants_undo: int | None = None
    """The step that our owner wants to roll back to."""

    @property
    def member(self) -> bool:
        return self.me in self.members

    @property
    def only_member(self) -> bool:
        return self.members == {self.me}

    @property
    def waiting(self) -> str:
        """What we wait for, in words; empty while we work."""
        return self.reports[self.me].waiting

    @property
    def run_waiting(self) -> str:
        """What the run waits for, by the word of whoever leads it; what we wait for, while we have heard none."""
        leader = self.view.leader if self.view is not None else self.me
        return self.reports.get(leader, self.reports[self.me]).waiting

    @property
    def watched(self) -> frozenset[Peer]:
        """Members that send us their heartbeats."""
        view, swap = self.view, self.settings.swap
        if view is None or not self.member:
            return frozenset()
        return frozenset(peer for peer in self.members if self.me in beats_to(view, peer, swap))

    def sites(self) -> dict[Peer, str]:
        """Where each peer is, by its own word; empty: not known."""
        return {peer: presence.site for peer, presence in self.presences.items()} | {self.me: self.here}

    def pace(self, peer: Peer, stage: int) -> float:
        """Seconds that compute takes for a microbatch there, by the holder's own word; 0 while nothing is known."""
        stages = self.reports[peer].stages if peer in self.reports else ()
        return next((told.seconds for told in stages if told.stage == stage), 0.0)

    def trained(self) -> tuple[int, ...]:
        """Stages whose weights here have training in them."""
        return trained(self.versions)

    def last_copies(self, now: float) -> tuple[int, ...]:
        """Our stages whose last weights no other holder that we hear has; empty before the end of the run."""
        return held_alone(self.view, self.me, self.signs, now) if self.finished else ()

    def goes_with_us(self, now: float) -> tuple[int, ...]:
        """Stages that are lost if we go now: nobody else has them, nor is there to take them over."""
        if self.finished:
            return self.last_copies(now)
        return self.trained() if self.alone else ()


def picture_of(
    s: Situation, ours: Heartbeat, leavers: Collection[Peer], stayed: int, fate: HandedOver, history: WholeHistory,
    plan: str = "", convicted: Iterable[Convicted] = (),
    undo_votes: Mapping[int, frozenset[Peer]] = MappingProxyType({}), wants_undo: int | None = None,
) -> Picture:  # fmt: skip
    """`ours`: what we would say of ourselves now. `leavers`, `plan`, `convicted`: as a leader remembers them. Tables
    that the next event changes are copied."""
    begin, leads = s.own.begin, s.led is not None
    return Picture(
        me=s.me,
        settings=s.settings,
        view=s.view,
        members=s.members,
        mine=s.mine,
        leads=leads,
        contacts=as_it_is(s.contacts),
        presences=as_it_is(s.presences),
        reports=as_it_is({**s.reports, s.me: ours}),
        signs=s.liveness.shown(),
        versions=as_it_is(s.own.versions),
        finished=s.own.finished,
        over=s.over,
        learners=begin.learners if begin is not None else (),
        other_leavers=s.members.intersection(leavers) - {s.me} if leads else frozenset(),
        leaving=bool(s.leaving),
        alone=s.alone,
        stayed=stayed,
        fate=fate,
        highest_step=s.highest_step,
        history=history,
        here=s.here,
        plan=plan if leads else "",
        doubts=tuple(s.own.doubts.told),
        convicted=tuple(convicted),
        cut_off=s.own.doubts.cut_off,
        order=s.order,
        order_trouble=s.led.order_trouble if s.led is not None else "",
        undo_votes=undo_votes,
        wants_undo=wants_undo,
    )


def as_it_is(table: Mapping[Key, Value]) -> Mapping[Key, Value]:
    """A copy that nobody writes to."""
    return MappingProxyType(dict(table))
