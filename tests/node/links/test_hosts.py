"""Which spellings of an IP address are one host, and which hosts one household."""

from __future__ import annotations

import pytest

from ftnode.node.links.dial_rules import has_way
from ftnode.node.links.hosts import family_of, household, ip_of, is_loopback

SPELLINGS = ("::ffff:8.8.8.8", "::FFFF:808:808", "0:0:0:0:0:ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1")


@pytest.mark.parametrize("host", SPELLINGS)
def test_an_ipv6_address_that_stands_for_an_ipv4_one_is_that_one(host: str) -> None:
    assert household(host) == household("8.8.8.8") == "8.8.8.8"
    assert str(ip_of(host)) == "8.8.8.8"


@pytest.mark.parametrize("host", ["::1", "0:0::1", "127.0.0.1", "127.9.9.9", "::ffff:127.0.0.1"])
def test_loopback_has_many_names(host: str) -> None:
    assert is_loopback(host)


def test_a_household_is_64_bits_of_ipv6_or_one_address_of_ipv4() -> None:
    assert household("2a44:77::1") == household("2a44:77:0:0:ffff::9") == household("2A44:0077::1")
    assert household("2a44:77:0:1::1") != household("2a44:77::1")
    assert household("8.8.8.8") != household("8.8.8.9")
    assert household("fe80::1%line") == household("fe80::2")
    assert household("example.org") == "example.org"


@pytest.mark.parametrize(
    ("host", "family"), [("2a44::1", "ip6"), ("8.8.8.8", "ip4"), ("::ffff:8.8.8.8", "ip4"), ("example.org", "")]
)
def test_families(host: str, family: str) -> None:
    assert family_of(host) == family


def test_this_machine_has_a_way_to_itself_and_none_to_where_nothing_is_routed() -> None:
    assert has_way("/ip4/127.0.0.1/tcp/4101") and has_way("/ip6/::1/tcp/4101") and has_way("/dns4/example.org/tcp/1")
    assert not has_way("/ip4/255.255.255.255/tcp/4101"), "nobody is dialled by broadcast"
