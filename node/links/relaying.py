"""Whether this node relays for others, and for whom: the owner's word, the line, and who takes part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from ftnode.node.links.p2pd import P2pd
from ftnode.node.links.reachability import DIRECT, Reach
from ftnode.node.links.relay_rules import MEMBER, STRANGER, Terms
from ftnode.node.links.relay_service import RelayService
from ftnode.node.machine.metered import is_metered

LOOK_SECONDS: Final = 60.0
SLOW_RATE: Final = 0.5e6
"""Bytes a second up, 4 Mbit/s: what is slower has nothing to spare beside its own tensors."""


def why_not(wish: str, reach: Reach | None, up: float, metered: bool) -> str:
    """Why this node does not relay; empty when it does. `up`: bytes a second of its line, 0 when that is not known."""
    if wish == "off":
        return "its owner does not want it to"
    if reach is None or reach.kind != DIRECT:
        return "others cannot dial it"
    if wish == "on":
        return ""
    if metered:
        return "its line is metered"
    return "its line is slow" if 0 < up < SLOW_RATE else ""


class Relaying:
    """`up`: bytes a second of our line, 0 when that is not known; `takes_part`: whether a PeerId does, in this run;
    `say` gets each new verdict. `reach`: how others reach us, where nobody is asked for it."""

    def __init__(
        self, p2pd: P2pd, wish: str, up: Callable[[], float], takes_part: Callable[[str], bool],
        say: Callable[[str, str], None], reach: Reach | None = None,
    ) -> None:  # fmt: skip
        self.reach = reach
        self.service = RelayService(p2pd, self._why_not, self._terms)
        self._wish, self._up, self._takes_part, self._say = wish, up, takes_part, say
        self._metered = False
        self._said = ""

    async def run(self) -> None:
        while True:
            self._metered = self._wish == "auto" and await is_metered()
            self.look()
            await trio.sleep(LOOK_SECONDS)

    def look(self, reach: Reach | None = None) -> None:
        """Say what is new. `reach`: as it is from now on."""
        self.reach = reach or self.reach
        verdict = self._why_not()
        told = f"does not relay for others: {verdict}" if verdict else "relays for volunteers whom nobody can dial"
        if self.reach is not None and told != self._said and (self._said or not verdict):
            self._said = told
            self._say("relay", told)

    def _why_not(self) -> str:
        return why_not(self._wish, self.reach, self._up(), self._metered)

    def _terms(self, peer_id: str) -> Terms:
        return MEMBER if self._takes_part(peer_id) else STRANGER
