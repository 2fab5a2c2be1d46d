"""Two documents for everybody, made once however many ask, from which a page learns all that a run says."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from typing import Any

import pytest

from ftnode.node.watch.dashboard_feed import Decision, Feed
from ftnode.node.watch.history import CommitRow, ValidationRow
from ftnode.node.watch.public_page import (
    DENSE_ROWS,
    LOGS,
    NEWS_ROWS_MAX,
    NEWS_SECONDS,
    PAST_ROWS_MAX,
    PAST_SECONDS,
    TOLD_AGAIN_SECONDS,
    Document,
    Joining,
    PublicPage,
)
from ftnode.node.watch.status import Speaker, SwarmStatus

TINY = SwarmStatus(Speaker("p", "", "", ""), run="r", name="tiny", lineage="l", step=2, steps=9, loss=2.0)


class CountedFeed(Feed):
    """Counts how often it is read."""

    def __init__(self) -> None:
        super().__init__("live")
        self.looks = 0
        self.tell_status(TINY)

    def look(self, generation: str, commits: int, validations: int, notes: int) -> dict[str, Any]:
        self.looks += 1
        return super().look(generation, commits, validations, notes)

    def commit(self, first: int, count: int = 1) -> None:
        self.tell_commits([CommitRow(step, 2.0, 8, 0.5, False) for step in range(first, first + count)], "r", "l")


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def feed() -> CountedFeed:
    return CountedFeed()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def page(feed: CountedFeed, clock: Clock) -> PublicPage:
    return PublicPage(feed, lambda: None, clock)


def read(document: Document) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document.body)
    assert json.loads(gzip.decompress(document.packed)) == found
    return found


class Browser:
    """Reads as the page's script does."""

    def __init__(self, page: PublicPage) -> None:
        self.page, self.generation, self.pasts = page, "", 0
        self.known: dict[str, int] = {}
        self.rows: dict[str, list[Any]] = {}

    def begin_anew(self, generation: str) -> None:
        self.generation, self.known, self.rows = generation, dict.fromkeys(LOGS, 0), {log: [] for log in LOGS}

    def look(self) -> None:
        told = read(self.page.news())
        if told["generation"] != self.generation:
            self.begin_anew(told["generation"])
        if any(told[log]["next"] - len(told[log]["rows"]) > self.known[log] for log in LOGS):
            self.pasts += 1
            past = read(self.page.past())
            if past["generation"] != self.generation:
                return
            self.begin_anew(self.generation)
            for log in LOGS:
                self.rows[log], self.known[log] = past[log]["rows"], past[log]["next"]
        for log in LOGS:
            rows, first = told[log]["rows"], told[log]["next"] - len(told[log]["rows"])
            self.rows[log] += rows[max(0, self.known[log] - first) :]
            self.known[log] = max(self.known[log], told[log]["next"])

    @property
    def steps(self) -> list[int]:
        return [row[0] for row in self.rows["commits"]]


def test_all_who_look_within_a_second_get_the_same_and_it_is_made_once(
    page: PublicPage, feed: CountedFeed, clock: Clock
) -> None:
    first = page.news()
    feed.commit(1)
    clock.now += NEWS_SECONDS / 2
    assert [page.news() is first for _ in range(200)] == [True] * 200
    assert feed.looks == 1
    clock.now += NEWS_SECONDS
    assert read(page.news())["commits"]["rows"] == [[1, 2.0, 8, 0.5, False]]
    assert feed.looks == 2


def test_the_past_is_made_once_in_ten_seconds(page: PublicPage, feed: CountedFeed, clock: Clock) -> None:
    first = page.past()
    looks = feed.looks
    clock.now += PAST_SECONDS - 0.1
    assert page.past() is first and feed.looks == looks
    clock.now += 0.2
    assert page.past() is not first


@pytest.mark.parametrize("seconds", [0.5, 2.0, 10.0, 29.0])
def test_who_looks_again_within_half_a_minute_reads_each_row_once(
    seconds: float, page: PublicPage, feed: CountedFeed, clock: Clock
) -> None:
    browser, others = Browser(page), Browser(page)
    browser.look()
    for step in range(1, 200):
        feed.commit(step)
        clock.now += seconds / 4
        others.look()
        if step % 4 == 0:
            browser.look()
    assert browser.steps[-1] >= 188 and browser.steps == [*range(1, browser.steps[-1] + 1)]
    assert browser.pasts == 0


def test_who_comes_late_takes_the_past_first(page: PublicPage, feed: CountedFeed, clock: Clock) -> None:
    early = Browser(page)
    for step in range(1, 100):
        feed.commit(step)
        early.look()
        clock.now += 2.0
    late = Browser(page)
    late.look()
    assert late.steps == early.steps == [*range(1, 100)] and (early.pasts, late.pasts) == (0, 1)
    feed.commit(100)
    clock.now += 2.0
    late.look()
    assert late.steps == [*range(1, 101)] and late.pasts == 1


def test_who_slept_for_long_takes_the_past_again(page: PublicPage, feed: CountedFeed, clock: Clock) -> None:
    sleeper, others = Browser(page), Browser(page)
    sleeper.look()
    for step in range(1, 100):
        feed.commit(step)
        clock.now += 1.0
        others.look()
    sleeper.look()
    assert sleeper.pasts == 1 and sleeper.steps == [*range(1, 100)]


def test_a_past_that_a_proxy_kept_joins_on(page: PublicPage, feed: CountedFeed, clock: Clock) -> None:
    """It may be as old as ours can be, and as old again."""
    page.news()
    old = page.past()
    for step in range(1, int(2 * PAST_SECONDS) + 1):
        feed.commit(step)
        clock.now += 1.0
        page.news()
    news = read(page.news())["commits"]
    assert news["next"] - len(news["rows"]) <= read(old)["commits"]["next"]
    assert TOLD_AGAIN_SECONDS > 2 * PAST_SECONDS + NEWS_SECONDS


def test_another_generation_begins_anew(page: PublicPage, feed: CountedFeed, clock: Clock) -> None:
    browser = Browser(page)
    feed.commit(1, 30)
    browser.look()
    feed.tell_status(SwarmStatus(Speaker("p", "", "", ""), run="r", name="tiny", lineage="other"))
    feed.tell_commits([CommitRow(7, 1.0, 8, 0.5, False)], "r", "other")
    clock.now += 2.0
    browser.look()
    assert browser.steps == [7]


def test_a_long_run_is_thinned_but_for_its_end(page: PublicPage, feed: CountedFeed) -> None:
    feed.commit(1, 19_000)
    feed.tell_validations([ValidationRow(step, 2.0) for step in range(1, 19_000, 2)])
    feed.tell_decisions(Decision(float(n), n, "p", "lost", f"node {n} is lost") for n in range(1000))
    past = read(page.past())
    steps = [row[0] for row in past["commits"]["rows"]]
    assert len(steps) <= PAST_ROWS_MAX["commits"] and steps == sorted(steps) and steps[0] == 1
    assert steps[-DENSE_ROWS:] == [*range(19_001 - DENSE_ROWS, 19_001)]
    assert max(after - before for before, after in pairwise(steps)) <= 6
    assert len(past["validations"]["rows"]) <= PAST_ROWS_MAX["validations"]
    assert [row[1] for row in past["notes"]["rows"]] == [*range(800, 1000)]
    assert {log: past[log]["next"] for log in LOGS} == {"commits": 19_000, "validations": 9500, "notes": 1000}
    assert len(page.past().packed) < 100_000
    news = read(page.news())
    assert len(news["commits"]["rows"]) == NEWS_ROWS_MAX and news["commits"]["rows"][-1][0] == 19_000
    browser = Browser(page)
    browser.look()
    assert browser.steps == steps and browser.pasts == 1


def test_how_to_join_is_told_as_soon_as_somebody_can_say(feed: CountedFeed, clock: Clock) -> None:
    ways: list[Joining | None] = [None]
    page = PublicPage(feed, lambda: ways[0], clock)
    assert read(page.news())["public"]["joining"] is None
    ways[0] = Joining("ftnode join 'x'", "ftnode status 'x'", True)
    clock.now += 1.0
    assert read(page.news())["public"]["joining"] == {
        "join": "ftnode join 'x'", "watch": "ftnode status 'x'", "listed": True,
    }  # fmt: skip
