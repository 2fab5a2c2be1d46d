"""ftnode: links, written and read."""

from __future__ import annotations

import pytest

from ftnode.node.manifests.invitation import PEERS_MAX, Invitation, is_link, parse_link
from ftnode.protocol.words.errors import UserError
from tests.node.directory.signers import signer

RUN = "0123456789abcdef" * 2
AUTHOR = signer(1).peer.id
ADDRESS = f"/ip4/192.0.2.7/tcp/31337/p2p/{signer(2).peer.id}"


@pytest.mark.parametrize("author", [AUTHOR, ""])
def test_what_is_written_is_read(author: str) -> None:
    invitation = Invitation(RUN, author, (ADDRESS, ADDRESS.replace("tcp", "udp") + "/x y&z"[:0]))
    assert is_link(str(invitation)) and parse_link(str(invitation)) == invitation
    assert str(invitation).startswith(f"ftnode:{RUN}?") and " " not in str(invitation)


def test_a_link_stays_short() -> None:
    assert str(Invitation(RUN, AUTHOR, (ADDRESS,) * 99)).count("peer=") == PEERS_MAX


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("ftnode:", "is no ftnode: link"),
        ("ftnode:123?peer=x", "is no ftnode: link"),
        (f"ftnode:{RUN}", "names no peer"),
        (f"ftnode:{RUN}?author={AUTHOR}", "names no peer"),
        (f"ftnode:{RUN}?author=me&peer={ADDRESS}", "the link's author is wrong"),
        (f"ftnode:{RUN}?peer=nowhere", "nowhere"),
        (f"ftnode:{RUN}?pear={ADDRESS}", "says pear"),
        (f"ftnode:{RUN}?peer", "is damaged"),
        (f"ftnode:{RUN}?" + f"peer={ADDRESS}&" * 40, "damaged"),
        (f"ftnode:{RUN}?peer=" + "x" * 10_000, "is no ftnode: link"),
    ],
)
def test_a_wrong_link_is_one_line(link: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_link(link)
