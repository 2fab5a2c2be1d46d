"""How somebody who sees a run on a page takes part in it: commands to copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ftnode.node.links.addresses import parse_peer, rank
from ftnode.node.manifests.invitation import Invitation
from ftnode.node.watch.public_page import Joining
from ftnode.protocol.manifest.parse import Manifest

PUBLIC_RANK: Final = 1
"""By `rank`: names, and addresses that somebody on the Internet can dial."""


def for_anyone(peers: Sequence[str]) -> tuple[str, ...]:
    """Of full multiaddrs that a person gave, those that somebody on the Internet can dial. Raises UserError (64)."""
    found = map(parse_peer, peers)
    return tuple(str(peer) for peer in found if rank(peer.addresses[0]) <= PUBLIC_RANK)


def ways_to_join(manifest: Manifest | None, link: Invitation | None, peers: Sequence[str]) -> Joining | None:
    """None where nobody can say: without a link that its owner wants to be shown, the manifest and a peer are needed.

    `manifest`: as the run's members have it; None until it was fetched. `peers`: full multiaddrs to name to anyone.
    """
    if link is not None and (manifest is None or manifest.run_id == link.run_id):
        shown = link
    elif link is None and manifest is not None and peers:
        shown = Invitation(manifest.run_id, manifest.run.author, tuple(peers))
    else:
        return None
    listed = manifest is not None and manifest.membership.join != "open"
    return Joining(f"ftnode join '{shown}'", f"ftnode status '{shown}'", listed)
