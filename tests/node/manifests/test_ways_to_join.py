"""What a public page says of joining works for whoever copies it, and names nobody that its owner did not name."""

from __future__ import annotations

import shlex
from dataclasses import replace

from ftnode.node.home.identity import Identity
from ftnode.node.manifests.authorship import sign
from ftnode.node.manifests.invitation import Invitation, parse_link
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.manifests.ways_to_join import for_anyone, ways_to_join
from ftnode.protocol.manifest.parse import parse, render

PEER = "/p2p/12D3KooWHUw3Tn3p4HGPuk8Zb1HmL2Zq8zVs3PJ5GZqNBwRoiF6q"
NAMED = f"/dns4/meet.example/tcp/31337{PEER}"
MANIFEST = parse(render(PRESETS["tiny"]))
LINK = Invitation(MANIFEST.run_id, "", (f"/ip4/192.168.1.5/tcp/31337{PEER}",))


def test_a_link_that_was_given_is_shown_at_once_and_as_it_is() -> None:
    for manifest in (None, MANIFEST):
        ways = ways_to_join(manifest, LINK, ())
        assert ways is not None and not ways.listed
        assert shlex.split(ways.join) == ["ftnode", "join", str(LINK)]
        assert shlex.split(ways.watch) == ["ftnode", "status", str(LINK)]


def test_a_link_to_another_run_than_the_one_on_the_page_is_not() -> None:
    other = parse(render(replace(PRESETS["tiny"], run=replace(PRESETS["tiny"].run, seed=99))))
    assert ways_to_join(other, LINK, (NAMED,)) is None


def test_without_a_link_the_members_manifest_makes_one(key: Identity) -> None:
    signed = parse(sign(render(PRESETS["tiny"]), key))
    ways = ways_to_join(signed, None, (NAMED,))
    assert ways is not None
    invitation = parse_link(shlex.split(ways.join)[2])
    assert invitation == Invitation(signed.run_id, signed.run.author, (NAMED,)) and invitation.author
    listed = replace(signed, membership=replace(signed.membership, join="listed"))
    assert (found := ways_to_join(listed, None, (NAMED,))) is not None and found.listed


def test_nobody_says_how_where_nobody_can() -> None:
    assert ways_to_join(None, None, (NAMED,)) is ways_to_join(MANIFEST, None, ()) is None


def test_only_what_the_internet_can_dial_is_named() -> None:
    at = [
        "/ip4/9.9.9.9/tcp/1", "/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/1", "/dns4/meet.example/tcp/31337",
        "/ip6/fe80::1/tcp/1",
    ]  # fmt: skip
    assert for_anyone([address + PEER for address in at]) == (f"/ip4/9.9.9.9/tcp/1{PEER}", NAMED)
