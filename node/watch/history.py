"""What a node tells watchers of the past: `/ftnode/history/1`, its data, its encoding and its server side.

The status (status.py) is the present; this is how it came to be: the commits and validations that a node knows, which
for the head's holders, the keepers of its copies and the leader is the whole curve (chronicle.ENTRIES_KEPT), and the
decisions that this node took, with their reasons. A watcher says how far it has come, and gets what follows, oldest
first, a piece at a time. Frames are those of the status protocol. A request is a map, `{"format": 1, "commits": step,
"validations": step, "notes": number}`, the reply a `History` by field names with rows as lists; readers ignore names
that they do not know. Nodes of before do not speak this protocol, and a watcher makes do with their status.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, get_type_hints

import msgpack

from ftnode.node.links.address_cards import bare
from ftnode.node.links.streams import StreamHandler, at_most
from ftnode.node.watch.status import STREAMS_EACH, Member, serve_requests
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.wire.frames import clean_reason
from ftnode.protocol.words.codec import from_plain, shown
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.errors import PeerError

if TYPE_CHECKING:
    from ftnode.protocol.picture import Picture, WholeHistory

HISTORY_PROTOCOL: Final = "/ftnode/history/1"
FORMAT: Final = 1
COMMITS_MAX: Final = 2000
"""Rows of one reply, and as many validations: some 30 bytes each."""
NOTES_KEPT: Final = 500
NOTES_MAX: Final = 100
"""Of one reply."""
NOTE_TEXT_MAX: Final = 600
MEMBERS_MAX: Final = 16
REPLY_BYTES_MAX: Final = 1 << 19
REPLY_LIMITS: Final = Limits(size=REPLY_BYTES_MAX, items=COMMITS_MAX, entries=64)
NUMBER_MAX: Final = 1 << 53
POLL_SECONDS_MIN: Final = 0.5
WATCHERS_MAX: Final = 16
"""At most 32 replies a second, of a few milliseconds each when all is asked for again and again."""


class CommitRow(NamedTuple):
    """One committed step. `loss`: nats per token; `seconds`: since the commit before."""

    step: int
    loss: float
    tokens: int
    seconds: float
    skipped: bool


class ValidationRow(NamedTuple):
    """Validation loss of the weights after `step`, nats per token."""

    step: int
    loss: float


class NoteRow(NamedTuple):
    """A decision of the speaker."""

    number: int
    """Counts from 1 in each life of a node."""
    age: float
    """Seconds since, so that clocks need not agree."""
    step: int
    """Last committed then."""
    kind: str
    text: str


class HistoryRequest(NamedTuple):
    """What a watcher has already; it wants what comes after."""

    commits: int = 0
    validations: int = 0
    notes: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """A piece of the past as one node knows it. Rows are in order, without repeats."""

    run: str
    lineage: str
    life: str
    """Another one: numbers of notes begin anew."""
    commits: tuple[CommitRow, ...] = ()
    validations: tuple[ValidationRow, ...] = ()
    notes: tuple[NoteRow, ...] = ()
    more: bool = False
    """There is more of it already."""
    members: tuple[Member, ...] = ()
    """The leader, holders of the head, other holders: who knows more."""


class NoteLog:
    """The newest NOTES_KEPT decisions of this node."""

    def __init__(self) -> None:
        self._notes: deque[tuple[int, float, int, str, str]] = deque(maxlen=NOTES_KEPT)
        self._count = 0

    def add(self, note: Note, step: int, now: float) -> None:
        self._count += 1
        text = clean_reason(note.text)[:NOTE_TEXT_MAX]
        self._notes.append((self._count, now, step, clean_reason(note.kind)[:40], text))

    def after(self, number: int, now: float) -> tuple[NoteRow, ...]:
        """Oldest first."""
        return tuple(
            NoteRow(count, max(0.0, now - when), step, kind, text)
            for count, when, step, kind, text in self._notes
            if count > number
        )


def history(picture: Picture, notes: NoteLog, request: HistoryRequest, now: float) -> History:
    """The next piece for a watcher that has come so far."""
    known = picture.history
    commits = known.after(request.commits)
    scored = sorted(step for step in known.validation if step > request.validations)
    validations = tuple(ValidationRow(step, known.validation[step]) for step in scored[: COMMITS_MAX + 1])
    said = notes.after(request.notes, now)
    more = len(commits) > COMMITS_MAX or len(validations) > COMMITS_MAX or len(said) > NOTES_MAX
    return History(
        picture.settings.run,
        picture.view.lineage.id if picture.view is not None else "",
        str(picture.me.nonce),
        tuple(CommitRow(c.step, c.loss, c.tokens, c.seconds, c.skipped) for c in commits[:COMMITS_MAX]),
        validations[:COMMITS_MAX],
        said[:NOTES_MAX],
        more,
        _members(picture),
    )


def _members(picture: Picture) -> tuple[Member, ...]:
    """Those of the view with addresses, the best informed first."""
    view = picture.view
    if view is None:
        return ()
    ordered = dict.fromkeys([view.leader, *view.holders[0], *view.members()])
    known = [(peer, bare(picture.contacts.get(peer, ()))) for peer in ordered]
    return tuple(
        Member(picture.settings.run, "", peer.id, addresses[:4]) for peer, addresses in known[:MEMBERS_MAX] if addresses
    )


class NodeHistory:
    """What a node's watchers may ask of its past: its decisions as it takes them, and what its core knows."""

    def __init__(self, look: Callable[[], Picture], say: Callable[[Note], None]) -> None:
        """`look` at the core; `say` hears each decision, too."""
        self._look, self._say, self._notes = look, say, NoteLog()
        self.known: WholeHistory = look().history

    def note(self, note: Note) -> None:
        self._say(note)
        self._notes.add(note, self.known.newest_step, time.monotonic())

    def tell(self, request: HistoryRequest) -> History:
        return history(self._look(), self._notes, request, time.monotonic())


def encode_request(request: HistoryRequest) -> bytes:
    return cast(bytes, msgpack.packb({"format": FORMAT, **request._asdict()}))


def read_request(asked: dict[Any, Any]) -> HistoryRequest:
    """Raises PeerError for another format, or what is no place in a history."""
    if asked.get("format") != FORMAT:
        raise PeerError(f"a request for a history of format {shown(asked.get('format'))}")
    places = [asked.get(name, 0) for name in HistoryRequest._fields]
    if any(type(place) is not int or not 0 <= place < NUMBER_MAX for place in places):
        raise PeerError("a request for a place that is in no history")
    return HistoryRequest(*places)


def encode_history(told: History) -> bytes:
    found = {field.name: getattr(told, field.name) for field in fields(told)}  # rows are tuples already
    members = [asdict(member) for member in told.members]
    return cast(bytes, msgpack.packb({"format": FORMAT, **found, "members": members}, use_bin_type=True))


def decode_history(data: bytes) -> History:
    """Raises PeerError for what is no history of this format, is too long or out of order."""
    found = decode(data, REPLY_LIMITS)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise PeerError("a history of a format that this ftnode does not read")
    missing = [name for name in ("run", "lineage", "life") if name not in found]
    if missing:
        raise PeerError(f"a history without {missing[0]}")
    if "members" in found:
        found["members"] = _plain_members(found["members"])
    told = History(**{name: from_plain(kind, found[name]) for name, kind in _kinds().items() if name in found})
    _check(told)
    return told


@cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(History)


def _plain_members(found: object) -> list[list[Any]]:
    """Members travel by names, as in a status; the codec wants them as lists."""
    if not isinstance(found, list) or len(found) > MEMBERS_MAX or not all(isinstance(one, dict) for one in found):
        raise PeerError("a history whose members are none, or too many")
    return [[one.get(field.name) for field in fields(Member)] for one in found]


def _check(told: History) -> None:
    for rows in (told.commits, told.validations, told.notes):
        places = [row[0] for row in rows]
        if any(not 0 < place < NUMBER_MAX for place in places) or any(a >= b for a, b in pairwise(places)):
            raise PeerError("a history out of order")
    odd = (note.age < 0 or note.step < 0 or len(note.text) > NOTE_TEXT_MAX for note in told.notes)
    if len(told.notes) > NOTES_MAX or any(odd):
        raise PeerError("a history with notes that cannot be")
    if any(commit.tokens < 0 or commit.seconds < 0 for commit in told.commits):
        raise PeerError("a history with commits that cannot be")


def history_handler(source: Callable[[HistoryRequest], History]) -> StreamHandler:
    """What to give to `P2pd.serve(HISTORY_PROTOCOL, ...)`. More than WATCHERS_MAX at once are hung up on."""

    def answer(asked: dict[Any, Any]) -> bytes:
        return encode_history(source(read_request(asked)))

    async def handle(_peer: str, stream: Any) -> None:
        await serve_requests(stream, answer, POLL_SECONDS_MIN)

    return at_most(WATCHERS_MAX, handle, STREAMS_EACH)
