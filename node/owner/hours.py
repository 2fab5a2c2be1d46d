"""When a node may work: windows of local time, such as `22:00-07:00` or `mon-fri 18:00-24:00`.

A window belongs to the day on which it begins. Its ends become moments of absolute time, so that a night in which the
clocks change is an hour longer or shorter and opens and closes once: of an hour that comes twice, a window begins with
the first and ends with the last; an end that a change skips is where the clock would have shown it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from ftnode.protocol.words.errors import UserError

ERRORS = "schedule"

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK: Final = r"(\d{1,2}):(\d{2})"
_WINDOW: Final = re.compile(
    rf"(?:(?P<before>[a-z,-]+)\s+)?{_CLOCK}\s*-\s*{_CLOCK}(?:\s+(?P<after>[a-z,-]+))?", re.IGNORECASE
)
_NAMES: Final = re.compile(r"[a-z,-]+", re.IGNORECASE)
DAY_MINUTES: Final = 24 * 60
LOOK_AHEAD_DAYS: Final = 8
"""A weekly window begins within these."""


@dataclass(frozen=True, slots=True)
class Window:
    """Minutes since midnight, 0 <= start < 1440, start < end <= start + 1440; `days`: 0 is Monday."""

    start: int
    end: int
    days: frozenset[int]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Open when one of its windows is. One without windows is always open. Local time is the system's."""

    windows: tuple[Window, ...] = ()

    def open_at(self, now: float) -> bool:
        """`now`: seconds since 1970."""
        return not self.windows or any(begin <= now < end for begin, end in self._around(now, days_ahead=0))

    def opens_after(self, now: float) -> float | None:
        """The next moment at which it is open, `now` included; None when there is none within a week."""
        if self.open_at(now):
            return now
        return min((begin for begin, _ in self._around(now, LOOK_AHEAD_DAYS) if begin > now), default=None)

    def _around(self, now: float, days_ahead: int) -> Iterator[tuple[float, float]]:
        """Windows that begin yesterday, today or so many days ahead: (begin, end)."""
        today = datetime.fromtimestamp(now).date()
        for offset in range(-1, days_ahead + 1):
            day = today + timedelta(days=offset)
            for window in self.windows:
                if day.weekday() in window.days:
                    yield _moment(day, window.start, fold=0), _last_moment(day, window.end)


def parse_schedule(texts: Iterable[str]) -> Schedule:
    """`[DAYS] HH:MM-HH:MM`, each text a window; days may be a text of their own before it, as an environment variable
    is cut at its blanks. Raises UserError (64)."""
    windows, days = [], ""
    for text in texts:
        if _NAMES.fullmatch(text.strip()) and not days:
            days = f"{text} "
        else:
            windows.append(_parse(days + text))
            days = ""
    return Schedule((*windows, *([_parse(days)] if days else [])))


def _parse(text: str) -> Window:
    found = _WINDOW.fullmatch(text.strip())
    if found is None or (found["before"] and found["after"]):
        raise UserError(f"--schedule {text} is no window; write 22:00-07:00, or mon-fri 18:00-24:00")
    hours = [int(number) for number in found.groups() if number is not None and number.isdigit()]
    start, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    if start >= DAY_MINUTES or end > DAY_MINUTES or max(hours[1], hours[3]) > 59:
        raise UserError(f"--schedule {text}: hours go from 00:00 to 24:00")
    if start == end:
        raise UserError(f"--schedule {text} is empty; the whole day is 00:00-24:00")
    days = _days(text, (found["before"] or found["after"] or "mon-sun").lower())
    return Window(start, end if end > start else end + DAY_MINUTES, days)


def _days(text: str, names: str) -> frozenset[int]:
    days: set[int] = set()
    for part in names.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if first not in DAYS or last not in DAYS:
            raise UserError(
                f"--schedule {text}: {part} is no day; days are {', '.join(DAYS)}, as in mon-fri or sat,sun"
            )
        begin, end = DAYS.index(first), DAYS.index(last)
        days |= {(begin + each) % 7 for each in range((end - begin) % 7 + 1)}
    return frozenset(days)


def _moment(day: date, minutes: int, fold: int) -> float:
    shown = datetime(day.year, day.month, day.day, fold=fold) + timedelta(days=minutes // DAY_MINUTES)
    return shown.replace(hour=minutes % DAY_MINUTES // 60, minute=minutes % 60, fold=fold).timestamp()


def _last_moment(day: date, minutes: int) -> float:
    return max(_moment(day, minutes, fold=0), _moment(day, minutes, fold=1))
