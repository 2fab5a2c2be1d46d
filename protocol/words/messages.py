"""Everything that one participant says to another. Frozen, finite, closed: `MESSAGES` is the whole vocabulary.

Rule numbers refer to docs/explanation/protocol.md. A message that belongs to a view carries its lineage and number,
a message of a step its step and attempt as well (rule 4). `Boundary` alone is followed by tensor bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from ftnode.protocol.words.codec import UNLESS_NONE, encode_canonical
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import (
    Attempt,
    Copied,
    Credit,
    Direction,
    Given,
    LentCopy,
    Peer,
    Recovered,
    Rung,
    Snapshot,
    Version,
)
from ftnode.protocol.words.view import Lineage, View


@dataclass(frozen=True, slots=True)
class Ballot:
    """Ordered by number, then proposer. Ballot 0 belongs to the leader of the view alone (rule 11)."""

    number: int
    proposer: Peer


@dataclass(frozen=True, slots=True)
class Signed:
    """One voter's signature, Ed25519 in base64, over what `vote_bytes` says. Empty until it leaves the node that makes
    it: the core has no keys."""

    voter: Peer
    signature: str


@dataclass(frozen=True, slots=True)
class Proof:
    """Why a view stands (rule 14): who accepted it in the ballot that chose it. A founder proves what it founds by its
    own signature."""

    ballot: Ballot
    signed: tuple[Signed, ...]

    def signers(self) -> frozenset[Peer]:
        return frozenset(each.voter for each in self.signed)


def founding_proof(founder: Peer) -> Proof:
    """Of a lineage's first view."""
    return Proof(Ballot(0, founder), (Signed(founder, ""),))


def vote_bytes(voter: Peer, ballot: Ballot, digest: str) -> bytes:
    """What a voter signs: in this life of it, and in this ballot, it accepts the view of this digest."""
    return encode_canonical(("ftnode view", voter, ballot, digest))


@dataclass(frozen=True, slots=True)
class Link:
    """One view of a lineage, and its proof."""

    view: View
    proof: Proof


@dataclass(frozen=True, slots=True)
class Roll:
    """What members say of one commit: it was made in this view's lineage, and a snapshot of each stage has this digest
    (rule 46). It counts with the signatures of a quorum of the view's voters, and of each stage when most of its
    holders are among those who signed."""

    view: View
    version: Version
    digests: tuple[str, ...]
    """Of each stage; empty where its holders have not told, or do not agree."""
    signed: tuple[Signed, ...]

    def digest(self) -> str:
        """Of what is signed."""
        return _roll_digest(self.view, self.version, self.digests)

    def signers(self) -> frozenset[Peer]:
        return frozenset(each.voter for each in self.signed)


@lru_cache(maxsize=64)
def _roll_digest(view: View, version: Version, digests: tuple[str, ...]) -> str:
    return hashlib.blake2b(encode_canonical((view.digest(), version, digests)), digest_size=16).hexdigest()


def roll_bytes(member: Peer, digest: str) -> bytes:
    """What a member signs: in this life of it, it knows the commit of the roll of this digest, and its own stages."""
    return encode_canonical(("ftnode roll", member, digest))


@dataclass(frozen=True, slots=True)
class MembersOrder:
    """An order to roll back that members give (rule 47): each has signed an UndoVote for it. It counts with the
    signatures of more than half of the view's voters."""

    view: View
    number: int
    """Of the order, by which it is later than others."""
    step: int
    signed: tuple[Signed, ...]

    def signers(self) -> frozenset[Peer]:
        return frozenset(each.voter for each in self.signed)

    def signed_bytes(self, voter: Peer) -> bytes:
        """What this voter has signed."""
        return undo_bytes(voter, self.view.digest(), self.number, self.step)


@dataclass(frozen=True, slots=True)
class UndoVote:
    """To all members: I want the run to roll back to `step`, by the order of that number; NO_STEP: I no longer do."""

    lineage: str
    view: int
    digest: str
    """Of the view."""
    number: int
    step: int
    serial: int
    """A later wish of the same owner has a higher one."""
    signature: str = ""
    """Ed25519 in base64, over what `undo_bytes` says. Empty until it leaves the node that makes it."""


NO_STEP: Final = -1


def undo_bytes(voter: Peer, digest: str, number: int, step: int) -> bytes:
    """What a voter signs: in this life of it, in the view of this digest, it wants this order to be followed."""
    return encode_canonical(("ftnode undo", voter, digest, number, step))


@dataclass(frozen=True, slots=True)
class Contact:
    """Where a peer can be dialled: multiaddrs without the /p2p part."""

    peer: Peer
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """What a committed step came to. `loss` is nats per token; `seconds` since the commit before."""

    step: int
    loss: float
    tokens: int
    seconds: float
    skipped: bool
    norms: tuple[float, ...]
    """Squared gradient norm before clipping, per stage 0..S."""
    recoveries: tuple[Recovered, ...] = ()
    """At most one per stage."""
    given: tuple[Given, ...] = field(default=(), repr=False)
    """By whom; only of the newest commits, and not in heartbeats. Not in the digests of decisions, as none follows from
    it but who is new in a run with checks (rule 45)."""


def bare(commit: Commit) -> Commit:
    """Without who gave what: for the curve, and for those who only watch."""
    return replace(commit, given=()) if commit.given else commit


@dataclass(frozen=True, slots=True)
class StageReport:
    """What a holder says of one of its stages while it works. `state` is for people."""

    stage: int
    state: str
    applied: int
    accumulated: int
    queue: int
    fetched: int
    """Bytes that its present weights took over the wire when they were installed."""
    seconds: float
    """That compute takes for one microbatch there, forward and backward; 0.0: not known yet."""
    line_seconds: float = 0.0
    """That its line up takes for the tensors of one; 0.0: none has waited for the line yet."""

    @property
    def pace(self) -> float:
        """Seconds for a microbatch: compute and line work side by side, so the slower one counts; 0.0: not known."""
        return max(self.seconds, self.line_seconds) if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I am alive, this is the view I know (-1: none), and this is how far I am."""

    lineage: str
    view: int
    quorate: bool
    """A leader: heard a quorum within the lease. A member: its leader said so within the lease."""
    step: int
    stages: tuple[StageReport, ...]
    busy_seconds: float
    """How long the current compute task has been running."""
    wants_reply: bool
    commits: tuple[Commit, ...]
    """From the leader: the newest commits, so that everybody knows the loss."""
    validation: tuple[tuple[int, float], ...]
    """(step, nats per token) of the newest evaluations."""
    waiting: str
    """What this peer (from the leader: the run) waits for; empty when it works."""
    copies: tuple[Copied, ...]
    """Those that this peer keeps of others' stages."""
    done: int = 0
    """Tasks of steps and installs that it has finished in this life (rule 38)."""
    lent: tuple[LentCopy, ...] = field(default=(), repr=False)
    """Copies of its stages that it has lent to keepers, of each stage the newest (rule 49)."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A chosen view (rule 14), and where its members are. A lineage's first view invites its survivors (rule 16)."""

    view: View
    quorate: bool
    """The sender is a member of it and its leader heard a quorum within the lease; only to such a one others yield."""
    contacts: tuple[Contact, ...]
    step: int = 0
    """From the leader: how far the swarm is, or how far disks bring it (rule 16)."""
    proof: Proof | None = None
    """None: the sender knows the view from the directory alone."""
    between: tuple[Link, ...] = ()
    """Views between that of the receiver and this one, oldest first, where it needs them to follow the proof."""
    roll: Roll | None = field(default=None, repr=False)
    """Of a lineage that goes on from disks: the roll of the version that it goes on from, where the sender has it."""
    order: MembersOrder | None = field(default=None, repr=False, metadata=UNLESS_NONE)
    """The newest order to roll back that the sender knows, where members have given it."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """To the leader (rule 8). `kind` is silent, broken or stalled."""

    lineage: str
    view: int
    peer: Peer
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Poll:
    """The leader asks the voters about a suspect (rule 9). A voter pings it before it answers."""

    lineage: str
    view: int
    number: int
    peer: Peer


@dataclass(frozen=True, slots=True)
class PollReply:
    """`heard`: a sign of life came after the poll did. `refused`: the suspect's address refuses the dial."""

    lineage: str
    view: int
    number: int
    peer: Peer
    heard: bool
    refused: bool


@dataclass(frozen=True, slots=True)
class Introduction:
    """What I can do for the run, from me, to those who may ask me to hold a stage (rule 10): it says the same as my
    record in the directory, which strangers can hide among theirs."""

    presence: Presence


@dataclass(frozen=True, slots=True)
class Offer:
    """Will you hold these stages from the next view on (rule 10)? `neighbours` must be dialled before accepting."""

    lineage: str
    view: int
    stages: tuple[int, ...]
    base: Version
    neighbours: tuple[Contact, ...]
    learn: bool
    """The stages have holders: fetch their state while they go on, and join when you have it (rule 26)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To an Offer, also later, from who cannot learn what it had accepted. `exact`: those offered stages of which the
    candidate has the weights of `base`; `learn`: as the offer says."""

    lineage: str
    view: int
    stages: tuple[int, ...]
    accepted: bool
    exact: tuple[int, ...]
    reason: str
    learn: bool


@dataclass(frozen=True, slots=True)
class Prepare:
    lineage: str
    number: int
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Promise:
    lineage: str
    number: int
    ballot: Ballot
    accepted_ballot: Ballot | None
    accepted_view: View | None


@dataclass(frozen=True, slots=True)
class Propose:
    """Paxos phase 2a for view `view.number`; acceptors are the voters of the view before (rule 12)."""

    ballot: Ballot
    view: View


@dataclass(frozen=True, slots=True)
class Accepted:
    """`digest`: of the accepted view. `signature`: over `vote_bytes`."""

    lineage: str
    number: int
    ballot: Ballot
    digest: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Outbid:
    """The acceptor has promised a higher ballot; try above it."""

    lineage: str
    number: int
    promised: Ballot


@dataclass(frozen=True, slots=True)
class StageStatus:
    """One stage of a member when a view is installed (rule 17). `version` is None without usable weights.

    `reduced` names the attempt whose reduced gradient is held, for step version.step + 1.
    """

    stage: int
    version: Version | None
    reduced: Attempt | None
    working: bool
    """It is part of the attempt that the member takes part in. A stage just taken over may have weights of long ago."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """A stage whose gradient is reduced: squared norm before clipping, and the hash that replicas must share."""

    stage: int
    norm_squared: float
    gradient: str
    shares: tuple[tuple[Peer, int], ...] = field(default=(), repr=False)
    """How many visits each of the group accumulated; empty where the sender holds the stage alone."""


@dataclass(frozen=True, slots=True)
class Ready:
    """All my stages have reduced exactly the step's set (rules 23, 24). `loss_sum`: over microbatches, head only."""

    lineage: str
    view: int
    step: int
    attempt: Attempt
    results: tuple[StageResult, ...]
    loss_sum: float
    tokens: int
    validation: float | None
    relayed: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    """Bytes of the step's tensors and sums that came to me through relays, by PeerId; at most RELAYS_TOLD_MAX of
    them (rule 40)."""
    claims: tuple[tuple[Peer, Share], ...] = field(default=(), repr=False)
    """In a run with checks, where the view began the attempt: what each of the groups of my stages has accumulated, as
    it signed it. Together they are the step's set (rule 52)."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a member holds and does when a view is installed (rule 17), and the newest on its disk (rule 34)."""

    lineage: str
    view: int
    attempt: Attempt | None
    """The attempt this member takes part in, or None: a newcomer, or nothing begun."""
    step: int
    base: Version | None
    skipped: bool
    """The base's step was skipped."""
    skip: bool
    """That attempt skips its step."""
    evaluate: bool
    """That attempt validates its base as well."""
    stages: tuple[StageStatus, ...]
    ready: Ready | None
    """This member's Ready for that attempt, if it was."""
    evaluated: tuple[tuple[int, float], ...]
    commits: tuple[Commit, ...]
    copies: tuple[tuple[int, Version], ...]
    """Of the stages that this member keeps copies of."""
    paths: tuple[tuple[int, tuple[Peer, ...]], ...]
    """Of the microbatches of that attempt that this member has met, where stages have several holders (rule 22)."""
    paths_view: int
    """The view whose Begin this member goes by: later words on a path count more."""
    snapshots: tuple[Snapshot, ...] = ()
    site: str = field(default="", repr=False)
    """Where the member is; empty: not known."""


@dataclass(frozen=True, slots=True)
class Donor:
    """A peer that lends the weights of `stage`."""

    stage: int
    peer: Peer
    contact: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How an empty stage is filled: rung, donors in the rung's order, and why (docs/explanation/recovery.md)."""

    stage: int
    peer: Peer
    rung: Rung
    donors: tuple[Donor, ...]
    rate_factor: float
    """Learning-rate factor of the rebuilt stage; replaces an earlier factor, never compounds."""
    reason: str
    copy: Version | None
    """Where the rung takes copies: which one the donors said that they keep. They lend what they keep when they are
    asked, which may be newer; the stage then has the base's name. A snapshot is the base itself, with this digest."""
    digest: str = ""
    told: tuple[str, ...] = ()
    """Digests of the copies that count: whoever held the stage has told them (rule 49)."""
    anew: bool = field(default=False, repr=False)
    """The peer has weights of the base, and is to make others (rule 29)."""

    def takes(self, digest: str) -> bool:
        """Whether a copy of this digest is one that counts."""
        return digest in self.told


@dataclass(frozen=True, slots=True)
class Begin:
    """Start `step` as `attempt` on weights `base`. It is the commit of base.step (rule 19).

    `training` False: the run is over and this only evaluates. `shares`: which head holder admits which microbatches.
    """

    lineage: str
    view: int
    step: int
    attempt: Attempt
    base: Version
    skipped: bool
    """base.step was skipped: weights as before, only the version moved on (rule 25)."""
    skip: bool
    """This attempt skips `step`: everybody is Ready at once, with no gradient."""
    training: bool
    evaluate: bool
    window: int
    shares: tuple[tuple[Peer, tuple[int, ...]], ...]
    paths: tuple[tuple[int, tuple[Peer, ...]], ...]
    installs: tuple[Plan, ...]
    commits: tuple[Commit, ...]
    learners: tuple[tuple[int, Peer], ...]
    """(stage, peer): outside the view; they get a stage's state and each reduced gradient, and join later (rule 26)."""
    credits: tuple[Credit, ...] = field(default=(), repr=False)
    """The leader's totals as of the base, while that is the one with which the view began (rule 40)."""
    keepers: tuple[tuple[int, Peer], ...] = field(default=(), repr=False)
    """(stage, peer): who keeps copies of what, the same as long as the view lasts (rule 30)."""
    lent: tuple[LentCopy, ...] = field(default=(), repr=False)
    """Copies that holders told of, of which some of those who get this may not have heard (rule 49)."""


@dataclass(frozen=True, slots=True)
class Share:
    """To the others of a stage's group: what I have accumulated of the step, now that I know of nothing more to do. It
    is signed in a run with checks: whoever has it knows what its sender has to show (rule 52)."""

    lineage: str
    view: int
    step: int
    attempt: Attempt
    stage: int
    visits: tuple[tuple[int, int], ...]
    """(microbatch, visit), sorted."""
    signature: str | None = field(default=None, repr=False, metadata=UNLESS_NONE)
    """By who accumulated them, in base64; filled in when it leaves the node. None: in a run without checks."""


UNSHOWN: Final = -2
"""In place of a microbatch: what a peer made of its piece of the stage's sum, of which it shows nothing."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A non-finite number turned up (rule 25). `giver`: whose tensor it was computed of, if any.

    With a `distance`, what `giver` gave to the sum of the stage, or passed on of the microbatch, is finite and not what
    its visits give (rule 42). Or somebody shows nothing (rule 52), and the attempt goes on: `giver` what it made its
    piece of the sum of; or who did the visit `beside` one of the giver's, what it gave to that one, or got of it."""

    lineage: str
    view: int
    step: int
    attempt: Attempt
    stage: int
    microbatch: int
    reason: str
    giver: Peer | None = None
    distance: float = 0.0
    """As Weigh and Recount measure it."""
    signature: str = ""
    """By who says it, of all else, where there is a distance: base64. Filled in when it leaves the node."""
    beside: int = field(default=-1, repr=False)
    """The visit of the microbatch of which nobody shows the tensors; -1: it is about something else."""

    @property
    def hides(self) -> bool:
        """It says that somebody shows nothing."""
        return (self.microbatch == UNSHOWN or self.beside >= 0) and self.distance > 0


@dataclass(frozen=True, slots=True)
class Seal:
    """Of a boundary tensor: the digest of its bytes as they travel, in hex, and its maker's signature over
    `tensor_bytes`, in base64."""

    digest: str
    signature: str


@dataclass(frozen=True, slots=True)
class SealedTensor:
    """Who made the tensor for visit `visit` of a microbatch, and signed what it is. Of the first visit, which nobody
    makes a tensor for: the holder of the head that admits the microbatch, and the digest of the path that it chose."""

    microbatch: int
    visit: int
    direction: Direction
    maker: Peer
    seal: Seal

    @property
    def of_path(self) -> bool:
        """It is a word for a path."""
        return self.visit == 0 and self.direction is Direction.FORWARD

    def signed_bytes(self, lineage: str, view: int, step: int, attempt: Attempt) -> bytes:
        """What its maker signed, in this view of the attempt. A path is chosen once in an attempt."""
        place = self.microbatch, self.visit, self.direction
        began = attempt.view if self.of_path else view
        return tensor_bytes(self.maker, lineage, began, step, attempt, *place, self.seal.digest)


def tensor_bytes(
    maker: Peer, lineage: str, view: int, step: int, attempt: Attempt, microbatch: int, visit: int,
    direction: Direction, digest: str,
) -> bytes:  # fmt: skip
    """What the maker of a boundary tensor signs. Of one place it makes one tensor in a view of an attempt."""
    return encode_canonical(
        ("ftnode tensor", maker, lineage, view, step, attempt, microbatch, visit, direction, digest)
    )


@lru_cache(maxsize=256)  # each tensor of a microbatch asks for that of its path
def path_digest(path: tuple[Peer, ...]) -> str:
    """What who admits a microbatch signs of its path, in hex."""
    return hashlib.blake2b(encode_canonical(("ftnode path", path)), digest_size=32).hexdigest()


@dataclass(frozen=True, slots=True)
class Show:
    """To holders of stages beside ours: send me those of these tensors that you made for another of our group, and
    those that it made for you. I do its visits again (rule 42)."""

    lineage: str
    view: int
    step: int
    attempt: Attempt
    tensors: tuple[tuple[int, int, Direction], ...]
    """(microbatch, visit that it is for, direction)."""
    taken: tuple[tuple[int, int, Direction], ...] = ()
    """As above, of those that it made."""
    given: tuple[tuple[int, int, Direction, str], ...] = field(default=(), repr=False)
    """To the one whose visits they are: their makers showed me tensors of these digests. Tell me of one that is another
    than you were given."""


@dataclass(frozen=True, slots=True)
class WasGiven:
    """To who asked by a Show: a tensor that I was given, as its maker signed it, and whose digest is none that was
    named; or none is there. Or, to who says that it did a visit that I was given: the word for the path by which."""

    lineage: str
    view: int
    step: int
    attempt: Attempt
    other: tuple[SealedTensor, ...]
    """At most one."""


@dataclass(frozen=True, slots=True)
class Doubted:
    """To holders of a stage beside mine: what `peer`, another of them, passed on to me is of another size than usual.
    It may be honest; do its visits again (rule 42)."""

    lineage: str
    view: int
    step: int
    attempt: Attempt
    stage: int
    """Yours."""
    peer: Peer


@dataclass(frozen=True, slots=True)
class Judge:
    """From the leader, to a third holder of a stage: do again what `accused` did of a microbatch, or, where that is -1,
    gave to the sum of the stage, and tell me whether `accuser` is right to call it a lie (rule 50). With UNSHOWN,
    whether it shows you what it made its piece of, and made it of that. Or, to any who can reach it: whether it shows
    you the tensors of the visit `beside`, which it did; show them to the accuser (rule 52)."""

    lineage: str
    view: int
    step: int
    attempt: Attempt
    stage: int
    microbatch: int
    accuser: Peer
    accused: Peer
    beside: int = field(default=-1, repr=False)
    """As of Poisoned."""
    claim: Share | None = field(default=None, repr=False)
    """What the accused said, and signed, that it has accumulated; the visit beside is among it."""

    @property
    def hides(self) -> bool:
        """As of Poisoned."""
        return self.microbatch == UNSHOWN or self.beside >= 0

    @classmethod
    def of(cls, accuser: Peer, said: Poisoned, accused: Peer, claim: Share | None = None) -> Judge:
        """What there is to judge of an accusation."""
        place = said.lineage, said.view, said.step, said.attempt, said.stage, said.microbatch
        return cls(*place, accuser, accused, said.beside, claim)


@dataclass(frozen=True, slots=True)
class Verdict:
    """To the leader: what came of its Judge. `guilty`: the accuser is right; None: it could not be seen."""

    about: Judge
    guilty: bool | None
    reason: str
    signature: str = ""
    """As that of Poisoned."""

    @property
    def lineage(self) -> str:
        return self.about.lineage

    @property
    def view(self) -> int:
        return self.about.view


@dataclass(frozen=True, slots=True)
class Convicted:
    """From the leader: why somebody goes who lied. To a leader that was not there: why a member should (rule 51). From
    who found it: the proof that somebody signed two tensors for one place. The words may be of a lineage that its
    sender was in long ago."""

    accuser: Peer
    accusation: Poisoned
    verdicts: tuple[tuple[Peer, Verdict], ...]
    proof: tuple[SealedTensor, ...] = field(default=(), repr=False)
    """Both, of the lineage, view, step and attempt of the accusation."""


def word_bytes(speaker: Peer, word: Poisoned | Verdict | Share) -> bytes:
    """What is signed of a word about somebody's work, or one's own."""
    return encode_canonical((f"ftnode {type(word).__name__.lower()}", speaker, replace(word, signature="")))


@dataclass(frozen=True, slots=True)
class Saved:
    """To the leader: these snapshots of my stages, of one version, are whole on my disk, and I have no roll of it."""

    lineage: str
    view: int
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class Rolled:
    """From the leader: sign this roll, which nobody has signed yet, or keep it as it is. To the leader: my signature
    for it; or, before anything has begun here, one that my disk keeps."""

    lineage: str
    view: int
    roll: Roll
    whole: bool
    """It has the signatures that it will have."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The tensor of (microbatch, visit, direction) is with `peer`, who has acknowledged it (`stored`) or not.

    Microbatch -1 is the group of stage `visit`: `peer` has not said what it has accumulated, or, not `stored`, the sum
    is being made. Then `peer` is the sender; or who owes it its part (forward), or the sum of its piece (backward)."""

    microbatch: int
    visit: int
    direction: Direction
    peer: Peer
    stored: bool


@dataclass(frozen=True, slots=True)
class Waits:
    """To the leader, with each heartbeat while work on a step waits for others for longer than usual (rule 38): of each
    microbatch the one wait that is furthest on its path. One without any says that the waits are over."""

    lineage: str
    view: int
    step: int
    attempt: Attempt
    on: tuple[Wait, ...]


HALTED = "halted: "
"""How the `waiting` of a leader begins whose run cannot go on with what is left of it."""
NOT_LENT = "could not rebuild"
"""How the reason of a Resign begins when no donor gave what the plan says."""
OTHER_COPY = "another copy than it was lent"
"""Why a copy is not taken whose digest nobody told who held the stage."""


@dataclass(frozen=True, slots=True)
class Resign:
    """I cannot or will not hold these stages any longer. `leaving`: the whole peer goes, its weights stay a while.
    `hand_over`: it waits until others have what only it holds."""

    lineage: str
    view: int
    stages: tuple[int, ...]
    leaving: bool
    hand_over: bool
    reason: str
    seconds: float = field(default=-1.0, repr=False)
    """After which it ends, whatever is unfinished; negative: it has the time that handing over takes."""
    bytes_per_second: float = field(default=0.0, repr=False)
    """That its line takes; 0.0: not known."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary tensor for visit `visit` of microbatch `microbatch`; its bytes follow the frame (rule 21).

    `seal`: in runs with checks, of who made it. What is None here is filled in when the tensor leaves its maker; to who
    gets it None says that there was none, or a wrong one. `admitted`: in such runs, of who admitted the microbatch, for
    the path; its signature is filled in likewise. None: a Begin says the path."""

    lineage: str
    view: int
    step: int
    attempt: Attempt
    microbatch: int
    visit: int
    direction: Direction
    path: tuple[Peer, ...]
    seal: Seal | None = field(default=None, repr=False, metadata=UNLESS_NONE)
    admitted: Seal | None = field(default=None, repr=False, metadata=UNLESS_NONE)


@dataclass(frozen=True, slots=True)
class Stored:
    """The acknowledgement of a Boundary."""

    lineage: str
    step: int
    attempt: Attempt
    microbatch: int
    visit: int
    direction: Direction


Vote = Prepare | Promise | Propose | Accepted | Outbid
"""What the voters say to each other of the next view."""
ToLeader = Suspect | PollReply | Answer | Status | Ready | Poisoned | Resign | Waits | Saved | Verdict
"""What members, and those who are asked to become members, say to the leader of their view."""
Message = (
    Heartbeat | Certificate | Introduction | Suspect | Poll | PollReply | Offer | Answer | Prepare | Promise | Propose
    | Accepted | Outbid | Status | Begin | Share | Ready | Poisoned | Resign | Boundary | Stored | Waits | Show | Saved
    | Rolled | Doubted | Judge | Verdict | Convicted | WasGiven | UndoVote
)  # fmt: skip

MESSAGES: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        Heartbeat, Certificate, Introduction, Suspect, Poll, PollReply, Offer, Answer, Prepare, Promise, Propose,
        Accepted, Outbid, Status, Begin, Share, Ready, Poisoned, Resign, Boundary, Stored, Waits, Show, Saved, Rolled,
        Doubted, Judge, Verdict, Convicted, WasGiven, UndoVote,
    )
}  # fmt: skip


def views_in(message: Message) -> tuple[View, ...]:
    """Every view that a message shows."""
    match message:
        case Certificate():
            return (*(link.view for link in message.between), message.view)
        case Propose():
            return (message.view,)
        case Promise(accepted_view=View() as view):
            return (view,)
    return ()


def lineage_of(message: Message) -> str | None:
    """The lineage that the message is about, which its sender is then in; None for one that names none."""
    return message.view.lineage.id if isinstance(message, (Certificate, Propose)) else getattr(message, "lineage", None)


__all__ = [*MESSAGES, "Ballot", "Commit", "Contact", "Donor", "Lineage", "Link", "MembersOrder", "Message", "Plan",
           "Proof", "Roll", "Signed", "StageReport", "StageResult", "StageStatus", "Wait", "founding_proof",
           "lineage_of", "path_digest", "roll_bytes", "tensor_bytes", "undo_bytes", "views_in",
           "vote_bytes"]  # fmt: skip
