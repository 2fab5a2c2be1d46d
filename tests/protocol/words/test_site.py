"""Where peers are, by their owners' word or by their addresses, and what one site holds alone."""

from __future__ import annotations

import pytest

from ftnode.protocol.words.site import (
    apart,
    decided_by_one_site,
    held_by_one_site,
    implied_site,
    nearness,
    site_of,
)
from ftnode.protocol.words.types import Peer
from tests.protocol.situations import A, B, C, D, view_of


@pytest.mark.parametrize(
    ("addresses", "site"),
    [
        ((), ""),
        (("/ip4/10.1.2.3/tcp/31337", "/ip4/127.0.0.1/tcp/31337", "/ip6/fe80::1/tcp/31337"), ""),
        (("/ip4/10.1.2.3/tcp/31337", "/ip4/93.184.216.34/tcp/31337"), "93.184.0.0/16"),
        (("/ip6/2a01:4f8:c0c:1::2/tcp/31337",), "2a01:4f8:c00::/40"),
        (("/ip6/2a01:4f8:c0c:1::2/tcp/1", "/ip4/93.184.216.34/tcp/1", "/ip4/8.8.8.8/tcp/1"), "93.184.0.0/16"),
        (("/ip4/93.184.216.34/tcp/1/p2p/12D3Koo/p2p-circuit",), ""),
        (("/dns4/example.org/tcp/1", "/ip4/no/tcp/1", "", "/", "/ip4"), ""),
        (("/ip4/224.0.0.1/tcp/1", "/ip6/ff02::1/tcp/1"), ""),
    ],
)  # fmt: skip
def test_a_public_address_implies_a_site(addresses: tuple[str, ...], site: str) -> None:
    assert implied_site(addresses) == site == site_of("", addresses)
    assert site_of("attic", addresses) == "attic"


@pytest.mark.parametrize(
    ("site", "others", "near"),
    [("x", [], 0), ("x", [""], 0), ("", [""], 0), ("x", ["y", ""], 0), ("", ["y"], 1), ("x", ["y", "x"], 2)],
)
def test_how_near_a_site_is(site: str, others: list[str], near: int) -> None:
    assert nearness(site, others) == near


@pytest.mark.parametrize(
    ("sites", "decides"),
    [
        ("xyz", None),
        ("xxy", ("x", 2)),
        ("xx", None),
        ("xxx", None),
        ("xxyz", ("x", 2)),
        ("yxxz", None),
        ("xx", None),
        ("  x", None),
        ("xx ", ("x", 2)),
    ],
    ids=[
        "one each",
        "most",
        "all",
        "all of three",
        "half with the leader",
        "half without",
        "two",
        "unknown",
        "one not",
    ],
)
def test_a_site_whose_voters_decide(sites: str, decides: tuple[str, int] | None) -> None:
    """A leads, and each votes."""
    voters = (A, B, C, D)[: len(sites)]
    where = {peer: site.strip() for peer, site in zip(voters, sites)}
    assert decided_by_one_site(view_of(*((peer,) for peer in voters)), where) == decides


def test_of_an_unknown_site_nothing_is_said() -> None:
    assert apart("x", ["y", ""]) and apart("x", []) and not apart("x", ["y", "x"])
    assert not apart("", ["y"]) and not apart("", [])


@pytest.mark.parametrize(
    ("holders", "alone"),
    [
        (((A,), (B,), (C,)), {"x": (0, 1)}),
        (((A, B), (C,), (D,)), {"x": (0,)}),
        (((A, C), (B, C), (C,)), {}),
        (((A,), (A,), (C,)), {}),
        (((A, D), (B, D), (C,)), {}),
        (((), (C,), (D,)), {}),
    ],
    ids=[
        "two of one site",
        "both holders of a stage",
        "others, too",
        "one peer",
        "one of whom nothing is known",
        "vacant",
    ],
)
def test_what_one_site_holds_alone(holders: tuple[tuple[Peer, ...], ...], alone: dict[str, tuple[int, ...]]) -> None:
    assert held_by_one_site(holders, {A: "x", B: "x", C: "y"}) == alone
