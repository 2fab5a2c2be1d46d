"""What a volunteer does with its time, what its line gives, whom the run waits for, and when the owner is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.node.manifests.presets import PRESETS
from ftnode.node.watch.bottleneck import Bottleneck, bottleneck
from ftnode.node.watch.line_news import LineNews
from ftnode.node.watch.status import PeerRow
from ftnode.node.watch.time_use import KEPT_SECONDS, SPANS_MAX, Glance, TimeRecord, TimeUse, read_told, told
from ftnode.protocol.words.errors import PeerError

IDLE = Glance(False, False, False, 0.0)
USE = TimeUse(0.1, 0.9, 0.05, 0.8, 2.5e6)


def recorded(seconds: int, rate: float = 2.5e6, full: bool = True, begin: float = 0.0) -> TimeRecord:
    """Each second ten glances: it computes in the first, and sends in the other nine."""
    record = TimeRecord()
    for tenth in range(10 * seconds + 1):
        computes = tenth % 10 == 0
        record.glance(Glance(computes, not computes, full and not computes, rate), begin + tenth / 10)
    return record


def test_shares_and_rate_of_a_line_that_is_full() -> None:
    use = recorded(20).use()
    assert use is not None and use.up is not None
    assert (use.computed, use.sent, use.waited) == (pytest.approx(0.1), pytest.approx(0.9), 0.0)
    assert (use.full, use.up) == (pytest.approx(0.9), 2.5e6)


def test_who_neither_computes_nor_sends_waits() -> None:
    record = TimeRecord()
    for tenth in range(200):
        record.glance(Glance(tenth % 2 == 0, tenth % 4 == 0, False, 0.0), tenth / 10)
    use = record.use()
    assert use is not None and use.waited == pytest.approx(0.5, abs=0.01) and use.sent == pytest.approx(0.25, abs=0.01)


def test_a_line_that_was_never_full_has_no_rate() -> None:
    use = recorded(20, rate=0.0, full=False).use()
    assert use is not None and use.up is None and use.full == 0.0


def test_nothing_is_known_at_first_and_only_the_last_minute_counts() -> None:
    assert recorded(5).use() is None
    record = recorded(60)
    for tenth in range(1, 10 * int(KEPT_SECONDS) + 20):
        record.glance(IDLE, 60 + tenth / 10)
    use = record.use()
    assert use is not None and use.waited == pytest.approx(1.0) and use.sent == 0.0


def test_a_node_that_stood_still_counts_for_nothing() -> None:
    record = recorded(20)
    before = record.use()
    record.glance(IDLE, 50.0)
    assert before is not None and record.use() == before, "thirty seconds without a look"


def test_however_often_it_looks_memory_is_bounded() -> None:
    record = TimeRecord()
    for number in range(3 * SPANS_MAX):
        record.glance(IDLE, number / 1000)
    assert len(record._spans) == SPANS_MAX


def test_what_is_told_is_read_and_versions_before_tell_nothing() -> None:
    assert read_told(told(USE)) == USE
    assert read_told(told(replace(USE, up=None))) == replace(USE, up=None)
    assert read_told({"version": "1"}) is None and told(None) == {}


@pytest.mark.parametrize(
    "change", [{"sent": 1.01}, {"computed": -0.1}, {"waited": float("nan")}, {"full": "1"}, {"up": float("inf")}]
)
def test_what_cannot_be_is_a_peer_error(change: dict[str, object]) -> None:
    with pytest.raises(PeerError):
        read_told({**told(USE), **change})


def row(peer: str, computed: float | None, full: float | None, role: str = "holder") -> PeerRow:
    return PeerRow(peer, role, (1,), (), "direct", None, "", None, computed, 0.5, 0.1, full, None)


def test_the_fullest_line_or_the_busiest_device_limits_the_run() -> None:
    assert bottleneck([row("a", 0.1, 0.9), row("b", 0.8, 0.6)]) == Bottleneck("a", "line", 0.9)
    assert bottleneck([row("a", 0.1, 0.2), row("b", 0.8, 0.6, "leader")]) == Bottleneck("b", "device", 0.8)
    assert bottleneck([row("a", 0.7, 0.7)]).kind == "line"


def test_where_nobody_stands_out_nobody_is_named() -> None:
    assert bottleneck([]) == bottleneck([row("a", 0.3, 0.4), row("old", None, None)]) == Bottleneck()
    assert bottleneck([row("idle", 0.9, 0.9, "standby")]) == Bottleneck()


def test_the_owner_is_told_once_and_again_when_the_line_is_another_by_half() -> None:
    news = LineNews(PRESETS["small"])
    assert news.look(None) == news.look(replace(USE, up=None)) == ""
    said = news.look(USE)
    assert "about 20 Mbit/s up" in said and "a step takes about 131 s" in said
    assert "computed for 10% of the time" in said and "full for 80%" in said
    assert news.look(replace(USE, up=2.5e6 * 1.4)) == news.look(replace(USE, up=2.5e6 / 1.4)) == ""
    assert "10 Mbit/s" in news.look(replace(USE, up=1.25e6))
    assert "20 Mbit/s" in news.look(USE)
