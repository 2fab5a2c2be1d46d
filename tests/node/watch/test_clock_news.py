"""A clock that is off is said once, and by the majority of the peers."""

from __future__ import annotations

import msgpack
import pytest

from ftnode.node.watch.clock_news import ClockNews
from ftnode.node.watch.clock_offset import ClockOffset, median
from ftnode.node.watch.peer_latency import UNCONNECTED, Acquaintance, read_answer


def known(*ahead: float) -> list[Acquaintance]:
    return [UNCONNECTED, *(Acquaintance("direct", clock=ClockOffset(each, 0.1)) for each in ahead)]


def test_a_wrong_clock_is_said_once_and_again_when_it_is_right() -> None:
    news = ClockNews(10.0)
    assert news.look(known()) == news.look(known(0.5, -2.0)) == ""
    told = news.look(known(3600.0))
    assert told.startswith("this machine's clock is 3600.0 s behind the peers'") and "timedatectl set-ntp true" in told
    assert news.look(known(3601.0)) == news.look(known()) == ""
    assert news.look(known(0.0)) == "this machine's clock is right again"
    assert "ahead of" in news.look(known(-3600.0)), "and when it goes wrong anew"


def test_a_clock_so_far_off_that_records_are_none_is_told_from_one_that_is_only_wrong() -> None:
    news = ClockNews(10.0)
    assert news.too_far(known()) == news.too_far(known(9.0, -9.0)) == news.too_far(known(3600.0, 0.0, 0.1)) == ""
    assert news.too_far(known(-3600.0)) == "this machine's clock is 3600.0 s ahead of the peers' (±0.1 s)"


def test_one_wrong_peer_among_three_is_not_believed() -> None:
    assert ClockNews(10.0).look(known(3600.0, 0.0, 0.1)) == ""
    assert ClockNews(10.0).look(known(3600.0, 0.0)) == ClockNews(10.0).look(known(0.0, -3600.0)) == ""
    assert median([]) is None


def test_a_slow_answer_says_little() -> None:
    assert ClockOffset(11.0, 9.0).off == 2.0 and ClockOffset(1.0, 9.0).off == 0.0


@pytest.mark.parametrize(
    ("told", "offset"),
    [(130.0, ClockOffset(30.0, 0.5)), (float("nan"), None), (float("inf"), None), ("noon", None), (None, None)],
)
def test_what_a_peer_says_of_its_clock(told: object, offset: ClockOffset | None) -> None:
    answer = {"version": "1", "role": "volunteer", "device": "cpu", "clock": told}
    assert read_answer(msgpack.packb(answer), 100.0, 0.5).clock == offset
