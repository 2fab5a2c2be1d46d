"""Whether a node may work now: the owner's word first, then the hours, then what else the machine is used for.

A pause costs the swarm a hand-over and a join, so that causes that come and go are not followed at once: heat and load
must last a while before they count, and each cause must be gone for `quiet_seconds` before the node comes back. Prior
art: BOINC's computing preferences (in use, on batteries, non-BOINC processor usage).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

from ftnode.node.owner.hours import Schedule

QUIET_SECONDS: Final = 60.0
ONSET_SECONDS: Final[Mapping[str, float]] = {"gpu": 0.0, "battery": 0.0, "temperature": 10.0, "load": 10.0}
"""A cause counts when it has lasted so long: who starts a game wants the memory now, a processor may be hot for a
moment."""
COOLER_DEGREES: Final = 5.0
"""Below the limit by so much is cool again."""
CALMER_SHARE: Final = 0.8
"""Of --max-load; below this the machine is calm again."""


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """What the owner said beforehand. None: no such limit."""

    schedule: Schedule = field(default_factory=Schedule)
    temperature_max: float | None = None
    """Degrees Celsius of the device in use."""
    pause_on_battery: bool = True
    pause_for_gpu: bool = True
    load_max: float | None = None
    """Of all cores together, in per cent, that other programs may use before the node steps aside."""
    quiet_seconds: float = QUIET_SECONDS


@dataclass(frozen=True, slots=True)
class Readings:
    """What the machine says. None: it cannot say."""

    gpu_used_by: tuple[str, ...] = ()
    """Programs other than ours that compute on the device in use."""
    temperature: float | None = None
    on_battery: bool = False
    load: float | None = None
    """Per cent of all cores, used by others."""


@dataclass(frozen=True, slots=True)
class Word:
    """The owner's last word by `ftnode pause` or `resume`."""

    paused: bool
    until: float | None = None
    """Seconds since 1970; None: until resume."""
    written: float = 0.0
    now: bool = False
    """Without a hand-over."""
    unread: str = ""
    """Why it is not known what was said."""


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """What hysteresis needs to remember, in monotonic seconds: since when each cause has been there without a gap,
    and, of those that count, when it was there last."""

    since: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    last: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Run, or pause for the reason `why`. `until`: when it ends by itself, in seconds since 1970, if that is known."""

    pause: bool
    why: str = ""
    until: float | None = None
    by_owner: bool = False
    """The owner said so by `ftnode pause`."""
    by_hours: bool = False
    """Others may have the same hours, and pause at the same moment."""
    at_once: bool = False
    """Without a hand-over."""
    cause: str = ""
    """`why` without what changes from look to look."""

    def __str__(self) -> str:
        return f"paused: {self.why}" if self.pause else "runs"


def wanted(
    wall: float, monotonic: float, readings: Readings, rules: OwnerRules, word: Word | None, seen: Hysteresis
) -> tuple[Verdict, Hysteresis]:
    """Whether to run now, and why not; and what to remember for the next time."""
    seen = _observe(monotonic, _causes(readings, rules, seen), rules, seen)
    if word is not None and word.paused and (word.until is None or wall < word.until):
        how_long = "until ftnode resume" if word.until is None else f"until {clock(word.until, wall)}"
        why = f"{word.unread or 'by its owner'}, {how_long}"
        return Verdict(True, why, word.until, by_owner=True, at_once=word.now, cause=why), seen
    if not rules.schedule.open_at(wall):
        opens = rules.schedule.opens_after(wall)
        then = "" if opens is None else f", until {clock(opens, wall)}"
        why = f"outside of --schedule{then}"
        return Verdict(True, why, opens, by_hours=True, cause=why), seen
    for cause in ONSET_SECONDS:
        if cause in seen.last:
            quiet = monotonic - seen.last[cause]
            rest = f", quiet for {quiet:.0f} s of {rules.quiet_seconds:.0f}" if quiet > 0 else ""
            text = _reason(cause, readings, rules)
            return Verdict(True, text + _shown(cause, readings) + rest, cause=text), seen
    return Verdict(False), seen


def clock(moment: float, now: float) -> str:
    """`14:05`, with the date when that is another day. Local time."""
    then, today = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    return then.strftime("%H:%M" if then.date() == today.date() else "%Y-%m-%d %H:%M")


def _causes(readings: Readings, rules: OwnerRules, seen: Hysteresis) -> frozenset[str]:
    """Those that are there now. What once counts has to fall further before it is gone."""

    def beyond(cause: str, value: float | None, limit: float | None, calm: float) -> bool:
        return value is not None and limit is not None and value > (calm if cause in seen.last else limit)

    hot, busy = rules.temperature_max, rules.load_max
    there = {
        "gpu": rules.pause_for_gpu and bool(readings.gpu_used_by),
        "battery": rules.pause_on_battery and readings.on_battery,
        "temperature": beyond("temperature", readings.temperature, hot, (hot or 0.0) - COOLER_DEGREES),
        "load": beyond("load", readings.load, busy, (busy or 0.0) * CALMER_SHARE),
    }
    return frozenset(cause for cause, is_there in there.items() if is_there)


def _observe(now: float, causes: frozenset[str], rules: OwnerRules, seen: Hysteresis) -> Hysteresis:
    since = {cause: seen.since.get(cause, now) for cause in causes}
    counting = {cause for cause, begun in since.items() if now - begun >= ONSET_SECONDS[cause]}
    last = {cause: then for cause, then in seen.last.items() if now - then < rules.quiet_seconds}
    last |= {cause: now for cause in causes if cause in counting or cause in seen.last}
    return Hysteresis(MappingProxyType(since), MappingProxyType(last))


def _reason(cause: str, readings: Readings, rules: OwnerRules) -> str:
    match cause:
        case "gpu":
            return f"{' and '.join(readings.gpu_used_by) or 'another program'} uses the GPU"
        case "battery":
            return "the machine runs on its battery"
        case "temperature":
            return f"the device is above {rules.temperature_max:g} degrees"
        case _:
            return f"other programs use more than {rules.load_max:g} % of the processor"


def _shown(cause: str, readings: Readings) -> str:
    if cause == "temperature" and readings.temperature is not None:
        return f" ({readings.temperature:.0f})"
    return f" ({readings.load:.0f} %)" if cause == "load" and readings.load is not None else ""
