"""What Linux says of connections whose other end has gone silent."""

from __future__ import annotations

import socket

import pytest

from ftnode.node.links import unacknowledged
from ftnode.node.links.unacknowledged import acknowledged, resent

FOUR = "   5: 0202A8C0:1005 63004D2C:1005 01 00000020:00000000 01:0000002A 00000003     0        0 77 2 0"


def test_a_line_of_the_table_is_read() -> None:
    assert resent([FOUR], "44.77.0.99", 4101) == [3]
    assert resent([FOUR], "::ffff:44.77.0.99", 4101) == [3]
    assert resent([FOUR], "44.77.0.99", 4102) == [] == resent([FOUR], "44.77.0.98", 4101)
    assert resent([FOUR.replace(" 01 0", " 06 0")], "44.77.0.99", 4101) == [], "it is closed"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_that_works_is_acknowledged(
    family: socket.AddressFamily, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert not acknowledged(host, port), "there is none"
        with socket.create_connection((host, port)):
            assert acknowledged(host, port)
            monkeypatch.setattr(unacknowledged, "TABLES", ())
            assert not acknowledged(host, port), "where nobody knows"
