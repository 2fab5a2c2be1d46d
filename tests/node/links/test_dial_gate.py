"""Where others may send us, and how often."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ftnode.node.links import dial_gate
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.dial_gate import ENDPOINT, EVERYBODY, HOST, MET_SECONDS, DialGate
from ftnode.node.links.dial_rules import WELL_KNOWN_PORTS, Neighbourhood, endpoint_of, source_of

RELAY = "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
OTHER = "12D3KooWNYfYW2B8HBPp7iis6qZP7BnRSD1BTF99BLCVQHkD56P7"
LAN, LOOPBACK, PUBLIC = "/ip4/192.168.1.5/tcp/31337", "/ip4/127.0.0.1/tcp/31337", "/ip4/8.8.8.8/tcp/31337"
ALL = ("/ip4/127.0.0.1/tcp/31337", LAN)
"""What a node says that listens on 0.0.0.0."""


def objection(address: str, own: Sequence[str], given: Sequence[str] = (), source: str = "") -> str:
    return Neighbourhood(own, given, lambda host: source).objection(address)


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("/ip4/8.8.8.8/tcp/31337", ()),
        ("/ip4/8.8.8.8/udp/31337/quic-v1", ()),
        ("/ip6/2606:4700::1/tcp/31337", ()),
        (f"/ip4/8.8.8.8/tcp/31337/p2p/{RELAY}/p2p-circuit", ()),
        ("/ip6/::ffff:8.8.8.8/tcp/31337", ()),
        ("/ip4/192.168.77.1/tcp/31337", (LAN,)),
        ("/ip4/192.168.77.1/tcp/31337", ALL),
        ("/ip6/::ffff:192.168.77.1/tcp/31337", (LAN,)),
        ("/ip4/10.1.2.3/tcp/31337", ("/ip4/10.200.0.1/tcp/1",)),
        ("/ip4/100.64.1.1/tcp/31337", ("/ip4/100.100.1.1/tcp/1",)),
        ("/ip4/169.254.1.1/tcp/31337", ("/ip4/169.254.9.9/tcp/1",)),
        ("/ip6/fd00::2/tcp/31337", ("/ip6/fd12::1/tcp/1",)),
        ("/ip4/127.0.0.1/tcp/40000", (LOOPBACK,)),
        ("/ip6/::1/tcp/40000", ("/ip6/::1/tcp/1",)),
    ],
)
def test_addresses_that_anybody_may_name(address: str, own: tuple[str, ...]) -> None:
    assert objection(address, own) == ""


@pytest.mark.parametrize(
    ("address", "own", "why"),
    [
        ("/ip4/8.8.8.8/tcp/22", (), "privileged"),
        ("/ip4/8.8.8.8/tcp/1023", (), "privileged"),
        ("/ip4/8.8.8.8/tcp/0", (), "privileged"),
        ("/ip4/8.8.8.8/udp/53/quic-v1", (), "privileged"),
        ("/ip6/2606:4700::1/tcp/443", (), "privileged"),
        ("/ip4/8.8.8.8/tcp/5432", (), "another service"),
        ("/ip4/127.0.0.1/tcp/6379", (LOOPBACK,), "another service"),
        (f"/ip4/8.8.8.8/tcp/25/p2p/{RELAY}/p2p-circuit", (), "privileged"),
        (f"/ip4/10.1.1.1/tcp/31337/p2p/{RELAY}/p2p-circuit", (LAN,), "10.0.0.0/8"),
        (f"/ip4/8.8.8.8/tcp/31337/p2p/{RELAY}", (), "no address"),
        (f"/ip4/8.8.8.8/tcp/31337/p2p/{RELAY}/p2p-circuit/p2p/{RELAY}/p2p-circuit", (), "no address"),
        (f"/ip4/8.8.8.8/tcp/31337/p2p/{RELAY}/p2p-circuit/ip4/10.0.0.1/tcp/31337", (), "no address"),
        ("/ip4/10.1.2.3/tcp/31337", (), "10.0.0.0/8"),
        ("/ip4/10.1.2.3/tcp/31337", (LAN,), "10.0.0.0/8"),
        ("/ip4/172.20.2.3/tcp/31337", (LAN,), "172.16.0.0/12"),
        ("/ip4/192.168.1.1/tcp/31337", (PUBLIC,), "192.168.0.0/16"),
        ("/ip6/::ffff:192.168.1.1/tcp/31337", (PUBLIC,), "192.168.0.0/16"),
        ("/ip6/64:ff9b::c0a8:101/tcp/31337", (PUBLIC,), "192.168.0.0/16"),
        ("/ip6/2002:c0a8:101::1/tcp/31337", (PUBLIC,), "192.168.0.0/16"),
        ("/ip4/100.64.1.1/tcp/31337", (LAN,), "100.64.0.0/10"),
        ("/ip4/169.254.169.254/tcp/31337", (LAN,), "169.254.0.0/16"),
        ("/ip6/fd00::2/tcp/31337", (LAN,), "fc00::/7"),
        ("/ip6/fe80::2/tcp/31337", (LAN,), "fe80::/10"),
        ("/ip4/127.0.0.1/tcp/40000", (), "this machine"),
        ("/ip4/127.0.0.1/tcp/40000", (LAN,), "this machine"),
        ("/ip4/127.0.0.1/tcp/40000", ALL, "this machine"),
        ("/ip4/127.0.0.2/tcp/40000", (LOOPBACK,), "this machine"),
        ("/ip6/::1/tcp/40000", (LOOPBACK,), "this machine"),
        ("/ip6/::ffff:127.0.0.1/tcp/40000", ALL, "this machine"),
        ("/ip4/0.0.0.0/tcp/31337", ALL, "no use"),
        ("/ip6/::/tcp/31337", ALL, "no use"),
        ("/ip4/255.255.255.255/tcp/31337", ALL, "no use"),
        ("/ip4/224.0.0.1/tcp/31337", ALL, "no use"),
        ("/ip6/ff02::1/tcp/31337", ALL, "no use"),
        ("/ip4/192.0.2.7/tcp/31337", ALL, "no use"),
        ("/ip6/2001:0:1::1/tcp/31337", ALL, "no use"),
        ("/dns4/example.org/tcp/31337", ALL, "a name"),
        ("/dns/localhost/tcp/31337", ALL, "a name"),
        ("/dnsaddr/example.org/tcp/31337", ALL, ""),
        ("/ip4/8.8.8.8", ALL, "no address"),
        ("/unix/tmp/x", ALL, "no address"),
        ("/card/1/x", ALL, "no address"),
        ("", ALL, "no address"),
    ],
)
def test_addresses_that_nobody_has_us_dial(address: str, own: tuple[str, ...], why: str) -> None:
    found = objection(address, own)
    assert found and why in found


def test_a_person_or_the_kernel_says_where_we_are() -> None:
    assert objection("/ip4/10.1.2.3/tcp/31337", (), given=("/ip4/10.9.9.9/tcp/31337",)) == ""
    assert objection("/ip4/10.1.2.3/tcp/31337", (), source="10.5.5.5") == ""
    assert objection("/ip4/10.1.2.3/tcp/31337", (), source="192.168.1.5") != ""
    assert objection("/ip4/127.0.0.1/tcp/40000", ALL, given=(LOOPBACK,)) == "", "its swarm is on this machine, too"
    assert objection("/ip4/127.0.0.1/tcp/40000", (), given=(LOOPBACK,)) == "", "a watcher, which listens nowhere"
    assert objection("/ip4/127.0.0.2/tcp/40000", ALL, given=(LOOPBACK,)) != ""
    assert objection("/ip4/127.0.0.1/tcp/22", ALL, given=(LOOPBACK,)) != ""
    relayed = f"/ip4/127.0.0.1/tcp/40000/p2p/{RELAY}/p2p-circuit"
    assert objection("/ip4/127.0.0.1/tcp/40000", (relayed,)) != "", "where a relay is, we are not"
    assert source_of("127.0.0.1") == "127.0.0.1"
    assert source_of("no host") == ""


def test_ports_that_linux_hands_out_are_nobodys() -> None:
    assert all(1023 < port < 32768 for port in WELL_KNOWN_PORTS)
    assert 31337 not in WELL_KNOWN_PORTS and 4001 not in WELL_KNOWN_PORTS


def test_a_relayed_address_leads_to_the_relay() -> None:
    found = endpoint_of(f"/ip4/8.8.8.8/tcp/31337/p2p/{RELAY}/p2p-circuit")
    assert found is not None
    assert (found.host, found.port, found.base, found.relay) == ("8.8.8.8", 31337, "/ip4/8.8.8.8/tcp/31337", RELAY)


class Gate:
    """A gate whose clock stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.gate = DialGate(lambda: self.now, lambda host: "")

    def dials(self, peer_id: str, *addresses: str) -> int:
        return len(self.gate.admit(peer_id, addresses).addresses)


def at(host: int, port: int = 40000) -> str:
    return f"/ip4/8.8.{host // 250}.{host % 250 + 1}/tcp/{port}"


def test_an_endpoint_a_host_and_everybody_have_a_rate() -> None:
    here = Gate()
    assert sum(here.dials(f"peer {n}", at(1)) for n in range(50)) == ENDPOINT.at_once, "whoever claims to be there"
    assert sum(here.dials(f"peer {n}", at(1, 40001 + n)) for n in range(50)) == HOST.at_once - ENDPOINT.at_once
    spent = HOST.at_once
    assert sum(here.dials("x", at(2 + n)) for n in range(300)) == EVERYBODY.at_once - spent
    here.now += ENDPOINT.seconds
    assert [here.dials("x", at(1)) for _ in range(3)] == [1, 0, 0]
    here.now += 1e6
    assert sum(here.dials("x", at(1)) for _ in range(50)) == ENDPOINT.at_once, "no more than at first"


def test_a_minute_of_lies_costs_a_host_few_connections() -> None:
    here, made = Gate(), 0
    for second in range(60):
        here.now = 1000.0 + second
        made += sum(here.dials(f"{second} {n}", at(7, 40000 + n % 32)) for n in range(40))
    assert made <= HOST.at_once + 60 / HOST.seconds


def test_who_is_where_it_says_pays_nothing() -> None:
    here = Gate()
    for number in range(100):  # a household of a hundred
        passed = here.gate.admit("peer", [at(1, 40000 + number)])
        assert passed.addresses
        here.gate.found(passed)
    here.gate.met("peer", [at(1)])
    assert all(here.dials("peer", at(1)) for _ in range(100))
    assert here.dials("another", at(1)) == 1, "the tokens are back"
    assert sum(here.dials("another", at(1)) for _ in range(100)) == ENDPOINT.at_once - 1, "it was not met there"
    here.now += MET_SECONDS
    assert sum(here.dials("peer", at(1)) for _ in range(100)) == ENDPOINT.at_once


def test_a_person_is_obeyed() -> None:
    here = Gate()
    typed = ("/ip4/127.0.0.1/tcp/22", "/dns4/example.org/tcp/80")
    here.gate.give([PeerAddress(RELAY, typed)])
    assert all(here.gate.admit(RELAY, typed).addresses == typed for _ in range(50))
    assert here.dials(OTHER, *typed) == 0, "its words are about one peer"
    relayed = f"{typed[1]}/p2p/{RELAY}/p2p-circuit"
    assert all(here.dials(OTHER, relayed) for _ in range(50)), "through a relay that a person named"
    assert here.gate.given(RELAY) == typed and here.gate.given(OTHER) == ()


def test_those_remembered_pass_the_rules_but_not_the_rates() -> None:
    here = Gate()
    here.gate.remember([PeerAddress(OTHER, ("/ip4/127.0.0.1/tcp/40000",))])
    assert [here.dials(OTHER, "/ip4/127.0.0.1/tcp/40000") for _ in range(3)] == [1, 1, 0]
    assert here.gate.presentable(PeerAddress(OTHER, ("/ip4/127.0.0.1/tcp/40000", PUBLIC))) == (f"{PUBLIC}/p2p/{OTHER}",)


def test_the_gate_says_why() -> None:
    here = Gate()
    passed = here.gate.admit("x", ["/ip4/8.8.8.8/tcp/22"])
    assert (passed.addresses, passed.judged) == ((), 0) and "privileged" in passed.reason
    for _ in range(3):
        passed = here.gate.admit("x", [PUBLIC])
    assert (passed.addresses, passed.judged) == ((), 1) and "too many" in passed.reason
    assert here.gate.admit("x", []).reason == "it has no address"


def test_the_gate_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_gate, "MET_MAX", 10)
    monkeypatch.setattr(dial_gate, "PLACES_MAX", 10)
    here = Gate()
    for number in range(100):
        here.dials("x", at(number))
        here.gate.met(f"{number}", [at(number)])
    assert len(here.gate._met) == len(here.gate._hosts) == len(here.gate._endpoints) == 10


@pytest.mark.parametrize(
    "addresses",
    [
        [f"/ip6/2606:4700::{number:x}/tcp/31337" for number in range(1, 101)],
        [f"/ip{kind}/tcp/{31337 + number}" for number in range(40) for kind in ("4/8.8.8.8", "6/::ffff:8.8.8.8")],
    ],
    ids=["a household's many IPv6 addresses", "an IPv4 address in IPv6's spelling"],
)
def test_no_spelling_and_no_other_address_of_a_household_buys_more_dials(addresses: list[str]) -> None:
    gate = DialGate(lambda: 0.0)
    passed = [address for address in addresses if gate.admit(OTHER, [address]).addresses]
    assert len(passed) == HOST.at_once


def test_an_endpoint_is_the_same_in_every_spelling() -> None:
    gate = DialGate(lambda: 0.0)
    spellings = ("/ip4/8.8.8.8", "/ip6/::ffff:8.8.8.8", "/ip6/64:ff9b::808:808", "/ip6/2002:808:808::1")
    passed = [one for one in spellings if gate.admit(OTHER, [f"{one}/tcp/31337"]).addresses]
    assert len(passed) == ENDPOINT.at_once
