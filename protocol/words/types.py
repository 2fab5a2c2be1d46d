"""The nouns that every other file of the core uses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

HEAD = 0
"""The stage that holds embedding, final norm, LM head, data and loss. Stages 1..S are transformer blocks."""

Handle = int
"""Names a tensor that the driver keeps for the core; the core never sees its bytes."""


class Peer(NamedTuple):
    """One life of one node: libp2p PeerId (base58) and a number drawn at start. A restart is a new peer (rule 1)."""

    id: str
    nonce: int

    def __str__(self) -> str:
        return self.id[-6:]


class Attempt(NamedTuple):
    """One try at a step, ordered by the view that began it and a counter within that view (rule 3)."""

    view: int
    n: int


class Direction(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"


class Rung(StrEnum):
    """How a stage came to its weights; docs/explanation/recovery.md. `initial`: a pure function of
    (seed, stage), or the model that the run begins with."""

    INITIAL = "initial"
    SNAPSHOT = "snapshot"
    KEPT = "kept"
    REPLICA = "replica"
    HEAD = "head"
    SHADOW = "shadow"
    BLEND = "blend"
    COPY = "copy"
    FIRST = "first"
    INTERPOLATE = "interpolate"
    OMIT = "omit"
    """It has none: routes leave the stage out until somebody holds it again."""

    @property
    def spoken(self) -> str:
        """Where the weights come from, for people."""
        return SPOKEN_RUNGS[self]


SPOKEN_RUNGS = {
    Rung.INITIAL: "the first weights",
    Rung.SNAPSHOT: "a snapshot",
    Rung.KEPT: "weights that it still had",
    Rung.REPLICA: "another holder's weights",
    Rung.HEAD: "a kept copy",
    Rung.SHADOW: "a kept copy",
    Rung.BLEND: "a blend of both neighbours' weights",
    Rung.COPY: "a neighbour's weights",
    Rung.FIRST: "the model that the run goes on from",
    Rung.INTERPOLATE: "a blend of the nearest stages' weights",
    Rung.OMIT: "nobody: routes leave it out",
}


@dataclass(frozen=True, slots=True)
class Recovered:
    """A lost stage that came back in a step. `seconds`: from the new view's Begin to the step's commit."""

    stage: int
    rung: Rung
    seconds: float


CREDITED_MAX = 512
"""Peers with totals of their own, and those of one step."""
RELAYS_TOLD_MAX = 8
"""By one member, of one step."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a peer, by its PeerId, gave to one committed step. `visits`: forward and backward passes of a microbatch
    through a stage. `rebuilt`: lost stages that it brought back. `relayed`: bytes of tensors that it carried between
    others. `held`: it held a stage."""

    peer: str
    visits: int
    rebuilt: int
    relayed: int = 0
    held: bool = True


@dataclass(frozen=True, slots=True)
class PartSeen:
    """What a member gave to the piece of a sum that we add up (rule 43). `size`: its norm, of what is usual in the
    group for so many visits; `cosine`: to the sum of the others' parts; `counted`: the share of it that counts.

    Or what it made of its own piece. `size`: how many times as large as our part of that, over what this is in our own
    piece; `cosine`: to our part."""

    peer: Peer
    size: float
    cosine: float
    counted: float


@dataclass(frozen=True, slots=True)
class Credit:
    """What a peer, by its PeerId, gave to the run. `seconds`: of steps in which it held a stage."""

    peer: str
    visits: int
    seconds: float
    rebuilt: int
    relayed: int = 0


class Copied(NamedTuple):
    """A copy of a stage, of `step`, that somebody keeps. `fetched`: bytes that this keeper's copies of the stage have
    taken over the wire, all of them together."""

    stage: int
    step: int
    fetched: int


@dataclass(frozen=True, slots=True)
class Version:
    """Names the weights of a stage: those after committed step `step`.

    `commit` chains the attempts of all commits up to it, so equal versions mean equal history.
    """

    step: int
    commit: str
    attempt: Attempt
    """The attempt that committed `step`; Attempt(-1, 0) for the initial weights."""


class LentCopy(NamedTuple):
    """A copy of a stage that a holder of it has lent to a keeper, by its PeerId. `digest`: of all that travelled,
    hexadecimal."""

    stage: int
    keeper: str
    version: Version
    digest: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole state of a stage, weights and optimiser, on a peer's disk: as it was when `version` was committed.

    `digest`: hash of the state, hexadecimal. `epoch`: of the stage then.
    """

    stage: int
    version: Version
    digest: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RollbackOrder:
    """What the author orders, or a majority of `members`: go back to a snapshot of `step` or of an earlier one (rule
    47). A higher `number` is a later order, and of two with one number the author's is; 0: none was given."""

    number: int = 0
    step: int = 0
    members: bool = False
    binds: bool = True
    """Whoever has not followed it loses to whoever has. False: too few have signed it of those whom we know."""

    @property
    def rank(self) -> tuple[int, bool]:
        """Of two orders the one with the higher rank is the later one."""
        return self.number, not self.members

    @property
    def giver(self) -> str:
        """For people."""
        return "most of the run's voters" if self.members else "the run's author"

    def spoils(self, step: int) -> bool:
        """Whether what was made up to this step, by who has not followed the order, is undone by it."""
        return bool(self.number) and step > self.step


NO_ORDER = RollbackOrder()
INITIAL_ATTEMPT = Attempt(-1, 0)


def initial_version(lineage: str) -> Version:
    """Version of the initial weights of a lineage (step 0)."""
    return Version(0, lineage, INITIAL_ATTEMPT)


def next_version(base: Version, lineage: str, attempt: Attempt, skipped: bool) -> Version:
    """Version after `attempt` of `lineage` committed the step that follows `base`.

    The lineage is part of the chain: two lineages with one parent may both commit the next step as the same attempt.
    """
    text = f"{base.commit}/{lineage}/{base.step + 1}/{attempt.view}.{attempt.n}/{'skip' if skipped else 'step'}"
    return Version(base.step + 1, hashlib.blake2b(text.encode(), digest_size=12).hexdigest(), attempt)


def steps_of(copies: Iterable[tuple[int, Version]]) -> tuple[tuple[int, int], ...]:
    """(stage, step) of each (stage, version)."""
    return tuple((stage, version.step) for stage, version in copies)


def spoken_stage(stage: int) -> str:
    """For people."""
    return "the head" if stage == HEAD else f"stage {stage}"


def names_of(stages: Iterable[int]) -> str:
    """`the head, stage 1 and stage 2`, or `the head and stages 1 to 3`; empty for none."""
    rows, names = list[list[int]](), list[str]()
    for stage in sorted(stages):
        if stage - 1 > HEAD and rows and rows[-1][-1] == stage - 1:
            rows[-1].append(stage)
        else:
            rows.append([stage])
    for row in rows:
        names += [f"stages {row[0]} to {row[-1]}"] if len(row) > 2 else map(spoken_stage, row)
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
