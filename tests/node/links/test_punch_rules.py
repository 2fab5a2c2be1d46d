"""When a punch is worth a try, when it is not any more, and what counts as a direct connection."""

from __future__ import annotations

import pytest

from ftnode.node.links.punch_rules import (
    AGAIN_SECONDS,
    ASKED,
    AT_ONCE_MAX,
    Connections,
    Punches,
    relays_of,
    seen_at,
    way_to,
)

RELAY = "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
PEER = "12D3KooWNYfYW2B8HBPp7iis6qZP7BnRSD1BTF99BLCVQHkD56P7"
AT_RELAY = "/ip4/192.0.2.2/tcp/31337"
CIRCUIT = f"{AT_RELAY}/p2p/{RELAY}/p2p-circuit"
HOME = "/ip4/192.168.1.2/tcp/4101"
SEEN = "/ip4/192.0.2.9/tcp/20001"
OWN = ("/ip4/192.168.7.2/tcp/4101",)
MET: Connections = ((RELAY, AT_RELAY),)


def choice(
    addresses: tuple[str, ...] = (HOME, CIRCUIT), connections: Connections = MET, own: tuple[str, ...] = OWN
) -> tuple[str, str]:
    return Punches().choose(0.0, PEER, addresses, connections, own)


def failed(punches: Punches, now: float) -> None:
    punches.began()
    punches.ended(now, PEER, "", "no packet came through")


def test_a_peer_behind_a_relay_that_we_are_connected_to_is_worth_a_try() -> None:
    assert choice() == (RELAY, "")


@pytest.mark.parametrize(
    ("addresses", "connections", "own", "why"),
    [
        ((HOME,), MET, OWN, "behind no relay"),
        ((HOME, CIRCUIT), (), OWN, "not connected to its relay"),
        ((HOME, CIRCUIT), MET, ("/ip6/2606:4700::2/tcp/4101", "/ip4/127.0.0.1/tcp/4101"), "IPv4 alone and we IPv6"),
        (
            (HOME, CIRCUIT),
            ((RELAY, f"/ip4/192.0.2.3/tcp/9/p2p/{PEER}/p2p-circuit"),),
            OWN,
            "not connected to its relay",
        ),
        ((HOME, CIRCUIT), (*MET, (PEER, CIRCUIT)), OWN, "there is a connection"),
        ((HOME, CIRCUIT), MET, (), "listen nowhere"),
        ((HOME, CIRCUIT), MET, (CIRCUIT, "/ip4/192.168.7.2/udp/4101/quic-v1"), "listen nowhere"),
    ],
)
def test_what_is_not(addresses: tuple[str, ...], connections: Connections, own: tuple[str, ...], why: str) -> None:
    relay, reason = choice(addresses, connections, own)
    assert relay == "" and why in reason


def test_a_try_that_failed_is_made_again_later_and_later() -> None:
    punches, now = Punches(), 0.0
    for pause in (*AGAIN_SECONDS, AGAIN_SECONDS[-1]):
        failed(punches, now)
        assert punches.choose(now + pause - 1, PEER, (CIRCUIT,), MET, OWN) == ("", "no packet came through")
        now += pause
        assert punches.choose(now, PEER, (CIRCUIT,), MET, OWN) == (RELAY, "")
    assert punches.trouble == "no packet came through" and not punches.punched


def test_a_try_that_worked_forgets_those_that_did_not() -> None:
    punches = Punches()
    failed(punches, 0.0)
    punches.began()
    punches.ended(AGAIN_SECONDS[0], PEER, "punched", "")
    assert (punches.punched, punches.trouble) == ({PEER}, "")
    assert punches.choose(AGAIN_SECONDS[0], PEER, (CIRCUIT,), MET, OWN) == (RELAY, ""), "at once, if it is cut off"
    punches.began()
    punches.ended(AGAIN_SECONDS[0], PEER, "direct", "")
    assert not punches.punched, "nobody's router had to be opened"


def test_so_many_at_once_and_no_more() -> None:
    punches = Punches()
    for _ in range(AT_ONCE_MAX):
        assert punches.choose(0.0, PEER, (CIRCUIT,), MET, OWN)[0] == RELAY
        punches.began()
    assert punches.choose(0.0, PEER, (CIRCUIT,), MET, OWN) == ("", f"{AT_ONCE_MAX} others are tried")
    assert punches.objection(0.0, RELAY, [RELAY]) == "too many at once"
    punches.ended(0.0, "another", "direct", "")
    assert punches.objection(0.0, RELAY, [RELAY]) == ""


def test_whose_word_counts_and_how_often() -> None:
    punches = Punches()
    assert punches.objection(0.0, "stranger", [RELAY]) == "it is no relay of ours"
    assert [punches.objection(0.0, RELAY, [RELAY]) for _ in range(ASKED.at_once)] == [""] * ASKED.at_once
    assert punches.objection(0.0, RELAY, [RELAY]) == "too many at once"
    assert punches.objection(ASKED.seconds, RELAY, [RELAY]) == ""
    assert punches.objection(0.0, "who asks a relay") == "", "the others have tokens of their own"


def test_a_circuit_is_no_direct_connection() -> None:
    assert way_to(PEER, [(PEER, CIRCUIT)]) == way_to(PEER, [(RELAY, AT_RELAY)]) == way_to(PEER, []) == ""
    assert way_to(PEER, [(PEER, CIRCUIT)], [CIRCUIT]) == "", "even though it is announced"
    assert way_to(PEER, [(PEER, CIRCUIT), (PEER, SEEN)], [CIRCUIT, HOME]) == "punched"
    assert way_to(PEER, [(PEER, SEEN)], [SEEN]) == "direct"
    for here in ("/ip4/127.0.0.1/tcp/40001", "/ip6/::1/tcp/40001"):
        assert way_to(PEER, [(PEER, here)], [CIRCUIT]) == "direct", "no router is on this machine"
    assert way_to(PEER, [(PEER, "")]) == "punched", "an address that we cannot write"
    assert seen_at(PEER, [(PEER, CIRCUIT)]) == ""
    assert seen_at(PEER, [(PEER, CIRCUIT), (PEER, "/ip4/192.0.2.9/udp/5/quic-v1"), (PEER, SEEN)]) == SEEN


def test_relays_are_the_same_for_both_whatever_the_order() -> None:
    other = f"/ip4/192.0.2.4/tcp/1/p2p/{PEER}/p2p-circuit"
    assert relays_of([CIRCUIT, other, HOME, "nonsense"]) == relays_of([other, CIRCUIT]) == (PEER, RELAY)
