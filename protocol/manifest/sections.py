"""The sections of a run's manifest: every key with its type, what is allowed, and what it is for.

These lines are the only place where a key is described: the reader checks against them, the template and the error
messages print them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from math import ceil
from typing import Any

from ftnode.protocol.manifest.boundary import BLOCK_BITS, BLOCK_MAX, BoundaryBytes, encoded_bytes
from ftnode.protocol.words.donor_shares import MEASURED, WEIGHTINGS
from ftnode.protocol.words.settings import HEAD_KEEPERS

FORMAT = 11
"""Version of the manifest's format. A key that is added, dropped or changes its meaning makes a new one."""
FORMATS_READ = (2, 3, 4, 5, 6, 7, 8, 9, 10, FORMAT)
"""Formats after 2 added keys and choices; each key says what a manifest without it means."""
FORMAT_OF_IDS = 4
"""Keys that came later count in a run's id only where they change something, so that earlier runs keep theirs."""
LISTED_MAX = 4096
"""Peers that one manifest can list."""
MESSAGE_PATTERN = r"[^\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]{0,280}"
"""One line that looks as it is: without what moves a cursor, turns the direction of writing or is not to be seen."""
PEER_ID_PATTERN = r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}"

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
"""That a run can go on from."""
NUMBER_BYTES = {"float64": 8, "float32": 4}
"""Bytes of one number of weights, gradients and moments, by the name of its type."""
HEAD_COPIES_SHARE = 0.1
"""Of the bytes of a step, at most, go into copies of the head."""
SHADOWS_SHARE = 0.1
"""As many may go into shadows; a manifest that asks for more is refused."""
SHADOW_NUMBER_BYTES = {"bfloat16": 2.0, "int8": 1 + 4 / 256}
"""int8: a scale of 4 bytes for 256 numbers."""
STEPS_MAX = 10_000_000
SEED_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a key may hold: numbers from `low` to `high`; text that is one of `choices` or that `pattern` matches."""

    about: str
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    pattern: str = ""
    pattern_name: str = ""
    later: tuple[tuple[str, int], ...] = ()
    """Choices that came later than their key, each with its format."""

    def since(self, value: object) -> int:
        """The format that this value came with, as a choice; 0: with its key."""
        return dict(self.later).get(value, 0) if isinstance(value, str) else 0


def key(
    about: str, low: float = 0, high: float = 0, *choices: str, pattern: str = "", pattern_name: str = "",
    since: int = 0, earlier: Any = MISSING, later: dict[str, int] | None = None,
) -> Any:  # fmt: skip
    """A key of a section. Typed Any because a dataclass field takes the type of its annotation.

    `since`: the format that it came with; `earlier`: what it was before there was a choice. `later`: further choices,
    each with the format that it came with.
    """
    further = tuple((later or {}).items())
    choices = (*choices, *(choice for choice, _ in further))
    allowed = Allowed(about, low, high, choices, pattern, pattern_name, further)
    return field(default=earlier, kw_only=earlier is not MISSING, metadata={"allowed": allowed, "since": since})


@dataclass(frozen=True, slots=True)
class Run:
    name: str = key(
        "For people; shown by `ftnode status`.",
        pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
        pattern_name="1 to 64 letters, digits, dots, dashes and underscores",
    )
    seed: int = key("Fixes the initial weights and the order of the data.", 0, SEED_MAX)
    steps: int = key("Optimiser steps of the whole run.", 1, STEPS_MAX)
    author: str = key(
        "PeerId of the key that signs this manifest; only that key can change who may join. Empty: nobody signs it.",
        0, 0, "", pattern=PEER_ID_PATTERN, pattern_name="a PeerId (12D3KooW…)", since=4, earlier="",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Membership:
    """Who may join, and what the author tells everybody. Not part of the run's id, so that a signed update lets more
    peers into a run that goes on."""

    join: str = key(
        "open: everybody; listed: the peers below; vouched: these, and those whom they vouch for.",
        0, 0, "open", "listed", since=4, earlier="open", later={"vouched": 11},
    )  # fmt: skip
    peers: tuple[str, ...] = key(
        "PeerIds of volunteers (ftnode id) that may join when join is listed, and vouch when it is vouched.",
        0, LISTED_MAX, pattern=PEER_ID_PATTERN, pattern_name="PeerIds (12D3KooW…)", since=4, earlier=(),
    )  # fmt: skip
    revision: int = key(
        "The highest one counts; `ftnode run sign` raises it when this section has changed.",
        0, 2**31 - 1, since=4, earlier=0,
    )  # fmt: skip
    message: str = key(
        "Shown to volunteers and watchers; `ftnode run announce` writes it.",
        0, 0, "", pattern=MESSAGE_PATTERN, pattern_name="one line of at most 280 characters", since=8, earlier="",
    )  # fmt: skip
    vouch_depth: int = key(
        "1: only the peers above vouch for others; 2: those whom they vouch for do as well.", 1, 2, since=11, earlier=1
    )  # fmt: skip
    vouched_at_once: int = key(
        "Peers that one volunteer may vouch for at a time. A place is free again a day after its voucher has ended.",
        1, 64, since=11, earlier=4,
    )  # fmt: skip
    vouched_a_day: int = key("Of these, on one day.", 1, 64, since=11, earlier=2)
    rollback_order: int = key(
        "The revision in which the author last ordered to undo steps, which `ftnode run rollback` writes; 0: never.",
        0, 2**31 - 1, since=11, earlier=0,
    )  # fmt: skip
    rollback_to: int = key(
        "The swarm goes back to a snapshot of this step or of an earlier one, once for each order.",
        0, 10_000_000, since=11, earlier=0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """LLaMA-style: RMSNorm, RoPE, SwiGLU."""

    vocabulary: int = key("Tokens; bytes are 256.", 256, 1_000_000)
    dim: int = key("Width of the residual stream.", 8, 16384)
    heads: int = key("Attention heads; dim / heads is even where head_dim is 0.", 1, 256)
    layers: int = key("Transformer blocks of the whole model.", 1, 512)
    context: int = key("Tokens of one sequence.", 2, 131072)
    hidden: int = key("Width of the feed-forward layer.", 8, 131072)
    rope_theta: float = key("Base of the rotary position embedding.", 1.0, 1e9)
    norm_eps: float = key("Keeps RMSNorm from dividing by zero.", 1e-12, 1e-2)
    precision: str = key(
        "Numbers of weights, gradients and the optimiser. float64 is for comparing runs: the order of sums hardly "
        "matters to it, and it takes twice the memory.", 0, 0, "float32", "float64", since=3,
        earlier="float32",
    )  # fmt: skip
    subspace: int = key(
        "Of the dim coordinates of the residual stream, blocks write to so many, and only these travel; the others are "
        "fixed for each token. 0: all are written to.", 0, 16384, since=7, earlier=0,
    )  # fmt: skip
    kv_heads: int = key(
        "Heads of keys and of values, each for equally many attention heads; 0: one for each.",
        0, 256, since=9, earlier=0,
    )  # fmt: skip
    head_dim: int = key("Numbers of an attention head, even; 0: dim / heads.", 0, 1024, since=9, earlier=0)
    tied: bool = key("The embedding is the LM head, too.", since=9, earlier=False)
    qkv_bias: bool = key("Queries, keys and values have biases, as in Qwen 2.", since=9, earlier=False)
    rope_scaling: str = key(
        "How rotary positions are stretched for a longer context.",
        0, 0, "none", "linear", "llama3", "yarn", since=9, earlier="none",
    )  # fmt: skip
    rope_factor: float = key("By how much.", 1.0, 1e4, since=9, earlier=1.0)
    rope_original: int = key(
        "Context of the first training, for llama3 and yarn.", 0, 1 << 24, since=9, earlier=0
    )  # fmt: skip
    rope_low: float = key(
        "llama3: low_freq_factor; yarn: beta_slow.", 0.0, 1e6, since=9, earlier=0.0
    )  # fmt: skip
    rope_high: float = key(
        "llama3: high_freq_factor; yarn: beta_fast.", 0.0, 1e6, since=9, earlier=0.0
    )  # fmt: skip
    train: str = key(
        "What of the model that the run goes on from is trained: all, norms+mlp, or last N layers with the final norm. "
        "The rest stays as it was.", 0, 0, "all", pattern=r"norms\+mlp|last [1-9][0-9]{0,2} layers?",
        pattern_name="norms+mlp or last N layers", since=10, earlier="all",
    )  # fmt: skip
    lora: int = key(
        "Rank of the adapters that are trained in place of its own weights (LoRA); 0: none.",
        0, 1024, since=10, earlier=0,
    )  # fmt: skip
    lora_alpha: int = key(
        "What an adapter gives is multiplied by lora_alpha / lora.", 0, 65536, since=10, earlier=0
    )  # fmt: skip

    @property
    def trains_all(self) -> bool:
        """Nothing is frozen."""
        return self.train == "all" and not self.lora

    @property
    def last_layers(self) -> int:
        """How many layers are trained, where it is the last ones; else 0."""
        return int(self.train.split()[1]) if self.train.startswith("last ") else 0

    @property
    def block_parameters(self) -> int:
        """Of one block."""
        qkv = self.mixed + 2 * self.keys
        reads = qkv + 2 * self.hidden + 2
        return self.dim * reads + self.stream * (self.mixed + self.hidden) + self.qkv_bias * qkv

    @property
    def trained_vectors(self) -> int:
        """Of one block that is trained: numbers of norms and biases."""
        if self.lora:
            return 0
        biases = self.qkv_bias and self.train != "norms+mlp"
        return 2 * self.dim + biases * (self.mixed + 2 * self.keys)

    @property
    def trained_matrices(self) -> int:
        """Of one block that is trained: numbers of matrices, or of their adapters."""
        if self.lora:
            qkv, output = 3 * self.dim + self.mixed + 2 * self.keys, self.mixed + self.dim
            return self.lora * (qkv + output + 3 * (self.dim + self.hidden))
        if self.train == "norms+mlp":
            return 3 * self.dim * self.hidden
        return self.block_parameters - self.trained_vectors

    @property
    def mixed(self) -> int:
        """Numbers of all attention heads together."""
        return self.heads * (self.head_dim or self.dim // self.heads)

    @property
    def keys(self) -> int:
        """Numbers of a token's keys, and of its values."""
        return self.mixed // self.heads * (self.kv_heads or self.heads)

    @property
    def stream(self) -> int:
        """Coordinates of the residual stream that blocks write to, and that travel."""
        return self.subspace or self.dim


@dataclass(frozen=True, slots=True)
class Data:
    kind: str = key(
        "standard-library: this Python's own sources; files: what each volunteer passes with --data; shards: what "
        "`ftnode data build` made, which holders of the head get from each other.",
        0, 0, "standard-library", "files", "shards",
    )  # fmt: skip
    sha256: str = key(
        "Hash of the corpus; of shards, that of their index. A peer with another corpus cannot hold the head.",
        pattern=r"[0-9a-f]{64}",
        pattern_name="64 hexadecimal digits",
    )


@dataclass(frozen=True, slots=True)
class Optimiser:
    """One per stage, with decoupled weight decay."""

    kind: str = key(
        "adam; muon: matrices of blocks by Muon, everything else by Adam. Muon takes fewer steps, one number less per "
        "weight of a matrix, and more arithmetic.", 0, 0, "adam", "muon", since=6, earlier="adam",
    )  # fmt: skip
    learning_rate: float = key("After the warm-up.", 1e-9, 1.0)
    betas: tuple[float, float] = key("Adam's two decay rates.", 0.0, 0.999999)
    epsilon: float = key("Adam's guard against dividing by zero.", 1e-16, 1e-2)
    weight_decay: float = key("Per step, times the learning rate.", 0.0, 1.0)
    warmup_steps: int = key("The learning rate rises linearly over these.", 0, 10_000_000)
    decay: str = key("How the learning rate falls after the warm-up.", 0, 0, "cosine", "constant")
    minimum_factor: float = key("The cosine ends at this share of the learning rate.", 0.0, 1.0)
    clip: float = key("Largest gradient norm of one stage.", 1e-6, 1e6)
    matrix_learning_rate: float = key(
        "Of matrices that Muon updates, which it moves as far as Adam would at this rate; 0: learning_rate.",
        0.0, 1.0, since=6, earlier=0.0,
    )  # fmt: skip
    momentum: float = key("Muon's decay rate.", 0.0, 0.999999, since=6, earlier=0.95)


@dataclass(frozen=True, slots=True)
class Batch:
    microbatches: int = key("Microbatches of one step.", 1, 1024)
    sequences: int = key("Sequences of one microbatch.", 1, 4096)


@dataclass(frozen=True, slots=True)
class Pipeline:
    stages: int = key("Block stages; the layers are divided equally. The head is one more.", 1, 256)
    replicas: int = key("Holders of one stage, at most; further peers stand by.", 1, 64, since=3, earlier=1)
    window: int = key("Microbatches on their way at once.", 1, 1024)
    live_activations: int = key("Beyond this many on one stage, activations are computed again.", 1, 1024)
    boundary: str = key(
        "Numbers that travel between stages: activations, and gradients where the next key is empty. int8 and int4 "
        "have a scale for each block. With model.precision float64, float32 stands for float64.",
        0, 0, "float32", "bfloat16", later={"int8": 6, "int4": 6},
    )  # fmt: skip
    boundary_gradients: str = key(
        "Numbers of the gradients that travel back; empty: as of the activations.",
        0, 0, "", "float32", "bfloat16", "int8", "int4", since=6, earlier="",
    )  # fmt: skip
    swap: bool = key(
        "Every other microbatch meets the first two and the last two stages in the other order (CheckFree+), so that "
        "either can take the other's place. Needs 4 stages; slows the learning."
    )
    sums: str = key(
        "Numbers of gradients that the holders of one stage add up. int8 and int4 have a scale for each block, and "
        "take a quarter and an eighth of the bytes of float32; exact: those of the model.",
        0, 0, "exact", "int8", "int4", since=7, earlier="exact",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recovery:
    ends: str = key(
        "A lost first or last block stage: copy its neighbour, or halt the run.",
        0, 0, "copy", "halt",
    )  # fmt: skip
    swapped: str = key(
        "With pipeline.swap, a lost second or last but one stage: copy its partner, or blend its neighbours.",
        0, 0, "copy", "blend",
    )  # fmt: skip
    weighting: str = key("How the donors of a blend count, by their gradient norms.", 0, 0, *WEIGHTINGS)
    norms: str = key("Those norms, before or after clipping.", 0, 0, *MEASURED)
    optimiser: str = key("Moments of a blended or copied stage: new, or blended as well.", 0, 0, "fresh", "blended")
    head_every: int = key(
        "Steps between two copies of the head to the holders of the first and last stage; 0: as often as 10 % of the "
        "bytes of a step allow.", 0, 1_000_000,
    )  # fmt: skip
    shadow_every: int = key(
        "Steps between two compressed copies of each stage to a peer of another one, rather not an adjacent one; 0: "
        "none. Takes at most 10 % of the bytes of a step.", 0, 1_000_000,
    )  # fmt: skip
    shadow_encoding: str = key("Numbers of those copies.", 0, 0, "bfloat16", "int8")
    rate_factor: float = key("A rebuilt stage learns faster by this factor.", 0.1, 10.0)
    omit: bool = key(
        "Go on without a middle stage that nobody can hold, for as long as that costs less than to wait for somebody. "
        "Two thirds of the stages stay.", since=10, earlier=False,
    )  # fmt: skip
    minority_wait_seconds: float = key(
        "Survivors who hear too few of the others for a vote go on alone after this.", 0.1, 86400.0
    )
    snapshot_every: int = key(
        "Steps between two snapshots that volunteers keep of their own stages, each on its own disk, for a swarm that "
        "is switched off as a whole; 0: none.", 0, 10_000_000, since=5, earlier=0,
    )  # fmt: skip
    rollback_max: int = key(
        "Steps that a swarm may lose when it starts again from snapshots; 0: as many as it must.",
        0, 10_000_000, since=5, earlier=0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Liveness:
    lease_seconds: float = key("A peer that was silent for this long is suspected.", 0.5, 600.0)


@dataclass(frozen=True, slots=True)
class Evaluation:
    every: int = key("Steps between two validations; 0: only at the end.", 0, 10_000_000)
    microbatches: int = key("Microbatches of one validation.", 0, 1024)


@dataclass(frozen=True, slots=True)
class Start:
    """The model that the run goes on from; without one, first weights are random."""

    weights: str = key(
        "Hash of the index of its weights, layer by layer (`ftnode run init --from`). Empty: first weights are random.",
        0, 0, "", pattern=r"[0-9a-f]{64}", pattern_name="64 hexadecimal digits", since=9, earlier="",
    )  # fmt: skip
    tokenizer: str = key(
        "Hash of its tokenizer.json.",
        0, 0, "", pattern=r"[0-9a-f]{64}", pattern_name="64 hexadecimal digits", since=9, earlier="",
    )  # fmt: skip
    architecture: str = key("What transformers calls it.", 0, 0, "", *ARCHITECTURES, since=9, earlier="")
    positions: int = key(
        "The longest sequence that it was made for; an export says so. 0: model.context.",
        0, 1 << 24, since=9, earlier=0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trust:
    """What holders of a stage do again of each other's work."""

    checks: float = key(
        "The share of visits that another holder of their stage does again, by lot, to see whether what they passed "
        "on and gave to its gradient is right; 0: none.", 0.0, 1.0, since=11, earlier=0.0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a run fixes. Equal manifests, whatever their comments and order, have the same `run_id`."""

    run: Run
    model: Model
    data: Data
    optimiser: Optimiser
    batch: Batch
    pipeline: Pipeline
    recovery: Recovery
    liveness: Liveness
    evaluation: Evaluation
    membership: Membership = field(default_factory=Membership)
    start: Start = field(default_factory=Start)
    trust: Trust = field(default_factory=Trust)

    @property
    def run_id(self) -> str:
        """32 hexadecimal digits over the format and every value but `membership`, independent of how the text was
        written. A key newer than FORMAT_OF_IDS counts when it says more than its absence."""
        return hashlib.blake2b(_canonical(self, leave_out="membership"), digest_size=16).hexdigest()

    @property
    def signed_bytes(self) -> bytes:
        """What the author's signature covers: the format and every value."""
        return b"ftnode manifest\n" + _canonical(self)

    @property
    def boundary_encodings(self) -> tuple[str, str]:
        """Of boundary tensors, forward and backward. float32 stands for the model's own precision."""
        chosen = self.pipeline.boundary, self.pipeline.boundary_gradients or self.pipeline.boundary
        forward, backward = (self.model.precision if name == "float32" else name for name in chosen)
        return forward, backward

    @property
    def boundary_bytes(self) -> BoundaryBytes:
        """Of what crosses between two stages: sequences × context rows of `model.stream` numbers, and their tokens."""
        model, rows = self.model, self.batch.sequences * self.model.context
        vocabulary = model.vocabulary if model.subspace else 0
        return BoundaryBytes.encoded(self.boundary_encodings, rows, model.stream, vocabulary)

    @property
    def head_parameters(self) -> int:
        """That are trained: embedding, final norm, LM head unless it is the embedding; of a part of a model the norm,
        and of adapters none."""
        model = self.model
        if not model.trains_all:
            return 0 if model.lora else model.dim
        return model.vocabulary * (model.stream + model.dim * (not model.tied)) + model.dim

    @property
    def gradient_bytes(self) -> int:
        """Of the largest stage."""
        return NUMBER_BYTES[self.model.precision] * max(self.head_parameters, self.stage_parameters)

    @property
    def sum_bytes(self) -> int:
        """Of the gradient of the largest stage as it travels, without frames."""
        return self._sum_bytes_of(max(self.head_parameters, self.stage_parameters))

    @property
    def shown_parts_bytes(self) -> int:
        """Of a block stage's sum, what a holder keeps at most to show it to others, where three or more reduce
        together: the others' parts of its own piece, those of the piece of whom it checks, and its own part of that.
        Two holders and who learns the stage are three."""
        if not self.trust.checks or self.pipeline.replicas < 2:
            return 0
        return 2 * self._sum_bytes_of(self.stage_parameters)

    def _sum_bytes_of(self, numbers: int) -> int:
        if self.pipeline.sums not in BLOCK_BITS:
            return NUMBER_BYTES[self.model.precision] * numbers
        return encoded_bytes(self.pipeline.sums, ceil(numbers / BLOCK_MAX), BLOCK_MAX)

    @property
    def head_state_bytes(self) -> int:
        """Weights, and both of Adam's moments."""
        return 3 * NUMBER_BYTES[self.model.precision] * self.head_parameters

    @property
    def stage_state_bytes(self) -> int:
        """Of one block stage: weights, and their moments, of which Muon has one for each matrix."""
        halved = self.optimiser.kind == "muon" and not self.model.lora
        spared = self.trained_layers * self.model.trained_matrices if halved else 0
        return NUMBER_BYTES[self.model.precision] * (3 * self.stage_parameters - spared)

    @property
    def state_bytes(self) -> int:
        """Of the largest stage."""
        return max(self.head_state_bytes, self.stage_state_bytes)

    @property
    def stage_parameters(self) -> int:
        """That are trained of the block stage with most of them."""
        return self.trained_layers * (self.model.trained_vectors + self.model.trained_matrices)

    @property
    def trained_layers(self) -> int:
        """Of the block stage with most of them."""
        each = self.model.layers // self.pipeline.stages
        return min(each, self.model.last_layers or each)

    @property
    def shadow_bytes(self) -> int:
        """Of one block stage's compressed copy; 0 without shadows."""
        each = SHADOW_NUMBER_BYTES[self.recovery.shadow_encoding] if self.recovery.shadow_every else 0.0
        return ceil(each * self.stage_parameters)

    @property
    def shadow_every_min(self) -> int:
        """Steps between two copies at which all shadows take SHADOWS_SHARE of the bytes of these steps, or less."""
        return max(1, ceil(self.pipeline.stages * self.shadow_bytes / (SHADOWS_SHARE * self.step_bytes)))

    @property
    def copies_bytes(self) -> tuple[int, int]:
        """What a peer may keep of others' stages: (per block stage that it holds, and once).

        For each of its block stages it may keep one shadow; with the first or the last, the head and its moments. While
        a new copy comes, the old one stays.
        """
        return 2 * self.shadow_bytes, 2 * self.head_state_bytes

    @property
    def step_bytes(self) -> int:
        """Bytes of all boundary tensors of one step, both directions."""
        return (self.pipeline.stages + 1) * self.batch.microbatches * self.boundary_bytes.both

    @property
    def head_every(self) -> int:
        """Steps between two copies of the head: `recovery.head_every`, or so many that two times its weights and
        moments are at most HEAD_COPIES_SHARE of the bytes of these steps. 0: nobody keeps any, since nothing of it is
        trained."""
        if not self.head_state_bytes:
            return 0
        copies = min(HEAD_KEEPERS, self.pipeline.stages) * self.head_state_bytes
        return self.recovery.head_every or max(1, ceil(copies / (HEAD_COPIES_SHARE * self.step_bytes)))

    @property
    def tokens_per_step(self) -> int:
        return self.batch.microbatches * self.batch.sequences * self.model.context

    def slots(self, hold: int) -> int:
        """Boundary tensors that a peer with `hold` stages can have at once.

        Per stage and step: M received and M kept forward, the same backward (rule 27), and the head is visited twice,
        which makes it two stages. The next step's tensors may come before its Begin, and a validation's forward ones
        with them. 8 more are for weights in transfer, 8 for tensors of others whose visits are done again, and 8 for
        those that one sees for somebody else.
        """
        per_visit = 2 * 4 * self.batch.microbatches + 2 * self.evaluation.microbatches
        return (hold + 1) * per_visit + 8 + (16 if self.trust.checks else 0)


def _canonical(manifest: Manifest, leave_out: str = "") -> bytes:
    values: dict[str, Any] = {name: found for name, found in asdict(manifest).items() if name != leave_out}
    written = FORMAT_OF_IDS
    for section, found in list(values.items()):
        for entry in fields(getattr(manifest, section)):
            if entry.metadata["since"] > FORMAT_OF_IDS:
                if found[entry.name] == entry.default:
                    del found[entry.name]
                else:
                    written = max(written, entry.metadata["since"])
            elif entry.metadata["allowed"].later:
                written = max(written, entry.metadata["allowed"].since(found[entry.name]))
        if not found:
            del values[section]
    values["format"] = written
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
