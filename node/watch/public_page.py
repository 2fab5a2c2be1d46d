"""The two documents that everybody gets who looks at a public page: what is new, and the past.

Both are made when somebody asks, at most once in so many seconds, and packed once for all who ask meanwhile. Neither
depends on who asks for what. So a thousand watchers cost what it takes to send a thousand answers, nobody can have us
compute more, and a proxy in front may keep them, too. A page that comes late, or was asleep, takes the past first; the
news of half a minute then join on to it.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from ftnode.node.watch import public_words
from ftnode.node.watch.dashboard_feed import Feed

NEWS_SECONDS: Final = 1.0
PAST_SECONDS: Final = 10.0
"""A run of days takes some 20 ms to pack."""
TOLD_AGAIN_SECONDS: Final = 30.0
"""For so long what is new is told again. More than twice PAST_SECONDS: a proxy may keep the past as long as we do."""
PAGE_SECONDS: Final = 2.0
"""A page asks so often."""
NEWS_ROWS_MAX: Final = 500
PAST_ROWS_MAX: Final = {"commits": 4000, "validations": 1000, "notes": 200}
"""More than a curve has pixels, and as many decisions as a page shows."""
DENSE_ROWS: Final = 400
"""The newest ones, of which no row is left out."""
GZIP_LEVEL: Final = 6
LOGS: Final = tuple(public_words.ROWS)


@dataclass(frozen=True, slots=True)
class Joining:
    """How somebody takes part, in commands to copy."""

    join: str
    watch: str
    listed: bool
    """The author has to list them first."""


class Document(NamedTuple):
    """JSON, plain and packed with gzip."""

    body: bytes
    packed: bytes
    seconds: int
    """For which it is good."""


class _Kept(NamedTuple):
    made: float
    document: Document


class PublicPage:
    """For one thread."""

    def __init__(
        self, feed: Feed, joining: Callable[[], Joining | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`joining`: None while nobody can say how. `clock`: seconds."""
        self._feed, self._joining, self._clock = feed, joining, clock
        self._generation = ""
        self._ends: deque[tuple[float, tuple[int, ...]]] = deque()
        """When the logs of this generation ended where. Begins where the news begin."""
        self._news: _Kept | None = None
        self._past: _Kept | None = None

    def news(self) -> Document:
        """Status, and the rows of the last half minute."""
        now = self._clock()
        if self._news is None or now - self._news.made >= NEWS_SECONDS:
            self._news = _Kept(now, _document(self._look(now), NEWS_SECONDS))
        return self._news.document

    def past(self) -> Document:
        """All rows, of older ones some."""
        now = self._clock()
        if self._past is None or now - self._past.made >= PAST_SECONDS:
            self._past = _Kept(now, _document(self._whole(), PAST_SECONDS))
        return self._past.document

    def _look(self, now: float) -> dict[str, Any]:
        begin = self._ends[0][1] if self._ends else (0, 0, 0)
        told, rows = self._read(self._generation, begin)
        if told["generation"] != self._generation:
            self._generation = told["generation"]
            self._ends.clear()
        self._ends.append((now, tuple(told[log]["next"] for log in LOGS)))
        while len(self._ends) > 1 and self._ends[1][0] <= now - TOLD_AGAIN_SECONDS:
            self._ends.popleft()
        joining = self._joining()
        public = {"seconds": PAGE_SECONDS, "joining": asdict(joining) if joining else None}
        return {
            **public_words.LOOK(told),
            **{log: _told(log, rows[log][-NEWS_ROWS_MAX:], told[log]["next"]) for log in LOGS},
            "public": public,
        }

    def _whole(self) -> dict[str, Any]:
        told, rows = self._read("", (0, 0, 0))
        thinned = {log: _thinned(rows[log], PAST_ROWS_MAX[log]) for log in ("commits", "validations")}
        thinned["notes"] = rows["notes"][-PAST_ROWS_MAX["notes"] :]
        return {
            "format": told["format"],
            "generation": told["generation"],
            **{log: _told(log, thinned[log], told[log]["next"]) for log in LOGS},
        }

    def _read(self, generation: str, places: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """The newest look, and all rows from these places on."""
        rows: dict[str, list[Any]] = {log: [] for log in LOGS}
        while True:
            told = self._feed.look(generation, *places)
            if told["generation"] != generation:
                rows = {log: [] for log in LOGS}
            for log in LOGS:
                rows[log] += told[log]["rows"]
            generation, places = told["generation"], tuple(told[log]["next"] for log in LOGS)
            if not any(told[log]["more"] for log in LOGS):
                return told, rows


def _told(log: str, rows: Sequence[tuple[Any, ...]], following: int) -> dict[str, Any]:
    return {"rows": [public_words.row(log, one) for one in rows], "next": following, "more": False}


def _thinned(rows: list[Any], most: int) -> list[Any]:
    """The newest ones, and of older ones every so many, so that there are `most` at most."""
    if len(rows) <= most:
        return rows
    older, newest = rows[:-DENSE_ROWS], rows[-DENSE_ROWS:]
    stride = -(-len(older) // (most - DENSE_ROWS))
    return [*older[::stride], *newest]


def _document(told: dict[str, Any], seconds: float) -> Document:
    body = json.dumps(told, separators=(",", ":"), allow_nan=False).encode()
    return Document(body, gzip.compress(body, GZIP_LEVEL, mtime=0), int(seconds))
