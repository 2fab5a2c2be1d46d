"""Links that invite to a run: `ftnode:RUN-ID?author=PEER-ID&peer=ADDRESS&peer=ADDRESS`.

Whoever follows one fetches the manifest from those peers and checks it against the run id and the author, so that the
way which the link took need not be trusted with more than the link itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote

from ftnode.node.home.identity import peer_id_bytes
from ftnode.node.links.addresses import parse_peers
from ftnode.protocol.words.errors import UserError

SCHEME: Final = "ftnode:"
LINK_BYTES_MAX: Final = 8192
PEERS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a link says."""

    run_id: str
    author: str
    """PeerId; empty when the run's manifest is not signed."""
    peers: tuple[str, ...]
    """Full multiaddrs of peers that have the manifest, or of meeting points that know such peers."""

    def __str__(self) -> str:
        fields = [("author", self.author)] if self.author else []
        fields += [("peer", address) for address in self.peers[:PEERS_MAX]]
        return f"{SCHEME}{self.run_id}?" + "&".join(f"{name}={quote(value, safe='/:')}" for name, value in fields)


def is_link(text: str) -> bool:
    """Whether somebody typed a link and not a file's name."""
    return text.startswith(SCHEME)


def parse_link(text: str) -> Invitation:
    """Raises UserError (64) that says what is wrong with the link."""
    run_id, _, query = text[len(SCHEME) : LINK_BYTES_MAX].partition("?")
    if len(text) >= LINK_BYTES_MAX or not re.fullmatch("[0-9a-f]{32}", run_id):
        raise UserError(f"{text[:60]} is no ftnode: link; it reads ftnode:RUN-ID?author=…&peer=…")
    try:
        fields = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=PEERS_MAX + 1)
    except ValueError:
        raise UserError("the link's part behind ? is damaged; copy it again, and put it between quotes") from None
    unknown = sorted({name for name, _ in fields} - {"author", "peer"})
    if unknown:
        raise UserError(f"the link says {unknown[0][:40]}, which this version of ftnode does not know")
    authors = [value for name, value in fields if name == "author"]
    peers = tuple(value for name, value in fields if name == "peer")
    if not peers:
        raise UserError("the link names no peer to fetch the manifest from; copy it again, and put it between quotes")
    parse_peers(peers)
    try:
        for author in authors:
            peer_id_bytes(author)
    except ValueError as error:
        raise UserError(f"the link's author is wrong: {error}") from None
    return Invitation(run_id, authors[0] if authors else "", peers)
