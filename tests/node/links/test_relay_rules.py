"""What a relay gives whom: tables, and what an abuser gets."""

from __future__ import annotations

from random import Random

import pytest

from ftnode.node.links import relay_rules
from ftnode.node.links.relay_rules import ASKED, BACK_SHARE, HOUR, MEMBER, PLACE_SECONDS, STRANGER, RelayRules, Terms
from ftnode.node.links.relay_words import NO_PLACE, NO_ROOM, NOT_FOR_YOU, OK, REFUSED

SMALL = Terms(True, 2, 1000.0, 60.0, 3, 2500.0)
NOBODY = Terms(False, 1, 100.0, 6.0, 2, 150.0)


def rules_for(members: str = "abc") -> RelayRules:
    """Everybody whose name is one of these letters is a member."""
    return RelayRules(lambda peer: SMALL if peer in members else NOBODY)


def test_members_get_places_and_strangers_none() -> None:
    rules = rules_for()
    assert rules.place(0.0, "a", "192.0.2.1") == OK
    assert rules.place(0.0, "x", "192.0.2.1") == NOT_FOR_YOU
    assert rules.circuit(0.0, "b", "a") == OK and rules.circuit(0.0, "x", "a") == OK
    assert rules.circuit(0.0, "a", "b") == NO_PLACE
    assert rules.circuit(0.0, "a", "a") == REFUSED


def test_a_place_that_is_not_renewed_is_gone() -> None:
    rules = rules_for()
    rules.place(0.0, "a", "192.0.2.1")
    assert rules.place(PLACE_SECONDS - 1, "a", "192.0.2.1") == OK
    assert rules.circuit(PLACE_SECONDS + 1, "b", "a") == OK and rules.places(PLACE_SECONDS + 1) == 1
    assert rules.circuit(2 * PLACE_SECONDS, "b", "a") == NO_PLACE and rules.places(2 * PLACE_SECONDS) == 0


def test_places_of_one_host_and_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_rules, "PLACES_OF_HOST", 2)
    monkeypatch.setattr(relay_rules, "PLACES_MAX", 3)
    rules = rules_for()
    assert [rules.place(0.0, peer, "192.0.2.1") for peer in "aba"] == [OK, OK, OK]
    assert rules.place(0.0, "c", "192.0.2.1") == NO_ROOM
    assert rules.place(0.0, "c", "192.0.2.2") == OK
    many = RelayRules(lambda peer: SMALL)
    assert [many.place(0.0, peer, peer) for peer in "abcd"] == [OK, OK, OK, NO_ROOM]


def test_circuits_of_one_peer_and_of_its_kind_are_bounded() -> None:
    rules = rules_for()
    rules.place(0.0, "c", "192.0.2.1")
    begun = [rules.begin("a", "c"), rules.begin("a", "c")]
    assert rules.circuit(0.0, "a", "c") == NO_ROOM and rules.circuit(0.0, "b", "c") == OK
    rules.begin("b", "c")
    assert rules.circuit(0.0, "b", "c") == NO_ROOM, "members have three together"
    assert rules.circuit(0.0, "x", "c") == OK
    rules.end("a", "c", begun[0])
    assert rules.circuit(0.0, "a", "c") == OK
    assert rules.begin("x", "c") == NOBODY
    assert rules.circuit(0.0, "x", "c") == NO_ROOM and rules.circuit(0.0, "y", "c") == OK


def test_who_has_used_up_its_bytes_is_cut_off_until_some_have_come_back() -> None:
    rules = rules_for()
    rules.place(0.0, "c", "192.0.2.1")
    assert rules.spend(0.0, "a", "c", 1000) == ""
    assert "used up" in rules.spend(0.0, "a", "c", 1)
    assert rules.circuit(0.0, "a", "c") == NO_ROOM and rules.circuit(0.0, "b", "c") == OK
    back = HOUR * BACK_SHARE
    rules.place(0.9 * back, "c", "192.0.2.1")
    assert rules.circuit(0.9 * back, "a", "c") == NO_ROOM and rules.circuit(1.2 * back, "a", "c") == OK


def test_strangers_have_a_limit_together() -> None:
    """Or somebody with many PeerIds would have as much as all of them."""
    rules = rules_for()
    rules.place(0.0, "c", "192.0.2.1")
    assert rules.spend(0.0, "x", "c", 100) == "" and rules.spend(0.0, "y", "c", 50) == ""
    assert "together" in rules.spend(0.0, "z", "c", 50)
    assert rules.circuit(0.0, "w", "c") == NO_ROOM and rules.circuit(0.0, "b", "c") == OK


def test_who_becomes_a_member_gets_what_members_get() -> None:
    members = set("c")
    rules = RelayRules(lambda peer: SMALL if peer in members else NOBODY)
    rules.place(0.0, "c", "192.0.2.1")
    rules.spend(0.0, "x", "c", 101)
    assert rules.circuit(0.0, "x", "c") == NO_ROOM
    members.add("x")
    assert rules.circuit(0.0, "x", "c") == OK and rules.spend(0.0, "x", "c", 500) == ""


def test_who_asks_without_end_is_refused() -> None:
    rules = rules_for()
    answers = [rules.place(0.0, "a", "192.0.2.1") for _ in range(ASKED.at_once + 5)]
    assert answers == [OK] * ASKED.at_once + [REFUSED] * 5
    assert rules.place(10 * ASKED.seconds, "a", "192.0.2.1") == OK


def test_the_rate_follows_what_is_relayed() -> None:
    rules = RelayRules(lambda peer: MEMBER)
    for tick in range(600):
        rules.spend(tick / 10, "a", "c", 100_000)
    assert rules.rate(60.0) == pytest.approx(1e6, rel=0.05)
    assert rules.rate(120.0) < 1e4


def test_an_asker_learns_the_rates_of_its_own_circuits_alone() -> None:
    rules = RelayRules(lambda peer: MEMBER)
    terms = rules.begin("a", "c")
    rules.begin("b", "c")
    for tick in range(600):
        rules.spend(tick / 10, "a", "c", 100_000)
    assert rules.rates_of(60.0, "c") == {"a": pytest.approx(1e6, rel=0.05), "b": 0.0}
    assert list(rules.rates_of(60.0, "a")) == ["c"]
    rules.end("a", "c", terms)
    assert rules.rates_of(60.0, "a") == {}


def test_circuits_of_one_pair_share_a_rate_that_stays_until_the_last_ends() -> None:
    rules = RelayRules(lambda peer: MEMBER)
    first, second = rules.begin("a", "c"), rules.begin("c", "a")
    for tick in range(600):
        rules.spend(tick / 10, "a", "c", 100_000)
    rules.end("a", "c", first)
    assert rules.rates_of(60.0, "a") == {"c": pytest.approx(1e6, rel=0.05)}
    rules.end("c", "a", second)
    assert rules.rates_of(60.0, "a") == {}


@pytest.mark.parametrize("seed", range(20))
def test_no_stranger_gets_more_than_its_terms_whatever_it_does(seed: int) -> None:
    """Over a day, of one that asks, is cut off, and comes back: its first hour's bytes, and what has come since."""
    chance, rules, carried, now, open_ = Random(seed), RelayRules(lambda peer: STRANGER), 0, 0.0, []
    rules._places["c"] = "192.0.2.1", 1e9
    while now < 24 * HOUR:
        now += chance.expovariate(1 / 30.0)
        if rules.circuit(now, "x", "c") == OK:
            open_.append(rules.begin("x", "c"))
        for _ in open_:
            size = chance.randrange(1 << 26)
            if rules.spend(now, "x", "c", size):
                for each in open_:
                    rules.end("x", "c", each)
                open_ = []
                break
            carried += size
        assert len(open_) <= STRANGER.circuits
        assert carried <= STRANGER.bytes_an_hour * (1 + now / HOUR)
    assert carried > 6 * STRANGER.bytes_an_hour, "and it gets on"
