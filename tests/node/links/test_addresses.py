"""Addresses that people type, and the file of those remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftnode.node.links import addresses
from ftnode.node.links.addresses import (
    PeerAddress,
    best_of_each,
    is_dialable,
    parse_peer,
    parse_peers,
    remember_peers,
    remembered_peers,
)
from ftnode.protocol.words.errors import UserError

ID = "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
OTHER = "12D3KooWNYfYW2B8HBPp7iis6qZP7BnRSD1BTF99BLCVQHkD56P7"


@pytest.mark.parametrize(
    "address",
    ["/ip4/127.0.0.1/tcp/4001", "/ip6/::1/tcp/4001", "/dns4/example.org/tcp/4001", "/ip4/10.0.0.1/udp/9/quic-v1"],
)
def test_good_addresses(address: str) -> None:
    assert parse_peer(f"{address}/p2p/{ID}") == PeerAddress(ID, (address,))
    assert str(parse_peer(f" {address}/p2p/{ID}\n")) == f"{address}/p2p/{ID}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no multiaddr"),
        ("localhost:4001", "no multiaddr"),
        ("/ip4/127.0.0.1/tcp/4001", "PeerId of whom"),
        (f"/p2p/{ID}", "no multiaddr"),
        (f"/ip4/127.0.0.1/tcp/99999/p2p/{ID}", "no multiaddr"),
        (f"/ip4/1.2.3/tcp/1/p2p/{ID}", "no multiaddr"),
        (f"/unix/run/x/p2p/{ID}", "no multiaddr"),
        ("/ip4/127.0.0.1/tcp/4001/p2p/12D3KooW", "PeerId"),
        ("/ip4/127.0.0.1/tcp/4001/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "PeerId"),
        ("/ip4/127.0.0.1/tcp/4001/p2p/" + "1" * 5000, "PeerId"),
        (f"/dns/{'a' * 300}/tcp/1/p2p/{ID}", "no multiaddr"),
    ],
)
def test_bad_addresses_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        parse_peer(text)
    assert caught.value.exit_code == 64
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_addresses_of_one_peer_stand_together() -> None:
    texts = [f"/ip4/10.0.0.{n}/tcp/1/p2p/{who}" for n, who in ((1, ID), (2, OTHER), (3, ID), (1, ID))]
    assert parse_peers(texts) == (
        PeerAddress(ID, ("/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.3/tcp/1")),
        PeerAddress(OTHER, ("/ip4/10.0.0.2/tcp/1",)),
    )


@pytest.mark.parametrize(
    "address", ["", "/", "/unix/x", "http://x", "/ip4/x/tcp/1", "/ip4/127.0.0.1/tcp/1" + "/tcp/1" * 99]
)
def test_what_a_stranger_may_not_have_us_dial(address: str) -> None:
    assert not is_dialable(address)


def full(number: int) -> str:
    return f"/ip4/127.0.0.1/tcp/{number}/p2p/{ID}"


def test_peers_are_remembered_newest_first_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "REMEMBERED_MAX", 3)
    remember_peers(tmp_path, [full(1), full(2)])
    remember_peers(tmp_path, [full(3), "nonsense", full(2)])
    assert remembered_peers(tmp_path) == (full(3), full(2), full(1))
    remember_peers(tmp_path, [full(4)])
    assert remembered_peers(tmp_path) == (full(4), full(3), full(2))
    assert [path.name for path in tmp_path.iterdir()] == ["peers.json"], "no drafts are left"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"peers": 3}', '{"peers": [1, null, "x"]}', "[" * 100_000, "\x00\xff"]
)
def test_a_spoiled_file_is_as_good_as_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(text)
    assert remembered_peers(tmp_path) == ()
    remember_peers(tmp_path, [full(1)])
    assert remembered_peers(tmp_path) == (full(1),)


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    remember_peers(tmp_path / "missing", [full(1)])
    assert remembered_peers(tmp_path / "missing") == ()


def test_the_best_of_each_kind_of_ip() -> None:
    public, public_6, lan = "/ip4/8.8.8.8/tcp/1", "/ip6/2606:4700::1/tcp/1", "/ip4/192.168.1.2/tcp/1"
    assert best_of_each((lan, public, public_6, "/ip6/2606:4700::2/tcp/1")) == (public, public_6)
    assert best_of_each((lan, public_6)) == (public_6,), "who has IPv4 alone and is elsewhere gets nowhere by the other"
    assert best_of_each(("/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1")) == ("/ip4/127.0.0.1/tcp/1",)
    assert best_of_each(("/dns/example.org/tcp/1", public)) == ("/dns/example.org/tcp/1",)
    assert best_of_each(()) == ()


def test_an_address_has_one_spelling_however_it_is_typed() -> None:
    assert parse_peer(f"/ip6/2A44:0077:0:0::9/tcp/4101/p2p/{ID}").addresses == ("/ip6/2a44:77::9/tcp/4101",)
