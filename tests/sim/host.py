"""One life of one node in the virtual world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from ftnode.protocol.participant import Participant
from ftnode.protocol.words.effects import Apply, Backward, Forward, Reduce, Task
from ftnode.protocol.words.types import Attempt, Handle, Peer, Version
from ftnode.protocol.words.view import View
from tests.sim.compute import Compute, Gradients, Reduction, Tensor, Weights
from tests.sim.network import Link

COST: Final = {
    "Forward": 1.0, "Backward": 2.0, "Reduce": 0.5, "Recount": 3.0, "Weigh": 0.1, "Retrace": 0.1, "Course": 0.1,
}  # fmt: skip
"""Of a task, in forward passes. Embed, where it is said: of the head's tasks at the first visit."""


def as_it_is(history: int) -> int:
    """What an honest peer lends."""
    return history


class Host:
    """One life of one node: its participant, its compute process, its links."""

    __slots__ = ("accuses", "agrees", "alive", "bends", "cause", "compute", "compute_free", "compute_life",
                 "compute_up", "copies", "copies_fetched", "copying", "costs", "forward_seconds", "head", "hides",
                 "hold", "hung", "inbox", "installing", "known", "lends", "lies", "links", "lost", "next_handle",
                 "participant", "paused", "peer", "record_luck", "reducing", "searching", "sees_no_parts", "shelved",
                 "shows", "spins", "stopped", "tensors", "vanished", "view", "view_numbers", "wake_at",
                 "working")  # fmt: skip

    def __init__(self, peer: Peer, participant: Participant, compute: Compute, hold: int, head: bool) -> None:
        self.peer = peer
        self.participant = participant
        self.compute = compute
        self.hold = hold
        self.head = head
        self.alive, self.paused, self.vanished, self.hung, self.searching = True, False, False, False, False
        self.lies: Callable[[Gradients], Gradients] | None = None
        """What it gives to sums instead of what it accumulated."""
        self.bends: Callable[[Gradients], Gradients] | None = None
        """What it makes of the sum of a piece that it adds up. The sum is the same for all that get it."""
        self.lends: Callable[[int], int] = as_it_is
        """The weights that it lends, instead of those that it has."""
        self.shows: Callable[[Tensor, bool, Peer], Tensor] | None = None
        """What it shows others instead of a tensor that it made, or got; whether it made it, and to whom."""
        self.hides: Callable[[Peer], bool] | None = None
        """Whom it does not show the parts that it made its piece of a sum of."""
        self.sees_no_parts = False
        """It says that nobody shows it any, as one of whom they are its own lot to check."""
        self.accuses = False
        """It says of whomever it checks that it lies."""
        self.agrees = False
        """It does what it checks again as it would lie about it: whoever tells the same lie is right."""
        self.compute_up = False
        self.compute_life = 0
        self.compute_free = 0.0
        self.forward_seconds = 0.02
        self.costs: Mapping[str, float] = COST
        self.tensors: dict[Handle, Tensor] = {}
        self.next_handle = 1
        self.inbox: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.installing: dict[int, int] = {}
        self.reducing: dict[int, Reduce] = {}
        self.shelved: dict[int, list[tuple[Apply, Reduction | None]]] = {}
        """Stage → updates that wait for its weights."""
        self.lost: set[int] = set()
        """Stages that compute has lost, and for which it does nothing before a Forget."""
        self.copies: dict[int, Weights] = {}
        self.copies_fetched: dict[int, Weights] = {}
        self.copying: dict[int, int] = {}
        self.known: set[str] = set()
        self.links: dict[Peer, Link] = {}
        self.wake_at = inf
        self.spins = 0
        self.stopped = 0.0
        self.record_luck = 1.0
        self.view: View | None = None
        self.view_numbers: dict[str, int] = {}
        self.working: Attempt | None = None
        """The attempt that it takes part in, or took part in and completed."""
        self.cause = ""
        """The last fault that hit this life, for the table of faults and rungs."""

    def cost(self, task: Task) -> float:
        """In forward passes."""
        embeds = isinstance(task, Forward | Backward) and task.visit == 0
        usual = self.costs[type(task).__name__] * len(task.stages)
        return self.costs.get("Embed", usual) if embeds else usual

    def bend_copies(self, bend: Callable[[Weights], Weights]) -> None:
        """All that it keeps of others, also what it has not taken yet."""
        for kept in (self.copies, self.copies_fetched):
            kept.update({stage: bend(weights) for stage, weights in kept.items()})

    def copy_of(self, stage: int, version: Version) -> Weights | None:
        """What it keeps of another, also what it has not taken yet."""
        kept = (self.copies_fetched.get(stage), self.copies.get(stage))
        return next((each for each in kept if each is not None and each.version == version), None)

    def put(self, tensor: Tensor) -> Handle:
        handle = self.next_handle
        self.next_handle = handle + 1
        self.tensors[handle] = tensor
        return handle
