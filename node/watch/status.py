"""What a node tells watchers: the data, its encoding, and the server side of `/ftnode/status/1`.

A watcher sends a request frame and gets one reply frame, as often as it likes on one stream. A frame is a 4-byte
big-endian length and msgpack: the request `{"format": 1}`, the reply a `SwarmStatus` by field names. Readers ignore
names that they do not know, so that fields can be added; `format` changes when one changes its meaning.

A bootstrap peer takes part in no run. It answers with an empty `run` and with `members`: peers that announced a run
in the directory (`directory_records.RUNS_KEY`), and the watcher asks one of those.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

import msgpack
import trio

from ftnode.node.home.name_card import read_name
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import StreamHandler, at_most
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.words.codec import TEXT_MAX, reader, shown
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

STATUS_PROTOCOL = "/ftnode/status/1"
FORMAT = 1
REQUEST_BYTES_MAX = 256
REQUEST_LIMITS = Limits(size=REQUEST_BYTES_MAX, entries=32)
REPLY_BYTES_MAX = 1 << 20
REPLY_LIMITS = Limits(size=REPLY_BYTES_MAX, entries=256)
"""Later versions may say more."""
COMMITS_MAX = 600
"""Points of the curve, and entries of any other list; a terminal is narrower."""
DETAILS = (
    "commits", "recoveries", "peers", "credits", "copies", "stages", "doubts", "convicted", "summaries", "alarms",
)  # fmt: skip
"""What a status does without where it would be too long, in this order."""
LOSS_MAX = 700.0
"""Beyond, its perplexity is no float any more."""
IDLE_SECONDS = 60.0
"""A watcher that asks nothing for so long is hung up on."""
WRITE_SECONDS = 10.0
POLL_SECONDS_MIN = 0.1
WATCHERS_MAX = 32
STREAMS_EACH = 4
"""Of one peer, so that nobody alone keeps all others from looking."""


@dataclass(frozen=True, slots=True)
class StageRow:
    """One holder of one stage. A vacant stage has a row with an empty `peer`."""

    stage: int
    peer: str
    state: str
    epoch: int
    step: int
    """Last applied."""
    accumulated: int
    """Microbatches of the step in progress."""
    queue: int
    age: float
    """Seconds since this was heard."""
    tokens_per_second: float | None = None
    """What it can do there by itself, by the time that its compute takes for a microbatch."""


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage, all its holders together."""

    stage: int
    holders: int
    epoch: int
    state: str
    step: int
    """Last applied, of the holder that is furthest."""
    tokens_per_second: float | None
    """What its holders can do together."""
    queue: int
    """Microbatches that wait at its holders."""
    step_age: float | None
    """Seconds since its step was last seen to move."""
    reason: str
    """Why it stalls; empty while it works."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One peer of the swarm as the speaker knows it."""

    peer: str
    role: str
    """leader, holder, learner, standby or bootstrap."""
    stages: tuple[int, ...]
    addresses: tuple[str, ...]
    """Where it says that it can be dialled, without /p2p."""
    path: str
    """From the speaker to it: self, direct, punched, relayed or none."""
    latency: float | None
    """Seconds of a question and its answer between the speaker and it."""
    version: str
    """Empty when it did not say."""
    age: float | None
    """Seconds since it was heard."""
    computed: float | None = None
    """Share of its last minute, 0 to 1; so are the next three. None where it did not say."""
    sent: float | None = None
    """Tensors of its were on their way; may overlap with the one before."""
    waited: float | None = None
    """Neither."""
    line_full: float | None = None
    """It had more to send than its line took."""
    line_up: float | None = None
    """Bytes a second that its line took then."""


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """A stage that was lost and filled again; `seconds` None while it is not. One of before the speaker's time has
    `epoch` -1 and empty `lost` and `newcomer`."""

    stage: int
    step: int
    rung: str
    epoch: int
    lost: str
    newcomer: str
    reason: str
    seconds: float | None
    bytes_fetched: int = 0
    """0 when nobody who holds the stage says."""
    validation_before: float | None = None
    """The last one before the interrupted step, nats per token."""
    validation_after: float | None = None
    """Of the weights after that step, which is evaluated out of turn."""


@dataclass(frozen=True, slots=True)
class CopyRow:
    """A copy of a stage, as of `step`, that `peer` keeps; `bytes_fetched` for this one and those before it."""

    stage: int
    peer: str
    step: int
    bytes_fetched: int


@dataclass(frozen=True, slots=True)
class DoubtRow:
    """What a member gave to the sum of a stage, or passed on to it, in a step was unlike what others gave: why, in
    words."""

    peer: str
    stage: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class ConvictedRow:
    """A volunteer that lied in a step: what was found, in words, and who has signed it, the accuser first."""

    peer: str
    step: int
    reason: str
    signed_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UndoVotesRow:
    """So many voters want the run to roll back to this step; `needed`: how many are an order."""

    step: int
    votes: int
    needed: int


@dataclass(frozen=True, slots=True)
class UndigestedRow:
    """A place of the speaker's code that messages of peers have broken, `count` of them, on this protocol."""

    protocol: str
    place: str
    count: int


@dataclass(frozen=True, slots=True)
class CreditRow:
    """What a peer gave to the run; all those without a row together are one with an empty `peer`."""

    peer: str
    visits: int
    """Passes of a microbatch through a stage, forward and backward, in committed steps."""
    seconds: float
    """Of steps in which it held a stage."""
    rebuilt: int
    """Lost stages that it brought back."""
    name: str = ""
    """As it calls itself."""
    name_card: str = ""
    """The peer's signature; a name without one is not read."""
    relayed_bytes: int = 0
    """Of tensors of committed steps, carried between others who have no direct connection."""


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """One committed step, for curves."""

    step: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Member:
    """A peer that takes part in a run, and where it can be dialled (without /p2p)."""

    run: str
    name: str
    peer: str
    addresses: tuple[str, ...]
    words: str = ""
    """What it says of its run, signed by itself (told_on.py)."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who answers."""

    peer: str
    version: str
    device: str
    role: str
    """volunteer or bootstrap."""
    reach: str = ""
    """Whether others can dial it, as it found out by asking; empty when it does not know yet."""


@dataclass(frozen=True, slots=True)
class SwarmStatus:
    """A run as one node sees it. Losses are nats per token; None where nothing is known yet."""

    speaker: Speaker
    run: str = ""
    name: str = ""
    step: int = 0
    """Last committed."""
    steps: int = 0
    loss: float | None = None
    validation: float | None = None
    tokens_per_second: float | None = None
    leader: str = ""
    lineage: str = ""
    view: int = -1
    state: str = ""
    waiting: str = ""
    """What the run waits for; empty when it works."""
    stages: tuple[StageRow, ...] = ()
    standbys: tuple[str, ...] = ()
    recoveries: tuple[RecoveryRow, ...] = ()
    commits: tuple[CommitPoint, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    """Of the head and, with shadows, of block stages."""
    skipped_steps: int = 0
    """Of the commits that this node knows."""
    members: tuple[Member, ...] = ()
    validation_step: int | None = None
    perplexity: float | None = None
    """e to the validation loss, per token."""
    eta_seconds: float | None = None
    """To the last step (time_left.py); None while it does not train."""
    volunteers: int = 0
    """Holders, learners and those who stand by."""
    commit_age: float | None = None
    """Seconds since the speaker heard of the newest commit."""
    clock: float | None = None
    """The speaker's wall clock, seconds since 1970 UTC."""
    trouble: str = ""
    """What the speaker itself waits for, though its run may go on; empty when it lacks nothing."""
    cut_off: int = 0
    """Parts of sums that the speaker has added up, and that counted for less: they were far larger than the group's."""
    doubts: tuple[DoubtRow, ...] = ()
    """Newest first: whose parts looked unlike the others'. Nobody is accused by that."""
    convicted: tuple[ConvictedRow, ...] = ()
    """Newest first: who was found to lie, by words that others have signed and the speaker has verified."""
    undigested: tuple[UndigestedRow, ...] = ()
    """Newest first: what messages of peers have made the speaker raise, and nobody thought of."""
    summaries: tuple[StageSummary, ...] = ()
    peers: tuple[PeerRow, ...] = ()
    limiting_peer: str = ""
    """Whom the others wait for most, by what `peers` say of their time; empty where nobody stands out."""
    limited_by: str = ""
    """Its line or its device."""
    revision: int = 0
    """Of the manifest that the speaker works by: how often its author has changed what may be changed."""
    rollback_ordered: int | None = None
    """The step that the author or members have ordered to roll back to, last; None: never."""
    rollback_by: str = ""
    """Who gave that order: author or members; empty: nobody."""
    rollback_number: int = 0
    """Of that order; later ones have higher ones. The author's has that of the manifest's revision."""
    rollback_votes: tuple[UndoVotesRow, ...] = ()
    """What voters want that is no order yet."""
    rollback_went_to: int | None = None
    """The step of the snapshots that the run went on from by that order, at most; None while it has not."""
    rollback_trouble: str = ""
    """Where the speaker leads the run: why nothing has come of the order."""
    announcement: str = ""
    """What the author says to everybody. No peer is believed here: a watcher writes what it found to be signed."""
    alarms: tuple[str, ...] = ()
    """Stages in danger, and stages whose loss is not made good yet, in words; the most urgent first."""
    credits: tuple[CreditRow, ...] = ()
    """Most visits first."""
    credits_step: int = 0
    """All steps up to this one are counted there."""
    plan: str = ""
    """Where the speaker leads the run: what it last chose of who should hold what, over what, and with which numbers.
    """
    told_by: str = ""
    """PeerId of a meeting point that told this on, signed by the speaker: no member could be reached. No peer is
    believed here: a watcher writes what it found to be signed (told_on.py)."""
    told_age: float | None = None
    """Seconds since the speaker signed it, by the watcher's clock; None where the speaker itself answered."""
    format: int = FORMAT


def perplexity_of(loss: float | None) -> float | None:
    """e to a loss in nats per token; None where there is none, or none that a number can hold."""
    return math.exp(loss) if loss is not None and loss < LOSS_MAX else None


def to_mapping(status: SwarmStatus) -> dict[str, Any]:
    """By field names, plain values only: what `ftnode status --json` prints."""
    return asdict(status)


def encode_status(status: SwarmStatus) -> bytes:
    """As `decode_status` takes it: texts and lists within its limits, and of what is larger altogether only the rest,
    without DETAILS. Much of a status is in others' words."""
    plain: dict[str, Any] = _within_limits(status)
    data: bytes = msgpack.packb(plain, use_bin_type=True)
    for name in DETAILS:
        if len(data) <= REPLY_BYTES_MAX:
            break
        plain[name] = ()
        data = msgpack.packb(plain, use_bin_type=True)
    return data


def _within_limits(value: Any) -> Any:
    """Plain values, dataclasses by field names."""
    if isinstance(value, str):
        return value[:TEXT_MAX]
    if isinstance(value, tuple):
        return [_within_limits(item) for item in value[:COMMITS_MAX]]
    if is_dataclass(value):
        return {field.name: _within_limits(getattr(value, field.name)) for field in fields(value)}
    return value


def decode_status(data: bytes) -> SwarmStatus:
    """Raises PeerError for what is no status of this format."""
    return from_mapping(decode(data, REPLY_LIMITS))


def from_mapping(found: object) -> SwarmStatus:
    """The inverse of `to_mapping`. Raises PeerError."""
    if not isinstance(found, Mapping) or found.get("format") != FORMAT:
        theirs = found.get("format") if isinstance(found, Mapping) else None
        raise PeerError(f"a status of format {shown(theirs)}, this ftnode reads format {FORMAT}")
    status = replace(cast(SwarmStatus, _read(SwarmStatus, found)), announcement="", told_by="", told_age=None)
    return replace(status, credits=tuple(map(_with_own_name, status.credits))) if status.credits else status


def _with_own_name(row: CreditRow) -> CreditRow:
    """Here, so that whoever reads a status gets no name that its peer did not sign."""
    return row if not row.name or read_name(row.peer, row.name, row.name_card) else replace(row, name="", name_card="")


def _read(kind: Any, value: Any) -> Any:
    """`value` as `kind`, where dataclasses are mappings by field name; the codec checks everything else."""
    if get_origin(kind) is tuple and is_dataclass(get_args(kind)[0]):
        if not isinstance(value, list | tuple) or len(value) > COMMITS_MAX:
            raise PeerError("a status with a list that is none, or too long")
        return tuple([_read(get_args(kind)[0], item) for item in value])
    if not is_dataclass(kind):
        return reader(kind)(list(value) if isinstance(value, tuple) else value)
    if not isinstance(value, Mapping):
        raise PeerError(f"a status whose {getattr(kind, '__name__', kind)} is no mapping")
    return kind(**{name: _read(hint, value[name]) for name, hint in _fields(kind, frozenset(value))})  # type: ignore[operator]


def _fields(kind: Any, present: frozenset[str]) -> list[tuple[str, Any]]:
    """(name, type) of those fields that are to be read. Raises PeerError when one without a default is missing."""
    hints = _hints(kind)
    for field in fields(kind):
        if field.name not in present and field.default is MISSING:
            raise PeerError(f"a status without {field.name}")
    return [(name, hint) for name, hint in hints.items() if name in present]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def status_handler(snapshot: Callable[[], SwarmStatus]) -> StreamHandler:
    """What to give to `P2pd.serve(STATUS_PROTOCOL, ...)`. More than WATCHERS_MAX at once are hung up on."""

    newest: list[tuple[float, bytes]] = []

    def encoded() -> bytes:
        """The same for all who ask at the same time."""
        now = trio.current_time()
        if not newest or now - newest[0][0] >= POLL_SECONDS_MIN:
            newest[:] = [(now, encode_status(snapshot()))]
        return newest[0][1]

    async def handle(_peer: str, stream: trio.SocketStream) -> None:
        await serve_status(stream, encoded)

    return at_most(WATCHERS_MAX, handle, STREAMS_EACH)


async def serve_status(stream: trio.abc.Stream, encoded: Callable[[], bytes]) -> None:
    """Answer one watcher with the newest status until it goes; see `serve_requests`."""
    await serve_requests(stream, lambda _: encoded(), POLL_SECONDS_MIN)


async def serve_requests(
    stream: trio.abc.Stream, answer: Callable[[dict[Any, Any]], bytes], seconds_min: float
) -> None:
    """Answer one watcher, no more often than every `seconds_min`, until it hangs up, asks nothing for IDLE_SECONDS or
    sends nonsense, which `answer` may say by a PeerError. Never raises for these, nor when there is no answer: that is
    logged, and the watcher is hung up on."""
    try:
        while True:
            with trio.fail_after(IDLE_SECONDS):
                request = await read_frame(stream.receive_some, REQUEST_BYTES_MAX)
            asked = decode(request, REQUEST_LIMITS)
            if not isinstance(asked, dict):
                raise PeerError("a request that is no map")
            try:
                reply = answer(asked)
            except PeerError:
                raise
            except Exception:
                log.exception("no answer for a watcher")
                return
            with trio.fail_after(WRITE_SECONDS):
                await write_frame(stream, reply)
            await trio.sleep(seconds_min)
    except EOFError:
        pass  # the watcher has seen enough
    except (trio.TooSlowError, trio.BrokenResourceError, PeerError, ValueError) as error:
        log.info("watcher dropped: %s", error or type(error).__name__)
