"""What can happen to a participant. The driver, the virtual world and `ftnode replay` make the same events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ftnode.protocol.words.effects import Reduce, Task
from ftnode.protocol.words.messages import Commit, Convicted, MembersOrder, Message, Roll
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Credit, Handle, LentCopy, PartSeen, Peer, RollbackOrder, Snapshot, Version
from ftnode.protocol.words.view import View


@dataclass(frozen=True, slots=True)
class Wake:
    """The participant's deadline has passed."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message from an authenticated peer; `handle` names the tensor of a Boundary, checked for size and dtype.
    `relay`: PeerId of who carried the tensor between us; empty where nobody did."""

    sender: Peer
    message: Message
    handle: Handle | None
    relay: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Messages to the peer can be sent: the handshake succeeded."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Seen:
    """Our connection with the peer ends there, whatever the peer says of itself."""

    peer: Peer
    network: str
    """As `implied_site` names it."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link broke, or a dial failed. `refused`: nobody listens at its address, another life of it does, or it
    may not take part any more."""

    peer: Peer
    refused: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ComputeReady:
    """The compute process is up and has measured one dry microbatch.

    `capacity`: how many stages this peer will hold at most. `head`: it may hold the head (it has the run's corpus).
    `live_activations`: it has memory for so many, where that is less than the manifest says; else -1.
    """

    capacity: int
    head: bool
    tokens_per_second: float
    live_activations: int = field(default=-1, repr=False)


@dataclass(frozen=True, slots=True)
class ComputeLost:
    """The compute process died; all weights and tensors in it are gone."""

    reason: str


@dataclass(frozen=True, slots=True)
class StageLost:
    """What compute had of one stage is gone, and it does nothing for the stage before a Forget; the others are well.
    `out_of_memory`: so many stages do not fit. Else a process ended that had some of them."""

    stage: int
    reason: str
    out_of_memory: bool


@dataclass(frozen=True, slots=True)
class Done:
    """A compute task is finished.

    Forward: `output` is the activation, None for the last visit of a validation microbatch, whose `value` is the loss.
    Backward: `output` is the gradient for the visit before (None at visit 0); at the last visit `value` is the loss.
    Reduce: `value` is the squared norm before clipping and `gradient` the hash of the (clipped) gradient.
    Weigh: `value` is how far what was given is from what is right. `hidden`: why the peer does not show what it made
    its piece of the sum of; empty where it does, or need not.
    `fault` is non-empty when a number was not finite; then `value` is 0, and this peer cannot finish the attempt. Of a
    Recount or a Weigh it says why there is nothing to compare.
    `faulty`: the stage whose number it was, where the task has several; -1: the first.
    `relayed`: of a group's sum, bytes that came to us through relays, by PeerId.
    `parts`: of a group's sum, what we saw of the others' parts, and `sums`, of what they made of their pieces. `giver`:
    whose sum of its piece the fault is about.
    `received`: the L2 norm of the tensor that a Forward or a Backward was given; of a gradient's, where it was given
    both. -1.0: it was given none, or none was measured. `way`: which way an activation points that it was given
    (models/direction.py); empty for a gradient, and where nobody asked.
    """

    task: Task
    output: Handle | None
    value: float
    tokens: int
    gradient: str
    fault: str
    relayed: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    faulty: int = field(default=-1, repr=False)
    parts: tuple[PartSeen, ...] = field(default=(), repr=False)
    giver: Peer | None = field(default=None, repr=False)
    received: float = field(default=-1.0, repr=False)
    way: tuple[int, ...] = field(default=(), repr=False)
    sums: tuple[PartSeen, ...] = field(default=(), repr=False)
    hidden: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SumOwed:
    """A group's sum stands still. `parts`: who has not sent its part of what we add up; `sums`: who adds up with our
    part and does not give the sum. Nobody: it goes on."""

    task: Reduce
    parts: tuple[Peer, ...]
    sums: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Installed:
    """A stage has its weights: rebuilt, fetched or initialised, at version `base`. `place`: the number of the device
    that they lie on, of those of this peer."""

    stage: int
    base: Version
    bytes_fetched: int
    fetch_seconds: float
    blend_seconds: float
    digest: str
    place: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class InstallFailed:
    """Some donor did not give. `donor` is None when the fault is our own."""

    stage: int
    base: Version
    donor: Peer | None
    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy of a stage is whole; `bytes_fetched` came over the wire for it."""

    stage: int
    version: Version
    bytes_fetched: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KeepFailed:
    """The copy could not be fetched; the older one, if any, is still there."""

    stage: int
    version: Version
    reason: str


@dataclass(frozen=True, slots=True)
class Lent:
    """A peer has been lent weights of ours to be kept, all but the last of it."""

    copy: LentCopy


@dataclass(frozen=True, slots=True)
class Snapshots:
    """What our disk holds from now on, whole and checked. Comes first at a start, and whenever it changes."""

    kept: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class Rolls:
    """The rolls that our disk keeps from now on, in the order in which they were kept. Comes first at a start."""

    kept: tuple[Roll, ...]


@dataclass(frozen=True, slots=True)
class Remembered:
    """What earlier lives of ours were convinced of, oldest first: words about liars that our disk keeps, of which the
    signatures were verified again. Comes first at a start."""

    cases: tuple[Convicted, ...]


@dataclass(frozen=True, slots=True)
class Ordered:
    """The author's newest order to roll back, from a manifest that it has signed. Comes first at a start, and whenever
    there is a newer one."""

    order: RollbackOrder


@dataclass(frozen=True, slots=True)
class WantsUndo:
    """Our owner wants the run to roll back to this step, or, NO_STEP, no longer does (rule 47)."""

    step: int


@dataclass(frozen=True, slots=True)
class OrderKept:
    """The order of members that our disk keeps, whose signatures were verified again. Comes first at a start."""

    order: MembersOrder


@dataclass(frozen=True, slots=True)
class History:
    """Commits that a donor told of along with its weights, oldest first."""

    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True)
class Credited:
    """What this node knew when it last ran: what each peer had given to the run up to `step`."""

    step: int
    credits: tuple[Credit, ...]


@dataclass(frozen=True, slots=True)
class Directory:
    """What the DHT says now: live presences and certificates of this run, verified and unexpired, our own left out."""

    presences: tuple[Presence, ...]
    certificates: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class DirectoryLost:
    """The directory does not answer; what was known stays known."""

    reason: str


@dataclass(frozen=True, slots=True)
class Moved:
    """From now on others can dial us at these addresses: a relay took us in or dropped us, or the network changed."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """The owner asks the node to stop. `pauses`: it comes back, and stays where nobody is left to take over."""

    reason: str
    pauses: bool = False
    within: float = field(default=-1.0, repr=False)
    """Seconds after which it ends, whatever is unfinished; negative: it has the time that handing over takes."""
    bytes_per_second: float = field(default=0.0, repr=False)
    """What its line takes, as far as that was measured or limited; 0.0: not known."""


@dataclass(frozen=True, slots=True)
class Vouched:
    """Who takes part by the word of others, all of them: (PeerId, that of the listed volunteer who answers for it)."""

    answers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Lied:
    """A peer that somebody vouched for was let go as a liar, or was banned here."""

    peer_id: str


@dataclass(frozen=True, slots=True)
class Stay:
    """It stands still in its pause: who would lose the training, or the last copy of a model, stays."""


Event = (
    Wake | Received | LinkUp | LinkDown | ComputeReady | ComputeLost | StageLost | Done | SumOwed | Installed
    | InstallFailed | Kept | KeepFailed | Snapshots | Rolls | Remembered | Ordered | History | Credited | Directory
    | DirectoryLost | Moved | Leave | Stay | Seen | Vouched | Lied | Lent | WantsUndo
    | OrderKept
)  # fmt: skip

EVENTS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        Wake, Received, LinkUp, LinkDown, ComputeReady, ComputeLost, StageLost, Done, SumOwed, Installed, InstallFailed,
        Kept, KeepFailed, Snapshots, Rolls, Remembered, Ordered, History, Credited, Directory, DirectoryLost, Moved,
        Leave, Stay, Seen, Vouched, Lied, Lent, WantsUndo, OrderKept,
    )
}  # fmt: skip
