"""The numbers that the core decides with, all from the manifest, with the formulas of those that derive from others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import sqrt

STATE_BYTES_PER_SECOND = 1e6
"""The slowest line on which a stage's state is waited for."""
SHOWN_AT_ONCE = 4
"""Who does a peer's visits again, and three whom the leader asks."""
SWAP_STAGES_MIN = 4
"""Swapped routes need so many block stages: below, the first two and the last two are not four."""
HEAD_KEEPERS = 2
"""So many keep a copy of the head, where there are as many."""
LENT_OF_A_KEEPER = 2
"""Copies of a stage of which is remembered that a keeper was lent them: while it fetches one it has the one before."""
LENT_TOLD = HEAD_KEEPERS * LENT_OF_A_KEEPER
"""Of a stage, in one message."""
LENT_REMEMBERED = 2 * LENT_TOLD
"""Of a stage: the view before had other keepers."""


LIMIT_MOST = 0.4
"""What is half as much again as it should be is found all the same."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run's settings. Every peer of a run has the same; a run id names them."""

    run: str
    stages: int
    """Block stages S; the head is stage 0 on top of them."""
    steps: int
    microbatches: int
    window: int
    """Admitted and unfinished microbatches (rule 27)."""
    replicas: int = 1
    """A stage has at most so many holders; whoever is left over stands by."""
    live_activations: int = 8
    """Beyond this many saved activations a peer recomputes (rule 28)."""
    evaluate_every: int = 0
    """Validate at commits divisible by this; 0: only at the end."""
    evaluation_microbatches: int = 0
    ends: str = "copy"
    """A lost first or last block stage: copy or halt."""
    swap: bool = False
    """Half of the microbatches meet the ends of the pipeline in the other order (CheckFree+)."""
    swapped: str = "copy"
    """With swapped routes, a lost stage 2 or S-1: copy its partner, or blend as elsewhere."""
    weighting: str = "squared-norm"
    """How donors of a blend count; see donor_shares.py."""
    norms: str = "before-clipping"
    optimiser_state: str = "fresh"
    """Of a blended or copied stage: fresh moments, or the donors' blended."""
    clip: float = 1.0
    """What gradients are clipped to, for norms after clipping."""
    head_every: int = 1
    """Copies of the head are refreshed at commits divisible by this; 0: nobody keeps any."""
    shadow_every: int = 0
    """The same for shadows of block stages; 0: none."""
    shadow_encoding: str = "bfloat16"
    rate_factor: float = 1.1
    continued: bool = False
    """The run goes on from a model that exists: a lost stage begins again with that one's weights."""
    omit: bool = False
    """Routes leave a middle stage out that nobody can hold for so long that waiting costs more."""
    snapshot_every: int = 0
    """Each holder keeps a snapshot of its stages on its disk at commits divisible by this; 0: nobody does."""
    rollback_max: int = 0
    """Steps that a swarm which starts again may lose; 0: as many as it must."""
    state_bytes: int = 0
    """Weights and moments of the largest stage."""
    head_state_bytes: int = 0
    """The same of the head."""
    block_state_bytes: int = 0
    """The same of the block stage of which most is trained."""
    sum_bytes: int = 0
    """Of the largest stage's gradient, as its sum travels."""
    gradient_bytes: int = 0
    """Of the largest stage."""
    forward_bytes: int = 0
    """Of one boundary tensor: activations go forward, their gradients backward."""
    backward_bytes: int = 0
    lease_seconds: float = 10.0
    """A peer that was silent for this long is suspected."""
    minority_wait_seconds: float = 60.0
    listed: bool = False
    """Only peers that the manifest lists may join."""
    checks: float = 0.0
    """The share of visits that another holder of their stage does again (rule 42); 0.0: none."""
    check_tolerance: float = 0.05
    """What an honest peer gave to a sum is at most so far from what its visits give done again, as a part of the
    latter's norm: devices, and encodings of sums, differ by less."""
    tensor_tolerance: float = 0.05
    """The same of what it passed on: devices, and encodings of boundary tensors, differ by less."""

    @property
    def stage_count(self) -> int:
        return self.stages + 1

    @property
    def left_out_max(self) -> int:
        """So many block stages routes may leave out at once: a third, so that most of the model is trained."""
        return self.stages // 3 if self.omit else 0

    def may_leave_out(self, stages: Collection[int]) -> bool:
        """Whether routes may leave all of these out at once. The head stays, and so do the first and the last block
        stage, whose work no other stage knows; with swapped routes its partner does, and stays instead."""
        ends = {1: 2, self.stages: self.stages - 1}
        return len(stages) <= self.left_out_max and all(
            0 < stage <= self.stages and (stage not in ends or (self.swap and ends[stage] not in stages))
            for stage in stages
        )

    def limit(self, tolerance: float, stages: int) -> float:
        """How far off an honest peer is at most in what so many stages in a row make: what devices and encodings round
        adds up like noise (docs/reference/liars.md has figures)."""
        return max(tolerance, min(LIMIT_MOST, tolerance * sqrt(stages)))

    def state_bytes_of(self, stage: int) -> int:
        """Weights and moments of this stage, at most."""
        return self.block_state_bytes if stage else self.head_state_bytes

    def received_max(self, visits: int, sums: int) -> int:
        """Bytes that a peer gets from others in a step at most: for each visit an activation and a gradient, and for
        each sum with a group its part of everybody's gradient, and everybody's part of the sum."""
        return visits * (self.forward_bytes + self.backward_bytes) + 2 * sums * self.gradient_bytes

    @property
    def heartbeat_seconds(self) -> float:
        """Five beats fit a lease, so that four may be lost."""
        return self.lease_seconds / 5

    @property
    def check_seconds(self) -> float:
        """How long a finished step waits for a check that gets on: half a lease, so that nobody takes it for idle."""
        return self.lease_seconds / 2

    @property
    def shown_seconds(self) -> float:
        """For so long a peer is asked for the parts that it made its piece of a sum of, or for the tensors of a visit,
        before it counts as one that shows nothing: whoever is silent for a lease has gone by then, and as many as may
        ask at a time get all of them over a slow line."""
        most = max(self.sum_bytes, 2 * (self.forward_bytes + self.backward_bytes))
        return 1.5 * self.lease_seconds + SHOWN_AT_ONCE * most / STATE_BYTES_PER_SECOND

    @property
    def poll_seconds(self) -> float:
        """How long a voter waits for a sign of life of a suspect that it pinged: two beats."""
        return 2 * self.heartbeat_seconds

    @property
    def redial_seconds(self) -> float:
        """A broken link is dialled again this often; a tenth of a lease."""
        return self.lease_seconds / 10

    @property
    def takeover_seconds(self) -> float:
        """D of rule 11: the i-th voter proposes after D (1 + i) of a silent leader."""
        return self.lease_seconds / 5

    @property
    def ballot_seconds(self) -> float:
        """A proposer that got no quorum tries a higher ballot after this."""
        return self.lease_seconds / 2

    @property
    def offer_seconds(self) -> float:
        return self.lease_seconds / 2

    @property
    def second_offer_seconds(self) -> float:
        """A candidate that has not answered for so long is not the only one any more: a tenth of a lease."""
        return self.lease_seconds / 10

    @property
    def resend_seconds(self) -> float:
        """Unacknowledged control messages and boundary tensors are sent again after this."""
        return self.lease_seconds / 4

    @property
    def join_seconds(self) -> float:
        """How long a finished step waits for a learner that has caught up to be Ready as well.

        Behind a holder that reduced alone it is late by six one-way delays (the holder's word, a stream, a request, the
        sum, its Ready) and the gradient's bytes over its line: 0.6 s at 80 ms. Who misses one sum starts from nothing.
        """
        return self.heartbeat_seconds

    @property
    def hand_over_seconds(self) -> float:
        """How long a peer that leaves waits for others to learn one of its stages: an offer, a transfer, a step."""
        return self.install_seconds + 2 * self.lease_seconds

    @property
    def move_seconds(self) -> float:
        """A replica is moved to another stage at most this often, and not sooner after a view."""
        return 6 * self.lease_seconds

    @property
    def found_window_seconds(self) -> float:
        """How long a peer listens for other founders before it founds the run."""
        return min(3.0, self.lease_seconds / 2)

    @property
    def look_for_seconds(self) -> float:
        """How long somebody outside of a view looks for its members."""
        return self.minority_wait_seconds + 3 * self.lease_seconds

    @property
    def restart_wait_seconds(self) -> float:
        """How long a swarm that starts again waits for disks that could bring it further: those who were switched off
        together start within minutes. Twice what a minority waits for the others."""
        return 2 * self.minority_wait_seconds

    @property
    def search_seconds(self) -> float:
        """How often the directory is read while something is missing."""
        return min(1.0, self.lease_seconds / 5)

    @property
    def broken_link_seconds(self) -> float:
        """D of rule 9: how long one link between two living members may stay broken."""
        return self.lease_seconds

    @property
    def stall_seconds(self) -> float:
        """A living peer that does not acknowledge a tensor for so long is stuck; above any queue on a slow link."""
        return max(30.0, 3 * self.lease_seconds)

    @property
    def sum_seconds(self) -> float:
        """A group's sum that takes longer is stuck: as above, and the time of the largest gradient on a slow line."""
        return max(self.stall_seconds, self.gradient_seconds)

    @property
    def gradient_seconds(self) -> float:
        """Of the largest stage, on a slow line."""
        return self.gradient_bytes / STATE_BYTES_PER_SECOND

    @property
    def join_seconds_max(self) -> float:
        """A step never waits longer for a learner, however long others needed: a lease, or six for large gradients."""
        return max(self.lease_seconds, min(self.gradient_seconds, 6 * self.lease_seconds))

    @property
    def task_seconds(self) -> float:
        """A compute task that takes longer has hung."""
        return max(60.0, 6 * self.lease_seconds)

    @property
    def install_seconds(self) -> float:
        """A transfer of a stage's state that takes longer is given up: two minutes at least."""
        return max(120.0, 12 * self.lease_seconds, self.state_bytes / STATE_BYTES_PER_SECOND)
