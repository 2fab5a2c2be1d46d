"""What each peer gave to the run: counted once for each committed step, from what the groups agree on (rule 40).

Every member of a stage's group knows how many visits each of them accumulated, and says so in its Ready. Nobody is
believed about itself alone: of several words on a peer the lower median counts. Who gets tensors through a relay says
how many bytes, and a relay's word on itself counts for nothing. Nothing is decided by any of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ftnode.protocol.step.routes import expected_visits
from ftnode.protocol.wire.admission import CREDIT_SECONDS_MAX, NUMBER_MAX
from ftnode.protocol.words.messages import Commit, Ready
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import CREDITED_MAX, Credit, Given, Peer

HOLD_SECONDS_MAX = 3600.0
"""Of one step: a run that waited for a week for a volunteer has not been held for a week by who came then."""
OTHERS = ""
"""In place of a PeerId: all those together for whom there was no room."""


def given_by(readies: Iterable[tuple[Peer, Ready]], rebuilt: Sequence[Peer], settings: Settings) -> tuple[Given, ...]:
    """What a step that is committed now cost each member, and who relays: visits, stages that it brought back
    (`rebuilt`), bytes. By PeerId, members before mere relays, most visits first, at most CREDITED_MAX."""
    told = tuple(readies)
    words: dict[int, dict[Peer, dict[Peer, int]]] = {}
    """Stage → who was Ready with it → what that one says of each."""
    for sender, ready in told:
        for result in ready.results:
            alone = {sender: _whole(result.stage, settings)}
            words.setdefault(result.stage, {})[sender] = dict(result.shares) or alone
    visits, sums = Counter[str](), Counter[str]()
    for stage, said in words.items():
        agreed = _agreed(said, _whole(stage, settings))
        for peer, count in agreed.items():
            visits[peer.id] += count
        if len(said) > 1 and any(agreed.values()):
            sums.update({peer.id for peer in said})
    back = Counter(peer.id for peer in rebuilt)
    members = sorted(visits, key=lambda peer: (-visits[peer], peer))[:CREDITED_MAX]
    relayed = _relayed(told, {peer: settings.received_max(visits[peer], sums[peer]) for peer in members})
    others = sorted(relayed.keys() - set(members), key=lambda peer: (-relayed[peer], peer))
    rows = [Given(peer, visits[peer], back[peer], relayed[peer]) for peer in members]
    rows += [Given(peer, 0, 0, relayed[peer], held=False) for peer in others]
    return tuple(rows[:CREDITED_MAX])


def _relayed(told: Iterable[tuple[Peer, Ready]], most: Mapping[str, int]) -> Counter[str]:
    """Bytes that each relay carried, by the words of those who got them. `most`: how many each of these can have got;
    what a word says beyond that counts for nobody."""
    room, found = dict(most), Counter[str]()
    for sender, ready in told:
        for relay, count in _of_others(sender, ready):
            counted = min(count, room.get(sender.id, 0))
            found[relay] += counted
            room[sender.id] = room.get(sender.id, 0) - counted
    return +found


def _of_others(sender: Peer, ready: Ready) -> list[tuple[str, int]]:
    """Nobody is a relay on its own word."""
    return [(relay, count) for relay, count in ready.relayed if relay != sender.id]


def _whole(stage: int, settings: Settings) -> int:
    """Visits of a step that are a stage's."""
    return len(expected_visits(settings.stages, settings.microbatches, stage, settings.swap))


def _agreed(said: Mapping[Peer, Mapping[Peer, int]], whole: int) -> dict[Peer, int]:
    """How many of a stage's `whole` visits each had. Where more is agreed on than there was, nobody had any: a group
    that lies together gains nothing either."""
    middle = (len(said) - 1) // 2
    named = {*said, *(peer for word in said.values() for peer in word)}  # whoever died since then gave its part as well
    counts = {peer: sorted(word.get(peer, 0) for word in said.values())[middle] for peer in named}
    held = {peer: count for peer, count in counts.items() if count or peer in said}
    return held if sum(held.values()) <= whole else dict.fromkeys(said, 0)


class CreditLedger:
    """Totals of the run, by PeerId, so that they survive the lives of a node. At most CREDITED_MAX peers; who gave
    least makes room, and is counted among OTHERS from then on.

    Each step is counted once and in order. Who has missed one takes the leader's totals when it tells them next, and
    nobody else does."""

    def __init__(self) -> None:
        self.step = 0
        """All steps up to this one are counted."""
        self._totals: dict[str, Credit] = {}
        self._restored = False
        """Nobody has told yet where the run stands now."""

    def rows(self) -> tuple[Credit, ...]:
        """Most visits first."""
        by_peer = sorted(self._totals.values(), key=lambda row: row.peer)
        return tuple(sorted(by_peer, key=_much, reverse=True))

    def count(self, commit: Commit) -> None:
        """A step is committed; one that does not follow what is counted, or of which nobody told who did it, waits for
        `catch_up`."""
        if commit.step != self.step + 1 or not (commit.given or commit.skipped):
            return
        self.step = commit.step
        seconds = min(max(commit.seconds, 0.0), HOLD_SECONDS_MAX)
        for given in commit.given:
            held = seconds if given.held else 0.0
            self._add(Credit(given.peer, given.visits, held, given.rebuilt, given.relayed))
        self._make_room({given.peer for given in commit.given})

    def catch_up(self, base: int, told: tuple[Credit, ...]) -> None:
        """The leader's totals as of step `base`, or () where it tells none. Our own are as good when they go so far.
        Those of an earlier start may go further than the disks from which the swarm went on: these steps are made
        again."""
        if self._restored and base < self.step:
            self.step = base
        self._restored = False
        if told and self.step < base:
            self.step = base
            self._totals = {row.peer: row for row in told[: CREDITED_MAX + 1]}

    def restore(self, step: int, rows: tuple[Credit, ...]) -> None:
        """What this node knew when it last ran; nothing has been counted yet."""
        if not self._totals and self.step == 0:
            self.step, self._totals, self._restored = step, {row.peer: row for row in rows}, True

    def forget(self, after: int) -> None:
        """Another lineage goes on: from a step of ours, or (0) from what we know nothing of. What this node knew when
        it last ran stays, as others may go on from the disks of then."""
        if not self._restored:
            self.step = min(self.step, after)
            if after == 0:
                self._totals.clear()

    def _add(self, more: Credit) -> None:
        was = self._totals.get(more.peer) or Credit(more.peer, 0, 0.0, 0)
        self._totals[more.peer] = Credit(
            more.peer,
            min(NUMBER_MAX - 1, was.visits + more.visits),
            min(CREDIT_SECONDS_MAX, was.seconds + more.seconds),
            min(NUMBER_MAX - 1, was.rebuilt + more.rebuilt),
            min(NUMBER_MAX - 1, was.relayed + more.relayed),
        )

    def _make_room(self, kept: set[str]) -> None:
        """`kept`: who is in the newest step goes last."""
        while len(self._totals) - (OTHERS in self._totals) > CREDITED_MAX:
            named = [row for row in self._totals.values() if row.peer != OTHERS]
            least = min(named, key=lambda row: (row.peer in kept, *_much(row), row.peer))
            del self._totals[least.peer]
            self._add(replace(least, peer=OTHERS))


def _much(row: Credit) -> tuple[int, float, int]:
    """Who gave more: visits first, then hours, then what it relayed."""
    return row.visits, row.seconds, row.relayed
