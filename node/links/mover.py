"""Circuits that give way to something better, between two steps: a direct connection, or a relay that does less.

A node that has just come takes what there is, often a circuit through the meeting point. Later a router may be opened
after all, or other relays are there. p2pd keeps a circuit for as long as it lasts, so it is ended at a step's end, when
little is on its way, and both sides dial anew. A link that breaks costs nobody anything but the time until then. Of two
peers the one with the smaller PeerId looks after their circuit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

import trio

from ftnode.node.links.connections import circuits_of
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.punch import Puncher
from ftnode.node.links.relay_choice import relay_in, worth_moving
from ftnode.node.links.relay_offers import RelayOffers

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
"""From one look to the next at least; what relays say of their load is that old (relay_offers.py)."""
STEP_SECONDS_MAX: Final = 60.0
"""A step that takes longer is not waited for."""
CHANCE: Final = 0.5
"""Of moving to another relay now, so that not all who share a relay leave it in the same moment."""


class Mover:
    """`peers`: PeerIds that we have links with; `where`: their addresses; `next_step`: set at the next step's end."""

    def __init__(
        self, p2pd: P2pd, puncher: Puncher, offers: RelayOffers, peers: Callable[[], Iterable[str]],
        where: Callable[[str], tuple[str, ...]], next_step: Callable[[], trio.Event], chance: Random,
    ) -> None:  # fmt: skip
        self._p2pd, self._puncher, self._offers = p2pd, puncher, offers
        self._peers, self._where, self._next_step, self._chance = peers, where, next_step, chance

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            with trio.move_on_after(STEP_SECONDS_MAX):
                await self._next_step().wait()
            try:
                await self.look()
            except P2pdError as error:
                log.warning("no circuit is moved: %s", error)

    async def look(self) -> None:
        """Move what is worth it. All punches at once, and one circuit to another relay. Raises P2pdError when our own
        p2pd does not answer."""
        circuits = circuits_of(await self._p2pd.connections())
        ours = {peer: end for peer, end in circuits.items() if self._p2pd.peer_id < peer and peer in set(self._peers())}
        async with trio.open_nursery() as nursery:
            for peer in ours:
                nursery.start_soon(self._punch, peer)
        for peer, end in ours.items():
            through = relay_in(end)
            better = worth_moving(peer, through, self._where(peer), self._offers.known)
            if better and peer in circuits_of(await self._p2pd.connections()) and self._chance.random() < CHANCE:
                log.info("the circuit to %s moves from %s, which does more, to %s", peer, through, better)
                await self._p2pd.disconnect(peer)
                return

    async def _punch(self, peer: str) -> None:
        try:
            await self._puncher.reach(peer, self._where(peer), instead=True)
        except P2pdError as error:  # not out of a nursery, where it would be one of a group
            log.warning("the circuit to %s stays: %s", peer, error)
