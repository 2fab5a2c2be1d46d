"""What a page is told: each thing once, what is new only, and never more than there is room for."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from ftnode.node.watch.dashboard_feed import (
    COMMITS_KEPT,
    CREDITS_SHOWN,
    NOTES_KEPT,
    ROWS_MAX,
    SILENT_SECONDS,
    Decision,
    Feed,
    GrowingLog,
)
from ftnode.node.watch.history import CommitRow, History, NoteRow, ValidationRow
from ftnode.node.watch.status import CommitPoint, ConvictedRow, CreditRow, Speaker, SwarmStatus, UndoVotesRow
from ftnode.node.watch.status_table import doubt_lines, rollback_lines

WHO = Speaker("12D3KooWvolunteer", "0.1.0", "cpu", "volunteer")
TINY = SwarmStatus(WHO, run="r", name="tiny", lineage="l", step=2, steps=9, loss=2.0)
LOGS = ("commits", "validations", "notes")


def rows(*steps: int, loss: float = 2.0) -> tuple[CommitRow, ...]:
    return tuple(CommitRow(step, loss, 8, 0.5, False) for step in steps)


class Page:
    """Reads as a browser does."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.told: dict[str, Any] = {
            "generation": "",
            **{name: {"next": 0} for name in LOGS},
        }

    def look(self) -> dict[str, Any]:
        places = [self.told[name]["next"] for name in LOGS]
        self.told = json.loads(json.dumps(self.feed.look(self.told["generation"], *places), allow_nan=False))
        return self.told


def test_a_look_costs_what_is_new() -> None:
    feed = Feed("live")
    page = Page(feed)
    assert page.look()["status"] is None
    feed.tell_status(TINY)
    feed.tell_history(History("r", "l", "1", rows(1, 2), (ValidationRow(2, 1.5),)), "p", 100.0)
    told = page.look()
    assert ([row[0] for row in told["commits"]["rows"]], told["validations"]["rows"]) == ([1, 2], [[2, 1.5]])
    assert told["status"]["name"] == "tiny"
    feed.tell_history(History("r", "l", "1", rows(2, 3), (ValidationRow(2, 1.5),)), "q", 101.0)
    told = page.look()
    assert ([row[0] for row in told["commits"]["rows"]], told["validations"]["rows"]) == ([3], [])
    assert page.look()["commits"]["rows"] == []


def test_a_page_gets_those_who_gave_most_and_no_signatures() -> None:
    feed = Feed("live")
    gave = tuple(CreditRow(f"peer{n}", 1000 - n, 1.0, 0, "Ada", "5/signature") for n in range(CREDITS_SHOWN + 3))
    feed.tell_status(replace(TINY, credits=gave, credits_step=2))
    status = Page(feed).look()["status"]
    assert [row["peer"] for row in status["credits"]] == [*(f"peer{n}" for n in range(CREDITS_SHOWN)), ""]
    assert {row["name"] for row in status["credits"][:-1]} == {"Ada"} and status["credits_step"] == 2
    assert not any(row["name_card"] for row in status["credits"])
    assert sum(row["visits"] for row in status["credits"]) == sum(row.visits for row in gave)


def test_a_page_has_the_words_of_the_terminal_for_what_is_to_be_undone_and_who_lied() -> None:
    feed = Feed("live")
    convicted = ConvictedRow("12D3KooWliar", 2, "it gave something else", ("12D3KooWother",))
    status = replace(TINY, rollback_votes=(UndoVotesRow(1, 2, 3),), convicted=(convicted,), cut_off=1)
    feed.tell_status(status)
    told = Page(feed).look()["status"]
    assert told["rollback_lines"] == rollback_lines(status) and told["doubt_lines"] == doubt_lines(status)
    assert "2 voters want to roll back to step 1" in told["rollback_lines"][0] and len(told["doubt_lines"]) == 2


def test_a_decision_that_many_follow_is_told_once_and_again_when_it_is_taken_again() -> None:
    feed = Feed("live")
    for peer, age in (("p", 1.0), ("q", 0.5), ("r", 0.0)):
        feed.tell_history(History("r", "l", "1", notes=(NoteRow(1, age, 3, "view", "view 3"),)), peer, 100.0)
    feed.tell_decisions([Decision(500.0, 9, "p", "view", "view 3")])
    told = Page(feed).look()["notes"]["rows"]
    assert [(row[0], row[2]) for row in told] == [(99.0, "p"), (500.0, "p")]


def test_a_decision_has_a_word_that_people_know() -> None:
    """The kind stays, for the page's colours; a kind of a later version is its own word."""
    feed = Feed("live")
    feed.tell_decisions(Decision(1.0, 9, "p", kind, "text") for kind in ("void", "lost", "later"))
    rows = Page(feed).look()["notes"]["rows"]
    assert [(row[3], row[5]) for row in rows] == [("void", "alive"), ("lost", "lost"), ("later", "later")]


def test_a_node_of_before_gives_the_curve_of_its_status() -> None:
    feed = Feed("live")
    page = Page(feed)
    for step in (2, 3, 3):
        points = tuple(CommitPoint(number, 2.0, 0.5) for number in range(1, step + 1))
        feed.tell_status(SwarmStatus(WHO, run="r", name="tiny", lineage="l", step=step, commits=points))
    assert [row[0] for row in page.look()["commits"]["rows"]] == [1, 2, 3]
    feed.tell_history(History("r", "l", "1", rows(1, 2, 3)), "p", 1.0)
    assert [row[:3] for row in page.look()["commits"]["rows"]] == [[1, 2.0, 8], [2, 2.0, 8], [3, 2.0, 8]]


def test_another_run_or_lineage_begins_anew() -> None:
    feed = Feed("live")
    page = Page(feed)
    feed.tell_status(TINY)
    assert feed.tell_commits(rows(1, 2), "r", "l")
    before = page.look()["generation"]
    feed.tell_status(replace(TINY, lineage="other lineage"))
    assert feed.tell_commits(rows(1), "r", "other lineage")
    told = page.look()
    assert told["generation"] != before
    assert [row[0] for row in told["commits"]["rows"]] == [1]
    feed.tell_status(replace(TINY, run="other", lineage="other lineage"))
    assert page.look()["commits"]["rows"] == []


def test_who_follows_another_lineage_does_not_turn_the_page_over() -> None:
    feed = Feed("live")
    page = Page(feed)
    feed.tell_status(TINY)
    assert feed.tell_history(History("r", "l", "1", rows(1, 2)), "p", 1.0)
    before = page.look()["generation"]
    behind = History("r", "old", "1", rows(3), notes=(NoteRow(1, 0.0, 3, "view", "view 3"),))
    assert not feed.tell_history(behind, "q", 1.0)
    assert not feed.tell_history(replace(behind, run="another"), "q", 1.0)
    feed.tell_status(replace(TINY, lineage="", speaker=Speaker("standby", "", "", "")))
    feed.tell_status(SwarmStatus(WHO))
    told = page.look()
    assert (told["generation"], told["commits"]["rows"]) == (before, [])
    assert [row[4] for row in told["notes"]["rows"]] == ["view 3"]


def test_logs_are_bounded_and_a_page_that_is_late_gets_what_is_left() -> None:
    log = GrowingLog(10)
    for number in range(25):
        log.append((number,))
    found = log.since(3)
    assert [row[0] for row in found["rows"]] == list(range(15, 25))
    assert (found["next"], found["more"]) == (25, False)
    assert log.since(1 << 60)["rows"] == []


def test_a_feed_is_bounded_and_read_in_pieces() -> None:
    feed = Feed("live")
    feed.tell_commits(rows(*range(1, COMMITS_KEPT + 500)), "r", "l")
    feed.tell_decisions(Decision(float(n), n, "p", "kind", f"text {n}") for n in range(NOTES_KEPT + 10))
    page, steps, notes = Page(feed), [], []
    while True:
        told = page.look()
        assert len(told["commits"]["rows"]) <= ROWS_MAX
        steps += [row[0] for row in told["commits"]["rows"]]
        notes += told["notes"]["rows"]
        if not told["commits"]["more"] and not told["notes"]["more"]:
            break
    assert steps == list(range(500, COMMITS_KEPT + 500))
    assert len(notes) == NOTES_KEPT


def test_what_is_known_stays_when_nobody_is_heard_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last volunteer has left: who still answers is a meeting point, which takes part in no run."""
    feed = Feed("live")
    feed.tell_status(TINY)
    heard, now = time.time(), time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    for seconds, silent in ((0.0, False), (SILENT_SECONDS - 1, False), (SILENT_SECONDS + 1, True)):
        now = heard + seconds
        feed.tell_status(SwarmStatus(TINY.speaker, state="meeting point"))
        feed.tell_trouble("nobody asked knows the run")
        told = Page(feed).look()
        assert told["silent"] is silent and told["status"]["run"] == TINY.run
        assert told["age"] == pytest.approx(seconds, abs=0.5)
    feed.tell_status(TINY)
    assert Page(feed).look()["silent"] is False and Page(feed).look()["trouble"] == ""


def test_trouble_is_told_until_somebody_answers() -> None:
    feed = Feed("live")
    feed.tell_trouble("no peer answered")
    assert Page(feed).look()["trouble"] == "no peer answered"
    feed.tell_status(TINY)
    assert Page(feed).look()["trouble"] == ""
