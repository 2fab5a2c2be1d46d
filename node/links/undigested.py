"""What a peer's words make us raise and nobody thought of: it costs that peer its stream, and never the node.

Handlers of streams and askers of peers catch what they expect. Two nets here are for the rest. A third one is for what
a node does beside training, as to look after its connections: peers' answers come there by many ways. What the nets
catch is said in the log once, with the end of its traceback, and the newest are kept; an invariant of ours that is
broken goes through, since going on would spread the damage.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.links.newest import newest
from ftnode.node.links.streams import STREAM_ERRORS
from ftnode.protocol.wire.frames import clean_reason
from ftnode.protocol.words.errors import LocalError, PeerError

log = logging.getLogger(__name__)

KEPT_MAX: Final = 16
LINES_MAX: Final = 8
LINE_MAX: Final = 300
OURS: Final = (LocalError, AssertionError)
NOBODY: Final = "nobody"
"""Whose words a task of our own may have failed over is not known."""
PAUSE_SECONDS: Final = 5.0
"""Before a task begins again; twice as long each time that it ends sooner than PAUSE_MAX."""
PAUSE_MAX: Final = 320.0


@dataclass(frozen=True, slots=True)
class Failure:
    """One place of our code that a peer's words have broken. `peer`: the last one that did; `count`: how often."""

    protocol: str
    peer: str
    lines: tuple[str, ...]
    """The end of the traceback, printable."""
    count: int
    place: str
    """The last names of the file, the line and the kind, as `links/inbound.py:88 (KeyError)`: nothing of where ftnode
    is installed, and nothing that the peer said."""


class Failures:
    """The newest KEPT_MAX, by protocol, kind and place. Each is said once while it is kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str], Failure] = {}

    @property
    def newest(self) -> tuple[Failure, ...]:
        """Newest first."""
        return tuple(reversed(self._kept.values()))

    def note(self, peer_id: str, protocol: str, error: BaseException) -> None:
        innermost = _innermost(error)
        key = (protocol, type(innermost).__name__, _place(innermost))
        before = self._kept.get(key)
        lines = before.lines if before else _last_lines(innermost)
        place = f"{'/'.join(key[2].split('/')[-2:])} ({key[1]})"
        failure = Failure(protocol, peer_id, lines, 1 + (before.count if before else 0), place)
        newest(self._kept, key, failure, KEPT_MAX)
        if before is None:
            told = "\n".join(lines)
            what = f"{protocol} fails and begins again" if peer_id == NOBODY else (
                f"what {peer_id} sent on {protocol} cannot be digested"
            )  # fmt: skip
            log.error("%s; please report it:\n%s", what, told)


FAILURES: Final = Failures()
"""Of this process."""


@contextmanager
def serving(
    peer_id: str, protocol: str, strike: Callable[[str, str], None], say: Callable[[str], None]
) -> Iterator[None]:
    """Around a handler of a stream. Swallows what breaks streams, and says so; strikes the peer for a PeerError and for
    what nobody thought of, and keeps the latter. Raises what is ours, and cancellations."""
    try:
        yield
    except STREAM_ERRORS as error:
        say(f"a stream of {protocol} dropped: {error or type(error).__name__}")
    except BaseException as error:
        theirs = _theirs(error)
        if theirs is None:
            raise
        _hold_against(peer_id, protocol, theirs, strike, say)
        rest = error.split(Exception)[1] if isinstance(error, BaseExceptionGroup) else None
        if rest is not None:
            raise rest from None


@contextmanager
def asking(peer_id: str, protocol: str, expected: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Around a question to a peer and the reading of its answer, in a task that nothing else protects. What is not
    `expected` is kept, and raised as a PeerError. STREAM_ERRORS always are expected."""
    known: tuple[type[BaseException], ...] = (*STREAM_ERRORS, *expected)
    try:
        yield
    except known:
        raise
    except Exception as error:
        if isinstance(error, PeerError) or _theirs(error) is None:
            raise
        FAILURES.note(peer_id, protocol, error)
        raise PeerError(f"an answer that we cannot digest: {type(_innermost(error)).__name__}") from None


async def keep_running(part: str, run: Callable[[], Awaitable[None]]) -> None:
    """`run` for ever, which can be begun anew. What nobody thought of ends it for a while. `part`: what it does, in
    words. Raises what is ours, and cancellations."""
    pause = 0.0
    while True:
        begun = trio.current_time()
        try:
            await run()
        except Exception as error:
            if _theirs(error) is None:
                raise
            FAILURES.note(NOBODY, part, error)
        else:
            return
        lasted = trio.current_time() - begun
        pause = PAUSE_SECONDS if lasted > PAUSE_MAX else max(PAUSE_SECONDS, min(PAUSE_MAX, 2 * pause))
        await trio.sleep(pause)


def _theirs(error: BaseException) -> BaseException | None:
    """The part of an error that a peer can be blamed for; None for a cancellation, and when any part is ours."""
    if isinstance(error, BaseExceptionGroup):
        return None if error.subgroup(OURS) is not None else error.split(Exception)[0]
    return error if isinstance(error, Exception) and not isinstance(error, OURS) else None


def _hold_against(
    peer_id: str, protocol: str, error: BaseException, strike: Callable[[str, str], None], say: Callable[[str], None]
) -> None:
    if isinstance(error, BaseExceptionGroup) and error.split(STREAM_ERRORS)[1] is None:
        say(f"a stream of {protocol} dropped: {error}")
        return
    if isinstance(error, PeerError):
        strike(peer_id, str(error))
        return
    FAILURES.note(peer_id, protocol, error)
    strike(peer_id, f"what it sent on {protocol} could not be digested: {type(_innermost(error)).__name__}")


def _innermost(error: BaseException) -> BaseException:
    """The first error in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _place(error: BaseException) -> str:
    steps = traceback.extract_tb(error.__traceback__, limit=-1)
    return f"{steps[0].filename}:{steps[0].lineno}" if steps else ""


def _last_lines(error: BaseException) -> tuple[str, ...]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-LINES_MAX, chain=False))
    return tuple(clean_reason(line[:LINE_MAX]) for line in text.splitlines()[-LINES_MAX:])
