"""Whom a link names: who answers now, and nobody who is only remembered."""

from __future__ import annotations

from dataclasses import replace

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.manifests.invited_peers import NAMED_MAX, inviting_peers, is_news
from ftnode.node.watch.status import PeerRow

POINT = PeerRow("point", "bootstrap", (), ("/ip4/192.0.2.1/tcp/31337",), "direct", 0.1, "0", None)
ME = PeerRow("me", "leader", (0,), ("/ip4/127.0.0.1/tcp/5", "/ip4/192.0.2.2/tcp/5"), "self", None, "0", 0.0)
OTHER = PeerRow("other", "holder", (1,), ("/ip4/192.0.2.3/tcp/6",), "direct", 0.1, "0", 0.5)
REMEMBERED = PeerAddress("remembered", ("/ip4/192.0.2.9/tcp/9",))
GONE = PeerRow("gone", "holder", (2,), ("/ip4/192.0.2.4/tcp/7",), "none", None, "0", 0.5)
RELAYED = PeerRow(
    "hidden", "holder", (3,), ("/ip4/192.0.2.1/tcp/31337/p2p/point/p2p-circuit",), "relayed", 0.1, "0", 0.5
)


def test_who_answers_is_named_meeting_points_first() -> None:
    given = (REMEMBERED, PeerAddress("point", ("/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.1/tcp/31337")))
    assert inviting_peers((ME, GONE, RELAYED, OTHER, POINT), given, True) == (
        "/ip4/192.0.2.1/tcp/31337/p2p/point",
        "/ip4/192.0.2.2/tcp/5/p2p/me",
    ), "each at one address, and members not beside those that stay"


def at(*addresses: str) -> PeerRow:
    return replace(ME, addresses=addresses)


def test_what_others_cannot_use_is_not_named() -> None:
    public, near, here = "/ip4/8.8.8.8/tcp/5", "/ip4/10.0.0.7/tcp/5", "/ip4/127.0.0.1/tcp/5"
    assert inviting_peers((at(here, near, public),), (), True) == (f"{public}/p2p/me",)
    assert inviting_peers((at(here, near),), (), True) == (f"{near}/p2p/me",)
    assert inviting_peers((at(here),), (), True) == (f"{here}/p2p/me",), "a swarm on one machine"
    point = replace(POINT, addresses=("/ip4/1.1.1.1/tcp/31337",))
    assert inviting_peers((at(here, near), point), (), True) == ("/ip4/1.1.1.1/tcp/31337/p2p/point",)


def test_people_with_one_kind_of_ip_alone_can_use_the_link() -> None:
    four, six = "/ip4/8.8.8.8/tcp/31337", "/ip6/2606:4700::1/tcp/31337"
    assert inviting_peers((at(six, four),), (), True) == (f"{six}/p2p/me", f"{four}/p2p/me")
    point = replace(POINT, addresses=(four,))
    told = PeerAddress("point", (six, four))
    assert inviting_peers((point,), (told,), True) == (f"{four}/p2p/point", f"{six}/p2p/point")


def test_a_link_is_shown_again_only_when_the_last_one_is_of_no_use() -> None:
    assert is_news(("a",), ()) and not is_news((), ())
    assert not is_news(("a", "b"), ("a",)) and not is_news((), ("a",))
    assert is_news(("b",), ("a",)) and is_news(("a",), ("a", "b"))


def test_whom_nobody_reaches_names_others_only() -> None:
    assert inviting_peers((ME, OTHER), (), False) == ("/ip4/192.0.2.3/tcp/6/p2p/other",)
    assert inviting_peers((ME, GONE, RELAYED), (REMEMBERED,), False) == ()


def test_a_name_that_was_given_is_better_than_the_address_behind_it() -> None:
    name = "/dns4/example.org/tcp/31337"
    for told in ((name,), (*POINT.addresses, name)):
        assert inviting_peers((POINT,), (PeerAddress("point", told),), True) == (f"{name}/p2p/point",)


def test_the_name_of_every_machine_names_none() -> None:
    here = PeerAddress("point", ("/dns4/localhost/tcp/31337",))
    assert inviting_peers((POINT,), (here,), True) == (f"{POINT.addresses[0]}/p2p/point",)


def test_a_link_stays_short() -> None:
    points = [POINT] * 9
    assert len(inviting_peers(points, (), True)) == NAMED_MAX
