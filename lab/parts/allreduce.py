"""hivemind's `AllReduceRunner` in the reduction benchmark: on groups that are named to it, and with a peer killed.

`AllReduceRunner` goes on when a peer dies: senders that fail are left out of what is still to be summed, and for
pieces whose reducer fails everybody keeps its own numbers. So a round that a peer died in is judged by what its
survivors hold in the end: whether that is the same for all of them, and the average of whom. Then the group without
the dead averages again from what was there before, as ours does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

import numpy as np

from ftnode.lab.parts.reduction_members import Member, TooLate, started
from ftnode.lab.parts.reduction_peers import gradient_of
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.protocol.words.errors import UserError

TOLERANCE = 1e-5
"""Between numbers that count as equal. A result is a peer's own number plus a difference, so that it is exact to a few
times 1e-7 at numbers of about 1, and peers differ in the last bits even when nobody dies."""
COMPARED_AT_ONCE = 1 << 20

ALL, SURVIVORS = "all", "survivors"
DAEMON = 2
"""Where a peer's answer to `join` has the process id of its p2pd."""


@dataclass(frozen=True)
class Outcome:
    """What a round left. `seconds`: of the slowest; None when a runner did not come to an end. `shares`: of all peers'
    numbers, how many are the average of whom. `apart`: the largest difference of two peers at one number.
    `noticed`: peers whose runner knows that something was lost."""

    seconds: float | None
    shares: Mapping[str, float]
    apart: float
    noticed: int = 0

    @property
    def right(self) -> bool:
        """Every peer has one and the same average of whole gradients."""
        return self.seconds is not None and 1.0 in self.shares.values()

    @property
    def equal(self) -> bool:
        return self.seconds is not None and self.apart <= TOLERANCE


@dataclass
class RunnerResults:
    """`killed`: rounds in which a peer was; `repeated`: what the rest made of the same numbers then; `between`: the
    whole group's rounds before and after, in which nobody was."""

    undisturbed: list[Outcome] = field(default_factory=list)
    between: list[Outcome] = field(default_factory=list)
    killed: list[Outcome] = field(default_factory=list)
    repeated: list[Outcome] = field(default_factory=list)


class Runners:
    """Peers with an `AllReduceRunner` each; who is of the group is said by this process."""

    def __init__(self, stack: ExitStack, peers: int, numbers: int) -> None:
        self._stack, self._numbers, self._round = stack, numbers, 0
        self._memories = [GradientMemory([numbers], 4) for _ in range(peers)]
        self._average_of_all = average(range(peers), numbers)
        self._members: list[Member] = []
        for index in range(peers):
            self._members.append(self._join(index, self._members))

    def round(self) -> Outcome:
        self._start(self._members)
        return self._finish(self._members, {ALL: self._average_of_all})

    def lose(self, victim: int, seconds: float) -> tuple[Outcome, Outcome]:
        """A round with `victim` killed `seconds` after it began, and the same again without it; then it is back, as a
        new peer."""
        lost = self._members[victim]
        rest = [member for member in self._members if member is not lost]
        average_of_rest = average([member.index for member in rest], self._numbers)
        self._start(self._members)
        lost.kill_after(seconds)
        with suppress(ProcessLookupError):
            os.kill(lost.where[DAEMON], signal.SIGKILL)  # may outlive it, while ours die with their nodes
        alone = self._finish(rest, {ALL: self._average_of_all, SURVIVORS: average_of_rest})
        self._start(rest)
        repeated = self._finish(rest, {SURVIVORS: average_of_rest})
        self._members[victim] = self._join(victim, rest)
        return alone, repeated

    def _join(self, index: int, others: Sequence[Member]) -> Member:
        descriptor = self._memories[index].descriptor
        peer = started("allreduce_peer", index, self._numbers, descriptor, index=index, descriptor=descriptor)
        member = self._stack.enter_context(peer)
        member.order(join=[address for other in others for address in other.where[1]])
        member.where = member.hear()
        return member

    def _start(self, group: Sequence[Member]) -> None:
        """All have a runner before one of them begins, as a round of hivemind's averager has its group before."""
        self._round += 1
        for member in group:
            member.order(prepare=self._round, group=[other.peer_id for other in group])
        try:
            for member in group:
                while member.hear() != self._round:  # the end of an earlier one that was too late
                    pass
        except TooLate:
            raise UserError("a peer with an AllReduceRunner no longer answers: run the benchmark again", 70) from None
        for member in group:
            member.order(go=True)

    def _finish(self, group: Sequence[Member], averages: Mapping[str, Any]) -> Outcome:
        try:
            ends = [member.hear() for member in group]
        except TooLate:
            return Outcome(None, {}, float("inf"))
        held = [np.frombuffer(self._memories[member.index].view(0), dtype=np.float32) for member in group]
        ended = all(not end["fault"] for end in ends)
        noticed = sum(bool(end["banned"] or end["missing"] or end["fault"]) for end in ends)
        shares = {name: share(held, of) for name, of in averages.items()}
        return Outcome(max(end["seconds"] for end in ends) if ended else None, shares, apart(held), noticed)


def average(indices: Sequence[int], numbers: int) -> Any:
    """Of the gradients of these peers: float32, `numbers` of them."""
    total = np.zeros(numbers, dtype=np.float32)
    for index in indices:
        total += gradient_of(index, numbers)
    return total / np.float32(len(indices))


def share(held: Sequence[Any], expected: Any) -> float:
    """Of the numbers that all peers hold, how many are the expected ones: 1.0 only when all are."""
    near = sum(
        int(np.count_nonzero(np.abs(one[part] - expected[part]) <= TOLERANCE)) for one in held for part in _parts(one)
    )
    return near / (len(held) * len(expected))


def apart(held: Sequence[Any]) -> float:
    """The largest difference between two peers' numbers at one place."""
    return max(float(np.ptp([one[part] for one in held], axis=0).max()) for part in _parts(held[0]))


def _parts(numbers: Any) -> list[slice]:
    return [slice(start, start + COMPARED_AT_ONCE) for start in range(0, len(numbers), COMPARED_AT_ONCE)]


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """`completed`: every runner ended by itself, whatever it has then. `least`: in the worst of these rounds, the share
    of all numbers that are of one and the same average. `noticed`: rounds that some runner knows to have lost some."""
    seconds = [one.seconds for one in outcomes if one.seconds is not None]
    return {
        "rounds": len(outcomes), "completed": len(seconds), "equal": sum(one.equal for one in outcomes),
        "right": sum(one.right for one in outcomes), "median_seconds": median(seconds) if seconds else None,
        "worst_seconds": max(seconds, default=None),
        "least": min((max(one.shares.values(), default=0.0) for one in outcomes), default=None),
        "noticed": sum(one.noticed > 0 for one in outcomes),
    }  # fmt: skip


def figures_killed(results: RunnerResults) -> dict[str, Any]:
    """As `figures`, of the rounds with a kill. `shares`: which averages the survivors hold, the mean over these
    rounds; what is missing to 1 are numbers of their own, or of fewer. `noticed_by_fewest`: how many survivors' runners
    know of the loss, at least. `repeat`: by the rest, with new runners; `between`: the whole group, the next rounds
    among them."""
    found = results.killed
    names = sorted({name for one in found for name in one.shares})
    return {
        **figures(found),
        "shares": {name: mean(one.shares.get(name, 0.0) for one in found) for name in names},
        "apart": max((one.apart for one in found), default=None),
        "noticed_by_fewest": min((one.noticed for one in found), default=None),
        "repeat": figures(results.repeated),
        "between": figures(results.between),
    }
