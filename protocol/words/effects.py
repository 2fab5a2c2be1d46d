"""What a participant wants done. Effects of one `handle` are carried out in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ftnode.protocol.words.messages import Commit, Convicted, Donor, MembersOrder, Message, Plan, Roll
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Attempt, Handle, Peer, Version
from ftnode.protocol.words.view import View


@dataclass(frozen=True, slots=True)
class Forward:
    """Run one stage on one microbatch. Visit 0 has no `input`: the head draws the batch of (step, microbatch).

    `save`: keep what the backward pass needs; without it, backward recomputes from `input`.
    At the last visit only validation microbatches run forward alone.
    `onward`: stages of the next visits, in order, that are run on what this one makes. Only what the last of them makes
    comes out, and the boundaries between them are encoded and decoded as if they had travelled.
    """

    stage: int
    step: int
    attempt: Attempt
    microbatch: int
    visit: int
    input: Handle | None
    save: bool
    validation: bool
    onward: tuple[int, ...] = ()

    @property
    def stages(self) -> tuple[int, ...]:
        return (self.stage, *self.onward)

    @property
    def visits(self) -> range:
        """That of each of `stages`."""
        return range(self.visit, self.visit + 1 + len(self.onward))


@dataclass(frozen=True, slots=True)
class Backward:
    """Accumulate the gradient of one microbatch and hand its boundary gradient back.

    At the last visit (the head again) this is loss and backward in one, with `input` the activation and no `gradient`.
    `recompute`: run the forward of `input` again first.
    `onward`: stages of the visits before, nearest first, that go on with the gradient that this one makes, each from
    what its forward saved. Only the gradient that the last of them makes comes out.
    """

    stage: int
    step: int
    attempt: Attempt
    microbatch: int
    visit: int
    gradient: Handle | None
    input: Handle | None
    recompute: bool
    onward: tuple[int, ...] = ()

    @property
    def stages(self) -> tuple[int, ...]:
        return (self.stage, *self.onward)

    @property
    def visits(self) -> range:
        """That of each of `stages`."""
        return range(self.visit, self.visit - 1 - len(self.onward), -1)


@dataclass(frozen=True, slots=True)
class Reduce:
    """Stage the gradient of the step: norm, clip, hash. Weights do not change yet.

    Alone (`group` empty) it is what this peer accumulated. In a group it is the sum of what the contributors have, in
    the group's order, made once and given to all, so that replicas agree to the bit. What this peer accumulated stays
    as it is, since the reduction may have to be repeated without somebody who died in it. Answered when the whole
    result is here; never, when somebody of the group is gone: then another view comes, and another Reduce.
    """

    stage: int
    step: int
    attempt: Attempt
    view: int = 0
    """In which the group reduces; a later one replaces it."""
    group: tuple[tuple[Peer, int], ...] = ()
    """Who gets the result, and how many visits each has accumulated: none for a learner, or who was given no work."""
    checked: Peer | None = field(default=None, compare=False)
    """Of this one a note is taken of what it gives, for Weigh. Nobody else knows."""

    @property
    def stages(self) -> tuple[int, ...]:
        return (self.stage,)


NOT_DONE: Final = -1.0
"""As the value of a Recount on a copy: nothing was done again."""


@dataclass(frozen=True, slots=True)
class Recount:
    """Do again what `of` did with one microbatch at some visits in a row, all of stages that we hold as well: forward
    from `input`, and backward from `gradient` (rule 42). What they add to gradients is kept apart, under `of`.

    `stage` and `visit`: of the first of them; `onward`: stages of the others, in order. No `input`: it begins with the
    batch. No `gradient`: it ends with the loss. `passed_on`, `handed_back`: what `of` made of them, forward and
    backward. Done's `value` is how far these are from what the visits give: the L2 norm of the difference over that of
    the latter, of the one that is farther.
    `rebuilt`: the stage is none of ours, and is run on what was lent of it to rebuild this one (rule 48); else -1.
    `copy`: nor is it then, and is run on the copy of this version that we keep (rule 53), which may be of an earlier
    step than the one in work; else None. Done's `value` is NOT_DONE where the copy is not there any more, or there is
    no memory or no time for it.
    """

    stage: int
    step: int
    attempt: Attempt
    microbatch: int
    visit: int
    of: Peer
    input: Handle | None
    gradient: Handle | None
    onward: tuple[int, ...] = ()
    passed_on: Handle | None = None
    handed_back: Handle | None = None
    rebuilt: int = field(default=-1, repr=False)
    judged: bool = False
    """For our leader (rule 50), so apart from what a check of our own may have done again of it."""
    copy: Version | None = field(default=None, repr=False)
    key: int = field(default=-1, repr=False)
    """On a copy: of what it gives to the gradient the sample of this key is kept, for Retrace. -1: nothing is."""

    @property
    def stages(self) -> tuple[int, ...]:
        return (self.stage, *self.onward)

    @property
    def visits(self) -> range:
        """That of each of `stages`."""
        return range(self.visit, self.visit + 1 + len(self.onward))


@dataclass(frozen=True, slots=True)
class Sample:
    """Fetch some numbers of the state that the donor's stage has at `version`, weights and moments: those of the key
    (models/state_sample.py). Done's `fault` says why there are none."""

    donor: Donor
    version: Version
    key: int

    @property
    def stage(self) -> int:
        return self.donor.stage

    @property
    def stages(self) -> tuple[int, ...]:
        return (self.donor.stage,)

    @property
    def step(self) -> int:
        """Which made these weights."""
        return self.version.step

    @property
    def attempt(self) -> Attempt:
        return self.version.attempt


@dataclass(frozen=True, slots=True)
class Between:
    """What a stage's holder did from the version `before` to `after`."""

    stage: int
    before: Version
    after: Version

    @property
    def stages(self) -> tuple[int, ...]:
        return (self.stage,)

    @property
    def step(self) -> int:
        return self.after.step

    @property
    def attempt(self) -> Attempt:
        return self.after.attempt


@dataclass(frozen=True, slots=True)
class Retrace(Between):
    """Compare what went into the step between two samples of a stage, `before` and `after` it, with what the visits
    gave that were done again on the copy of `before`. Done's `value` is 1 less the cosine of both; more than 2, where
    the step does not follow from what went into it; 0 where there is nothing to compare. Comes after both Samples, and
    the Recounts."""

    key: int


@dataclass(frozen=True, slots=True)
class Course(Between):
    """Compare how weights went from the copy of `before` to that of `after` with what the visits gave that were done
    again on the former. Done's `value` is by how many standard deviations they went against it more than by chance. Its
    `fault` says why nothing can be told. Comes after a Recount on each of both."""


NOT_SHOWN: Final = "not shown"
"""What the fault of a Weigh begins with, where `shown_by` shows nothing that `of` has signed."""


@dataclass(frozen=True, slots=True)
class Weigh:
    """Compare what `of` gave to the sum of a stage with what its visits gave when they were done again; and where three
    or more hold the stage, what it made of the piece that it adds up, less what the others gave to that. Done's `value`
    is the L2 norm of the difference, over that of the latter; of the piece, at least over that of its sum. Comes after
    the Reduce, and all Recounts."""

    stage: int
    step: int
    attempt: Attempt
    of: Peer
    shown_by: Peer | None = None
    """Who adds up another piece of the sum, and shows what `of` gave to it. None: our own note counts."""
    seconds: float = 0.0
    """Only what `of` made of its piece is compared, and it is asked for the parts of that for so long (rule 52)."""

    @property
    def judged(self) -> bool:
        """As of Recount."""
        return self.shown_by is not None

    @property
    def stages(self) -> tuple[int, ...]:
        return (self.stage,)


StepTask = Forward | Backward | Reduce | Recount | Weigh
TrialTask = Sample | Retrace | Course
"""Of a stage that is none of ours (rules 53 and 54)."""
Task = StepTask | TrialTask


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; the tensor `handle` follows a Boundary. Dials without a link; LinkDown tells of failure."""

    to: Peer
    message: Message
    handle: Handle | None


@dataclass(frozen=True, slots=True)
class Dial:
    """Make a link; answers LinkUp or LinkDown."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Know:
    """Remember where a peer can be dialled."""

    peer: Peer
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """Give a task to the compute process; answers Done. Tasks run in the order given."""

    task: Task


@dataclass(frozen=True, slots=True)
class Apply:
    """Update the weights of a stage with the gradient that `attempt` reduced; they become version `version`.

    `skipped`: only the version changes.
    """

    stage: int
    version: Version
    attempt: Attempt
    skipped: bool


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop accumulators, saved activations, staged gradients and tensors of every attempt before `keep` (None: of all).

    Tensors of later attempts may have arrived already; they stay.

    Comes after the Apply that needs them.
    """

    keep: Attempt | None


@dataclass(frozen=True, slots=True)
class Release:
    """Tensors that nothing needs any more."""

    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class Install:
    """Fill a stage as the plan says, with donors' weights of version `base`; answers Installed or InstallFailed."""

    plan: Plan
    base: Version


@dataclass(frozen=True, slots=True)
class Keep:
    """Fetch a copy of the donor's stage at `version` into memory, beside the one that is kept; one that was fetched
    before and not taken is dropped.

    `parts`: weights, or all (optimiser too); `encoding`: raw, bfloat16 or int8. Answers Kept or KeepFailed, and before
    it History with the donor's commits after step `since`.
    """

    donor: Donor
    version: Version
    parts: str
    encoding: str
    since: int


@dataclass(frozen=True, slots=True)
class TakeCopy:
    """The copy of a stage that a Keep has fetched takes the place of the one that is kept."""

    stage: int


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Drop the copies of a stage, and any Keep of it under way."""

    stage: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the weights of a stage: it belongs to a lineage that lost, or is superseded."""

    stage: int


@dataclass(frozen=True, slots=True)
class RestartCompute:
    """Kill the compute process and start another."""

    reason: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Keep this presence record alive in the directory (lifetime at most 90 s, renewed every third)."""

    presence: Presence


@dataclass(frozen=True, slots=True)
class PublishView:
    """Keep this certificate and our claims for our stages of it alive in the directory; None: none any longer."""

    view: View | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The leader's Begin has committed `version` (rule 19); once per step and lineage, by the leader alone."""

    lineage: str
    version: Version
    skipped: bool
    commit: Commit


@dataclass(frozen=True, slots=True)
class Search:
    """Look into the directory soon; answers Directory."""

    reason: str


@dataclass(frozen=True, slots=True)
class Strike:
    """The peer sent what no honest one sends; several in a short time and it is cut off."""

    peer: Peer
    reason: str


@dataclass(frozen=True, slots=True)
class Expose:
    """We lead, and the peer goes since another holder says that it lies. Who vouched for it is to pay for that."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Note:
    """A decision and its reason, for the log, the trace and the person who watches. `fields` are name, value pairs."""

    kind: str
    text: str
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Write these stages to the disk, where the owner keeps snapshots: nobody else has them. A Stop follows, and comes
    into force when they are written."""

    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeepRoll:
    """Keep this roll on the disk, beside the snapshots. Answers Rolls."""

    roll: Roll


@dataclass(frozen=True, slots=True)
class KeepConvicted:
    """Keep these words about a liar on the disk. The next life is told of them (Remembered)."""

    case: Convicted
    committed: int = -1
    """The newest committed step when we heard them; -1: we took part in none, and could not tell."""
    order: int = 0
    """The number of the author's order to roll back that our lineage had followed by then."""


@dataclass(frozen=True, slots=True)
class KeepOrder:
    """Keep this order of members on the disk, or, None, none any more. The next life is told of it (OrderKept)."""

    order: MembersOrder | None


@dataclass(frozen=True, slots=True)
class ShowOrder:
    """Show this peer the author's newest manifest, with the order to roll back."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class AskOrder:
    """Ask this peer for the author's newest manifest: its lineage follows an order that is not known here. May answer
    Ordered."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Stop:
    """The participant has left; the node may end."""

    reason: str


Effect = (
    Send | Dial | Know | Compute | Apply | Discard | Release | Install | Keep | TakeCopy | DropCopy | Forget
    | RestartCompute | Announce | PublishView | Committed | Search | Strike | Expose | Note | Save | KeepRoll
    | KeepConvicted | KeepOrder | ShowOrder | AskOrder | Stop
)  # fmt: skip

EFFECTS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        Send, Dial, Know, Compute, Apply, Discard, Release, Install, Keep, TakeCopy, DropCopy, Forget, RestartCompute,
        Announce, PublishView, Committed, Search, Strike, Expose, Note, Save, KeepRoll, KeepConvicted, KeepOrder,
        ShowOrder, AskOrder, Stop,
    )
}  # fmt: skip
TASKS: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (Forward, Backward, Reduce, Recount, Weigh, Sample, Retrace, Course)
}
