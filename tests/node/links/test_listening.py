"""Where a node listens when nobody says where, and IPv6 beside IPv4."""

from __future__ import annotations

import re
import socket

import pytest

from ftnode.node.links import listening
from ftnode.node.links.listening import check_listen, everywhere, from_here
from ftnode.protocol.words.errors import UserError


def test_by_default_it_listens_on_all_addresses_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("/ip4/0.0.0.0/tcp/4101", "/ip6/::/tcp/4101")
    assert everywhere(4101) == both
    assert from_here(both) == ("/ip4/127.0.0.1/tcp/4101", "/ip6/::1/tcp/4101")
    check_listen(everywhere(0))
    monkeypatch.setattr(listening, "_speaks", lambda family, loopback: family == socket.AF_INET)
    assert everywhere(4101) == both[:1], "a machine without IPv6"


def test_a_port_that_is_taken_in_ipv4_is_free_in_ipv6() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        check_listen([f"/ip6/::/tcp/{port}"])
        with pytest.raises(UserError, match="in use"):
            check_listen([f"/ip4/0.0.0.0/tcp/{port}"])
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match="in use"):
            check_listen([f"/ip6/::1/tcp/{port}"])


def test_an_address_of_another_machine_is_answered_with_what_to_write() -> None:
    with pytest.raises(UserError, match="use /ip6/::/tcp/4101"):
        check_listen(["/ip6/2001:db8::7/tcp/4101"])
    with pytest.raises(UserError, match=re.escape("use /ip4/0.0.0.0/tcp/4101")):
        check_listen(["/ip4/192.0.2.7/tcp/4101"])
