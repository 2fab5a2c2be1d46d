"""Who belongs together, as far as it is known: what one person may be behind (rule 44).

A *crowd* is the members that others see at one network, or those that one listed volunteer vouches for, with that one.
Nothing that a peer says of itself puts it into a crowd, so that nobody can choose one, or fill another's. Peers of whom
nothing is known are one crowd: a swarm of which nothing is known is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ftnode.protocol.words.types import Peer

NETWORKS: Final[Mapping[Peer, str]] = MappingProxyType({})
VOUCHERS: Final[Mapping[str, str]] = MappingProxyType({})


class Crowds(NamedTuple):
    """What is known."""

    networks: Mapping[Peer, str] = NETWORKS
    """Where others see a peer, as `implied_site` names it; who is missing is at an unknown place."""
    vouchers: Mapping[str, str] = VOUCHERS
    """PeerId → that of the listed volunteer that its vouchers lead to; who is missing answers for itself. So does
    everybody in a run in which nobody vouches."""

    def kinds(self, peers: Iterable[Peer]) -> tuple[dict[Peer, str], dict[Peer, str]]:
        """Of each kind of crowd, whose each of these is."""
        peers = [*peers]
        networks = {peer: self.networks.get(peer, "") for peer in peers}
        return networks, {peer: self.vouchers.get(peer.id, peer.id) for peer in peers}

    def answered_with(self, peer_id: str) -> tuple[str, ...]:
        """For whom the one answers that answers for this peer: it and the others of its crowd; nobody where it answers
        for itself."""
        answers = self.vouchers.get(peer_id)
        return tuple(peer for peer, by in self.vouchers.items() if by == answers)

    def majority(self, peer: Peer, group: Iterable[Peer]) -> bool:
        """Whether its crowd would have more than half of a group that has others, if the peer joined."""
        every = [*group, peer]
        for crowd_of in self.kinds(every):
            theirs = sum(crowd_of[other] == crowd_of[peer] for other in every)
            if theirs < len(every) < 2 * theirs:
                return True
        return False


NOBODY_KNOWN: Final = Crowds()
