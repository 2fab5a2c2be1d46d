"""When a node may work: a table of causes, and that a cause that comes and goes is not followed at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from ftnode.node.owner.hours import Schedule, parse_schedule
from ftnode.node.owner.pause_rules import Hysteresis, OwnerRules, Readings, Verdict, Word, wanted
from ftnode.protocol.words.errors import UserError

NOON = datetime(2026, 3, 4, 12, 0).timestamp()
HOT = OwnerRules(temperature_max=80.0)
BUSY = OwnerRules(load_max=50.0)


@pytest.fixture
def central_europe() -> Iterator[None]:
    """Clocks go forward on 29 March 2026 at 2:00 and back on 25 October at 3:00."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def one(rules: OwnerRules, readings: Readings, word: Word | None = None) -> Verdict:
    return wanted(NOON, 1000.0, readings, rules, word, Hysteresis())[0]


@pytest.mark.parametrize(
    ("rules", "readings", "word", "pauses", "why"),
    [
        (OwnerRules(), Readings(), None, False, ""),
        (OwnerRules(), Readings(), Word(True), True, "by its owner, until ftnode resume"),
        (OwnerRules(), Readings(), Word(True, NOON + 3600), True, "by its owner, until 13:00"),
        (OwnerRules(), Readings(), Word(True, NOON + 86400), True, "until 2026-03-05 12:00"),
        (OwnerRules(), Readings(), Word(True, NOON), False, ""),
        (OwnerRules(), Readings(), Word(False), False, ""),
        (OwnerRules(parse_schedule(["22:00-07:00"])), Readings(), None, True, "outside of --schedule, until 22:00"),
        (OwnerRules(parse_schedule(["22:00-07:00"])), Readings(), Word(False), True, "outside of --schedule"),
        (OwnerRules(parse_schedule(["11:00-13:00"])), Readings(), None, False, ""),
        (OwnerRules(), Readings(gpu_used_by=("game",)), None, True, "game uses the GPU"),
        (OwnerRules(pause_for_gpu=False), Readings(gpu_used_by=("game",)), None, False, ""),
        (OwnerRules(), Readings(on_battery=True), None, True, "battery"),
        (OwnerRules(pause_on_battery=False), Readings(on_battery=True), None, False, ""),
        (OwnerRules(), Readings(temperature=120.0), None, False, ""),
        (HOT, Readings(temperature=None), None, False, ""),
        (HOT, Readings(temperature=80.0), None, False, ""),
        (BUSY, Readings(load=49.0), None, False, ""),
    ],
)
def test_what_pauses(rules: OwnerRules, readings: Readings, word: Word | None, pauses: bool, why: str) -> None:
    verdict = one(rules, readings, word)
    assert verdict.pause == pauses
    assert why in verdict.why and bool(verdict.why) == pauses


def told(rules: OwnerRules, *looks: tuple[float, Readings]) -> list[bool]:
    """Whether it rests after each look at a monotonic time."""
    seen, rests = Hysteresis(), []
    for moment, readings in looks:
        verdict, seen = wanted(NOON, moment, readings, rules, None, seen)
        rests.append(verdict.pause)
    return rests


def test_a_game_counts_at_once_and_is_gone_after_a_quiet_minute() -> None:
    game, nothing = Readings(gpu_used_by=("game",)), Readings()
    looks = [(0.0, game), (2.0, nothing), (59.0, nothing), (61.9, game), (62.0, nothing), (121.8, nothing)]
    assert told(OwnerRules(), *looks) == [True] * 6
    assert told(OwnerRules(), *looks, (121.9, nothing), (123.0, game)) == [True] * 6 + [False, True]


def test_heat_must_last_and_must_fall_well_below_the_limit() -> None:
    hot, warm, cool = Readings(temperature=81.0), Readings(temperature=78.0), Readings(temperature=75.0)
    assert told(HOT, (0.0, hot), (8.0, hot), (9.0, cool), (12.0, hot), (20.0, hot)) == [False] * 5, "moments of heat"
    looks = [(0.0, hot), (10.0, hot), (20.0, warm), (200.0, warm), (202.0, cool), (259.0, cool), (260.0, cool)]
    assert told(HOT, *looks) == [False, True, True, True, True, True, False]
    assert told(HOT, (0.0, warm), (100.0, warm)) == [False, False], "below the limit, it never was above it"


def test_load_of_others_must_last_and_must_fall() -> None:
    much, some, little = Readings(load=60.0), Readings(load=45.0), Readings(load=40.0)
    assert told(BUSY, (0.0, much), (10.0, much), (80.0, some), (81.0, little), (141.0, little)) == [
        False, True, True, True, False,
    ]  # fmt: skip


def test_the_owner_comes_before_the_hours_and_the_hours_before_the_machine() -> None:
    rules = OwnerRules(parse_schedule(["22:00-07:00"]))
    used = Readings(gpu_used_by=("game",))
    assert one(rules, used, Word(True)).by_owner
    assert "--schedule" in one(rules, used).why
    _, seen = wanted(NOON, 0.0, used, rules, None, Hysteresis())
    opened, _ = wanted(NOON, 59.0, Readings(), OwnerRules(), None, seen)
    assert opened.pause, "what was seen during a pause of another cause is not forgotten"


def at(*when: int) -> float:
    return datetime(*when).timestamp()  # type: ignore[arg-type]


@pytest.mark.usefixtures("central_europe")
@pytest.mark.parametrize(
    ("texts", "when", "opened", "opens"),
    [
        ([], (2026, 3, 4, 12, 0), True, (2026, 3, 4, 12, 0)),
        (["22:00-07:00"], (2026, 3, 4, 21, 59), False, (2026, 3, 4, 22, 0)),
        (["22:00-07:00"], (2026, 3, 4, 22, 0), True, (2026, 3, 4, 22, 0)),
        (["22:00-07:00"], (2026, 3, 5, 6, 59), True, (2026, 3, 5, 6, 59)),
        (["22:00-07:00"], (2026, 3, 5, 7, 0), False, (2026, 3, 5, 22, 0)),
        (["mon-fri 22:00-07:00"], (2026, 3, 7, 6, 0), True, (2026, 3, 7, 6, 0)),  # Saturday, of Friday's night
        (["mon-fri 22:00-07:00"], (2026, 3, 8, 6, 0), False, (2026, 3, 9, 22, 0)),
        (["sat,sun 00:00-24:00"], (2026, 3, 8, 23, 59), True, (2026, 3, 8, 23, 59)),
        (["00:00-24:00 sat,sun"], (2026, 3, 9, 0, 0), False, (2026, 3, 14, 0, 0)),
        (["fri-mon 10:00-11:00"], (2026, 3, 9, 10, 30), True, (2026, 3, 9, 10, 30)),
        (["12:00-13:00", "18:00-19:00"], (2026, 3, 4, 14, 0), False, (2026, 3, 4, 18, 0)),
        (["wed 12:00-13:00"], (2026, 3, 4, 13, 0), False, (2026, 3, 11, 12, 0)),
    ],
)
def test_hours(texts: list[str], when: tuple[int, ...], opened: bool, opens: tuple[int, ...]) -> None:
    schedule = parse_schedule(texts)
    assert schedule.open_at(at(*when)) == opened
    assert schedule.opens_after(at(*when)) == at(*opens)


def openings(schedule: Schedule, begin: float, hours: float) -> list[tuple[float, float]]:
    """(first, last) minute of each stretch in which it is open."""
    found: list[tuple[float, float]] = []
    for minute in range(int(hours * 60)):
        moment = begin + 60 * minute
        if schedule.open_at(moment):
            if found and found[-1][1] == moment - 60:
                found[-1] = (found[-1][0], moment)
            else:
                found.append((moment, moment))
    return found


@pytest.mark.usefixtures("central_europe")
@pytest.mark.parametrize(
    ("text", "evening", "hours"),
    [
        ("22:00-07:00", (2026, 3, 28, 18, 0), 8.0),
        ("22:00-07:00", (2026, 10, 24, 18, 0), 10.0),
        ("01:30-07:00", (2026, 10, 24, 18, 0), 6.5),
        ("02:30-07:00", (2026, 10, 24, 18, 0), 5.5),  # from the first 2:30
        ("22:00-02:30", (2026, 10, 24, 18, 0), 5.5),  # to the last 2:30
        ("02:30-07:00", (2026, 3, 28, 18, 0), 3.5),  # there is no 2:30: it begins at 3:30
        ("22:00-02:30", (2026, 3, 28, 18, 0), 4.5),
    ],
)
def test_a_night_in_which_the_clocks_change_opens_once(text: str, evening: tuple[int, ...], hours: float) -> None:
    (found,) = openings(parse_schedule([text]), at(*evening), 17)
    assert (found[1] - found[0] + 60) / 3600 == hours


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no window"),
        ("22-7", "is no window"),
        ("22:00", "is no window"),
        ("mon 22:00-07:00 tue", "is no window"),
        ("25:00-07:00", "from 00:00 to 24:00"),
        ("24:00-07:00", "from 00:00 to 24:00"),
        ("22:00-24:01", "from 00:00 to 24:00"),
        ("22:60-23:00", "from 00:00 to 24:00"),
        ("07:00-07:00", "is empty"),
        ("mo 22:00-07:00", "mo is no day"),
        ("mon- 22:00-07:00", "is no day"),
        ("mon,, 22:00-07:00", "is no day"),
    ],
)
def test_no_hours(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as raised:
        parse_schedule([text])
    assert raised.value.exit_code == 64
