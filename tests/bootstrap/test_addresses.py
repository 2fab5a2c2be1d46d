"""What a meeting point tells people to dial."""

from __future__ import annotations

from ftnode.bootstrap.addresses import join_lines, shown_addresses

ID = "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"


def test_the_best_address_for_strangers_comes_first() -> None:
    ordered = [
        "/dns4/example.org/tcp/31337",
        "/ip4/8.8.8.8/tcp/31337",
        "/ip4/8.8.8.8/udp/31337/quic-v1",
        "/ip4/192.168.1.2/tcp/31337",
        "/ip4/127.0.0.1/tcp/31337",
        "/ip6/fe80::1/tcp/31337",
    ]
    expected = sorted(ordered[:2], key=lambda address: "dns" not in address)
    shown = shown_addresses(ID, reversed(ordered))
    assert shown[:2] == tuple(f"{address}/p2p/{ID}" for address in expected)
    assert shown == tuple(f"{address}/p2p/{ID}" for address in [*ordered[:2], *ordered[2:]])


def test_the_join_line_can_be_copied() -> None:
    full = shown_addresses(ID, ["/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.2/tcp/1"])
    lines = join_lines(full)
    assert f"to join: ftnode join RUN.toml --peer /ip4/192.168.1.2/tcp/1/p2p/{ID}" in lines
    assert not any("only this machine" in line for line in lines)


def test_it_warns_when_only_this_machine_can_come() -> None:
    lines = join_lines(shown_addresses(ID, ["/ip4/127.0.0.1/tcp/40001"]))
    assert any("listen on /ip4/0.0.0.0/tcp/40001 " in line for line in lines)
    assert join_lines(()) == []
