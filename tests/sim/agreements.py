"""Nobody holds a stage that it has not agreed to hold, as an onlooker sees it (rules 10 and 26)."""

from __future__ import annotations

from ftnode.protocol.words.messages import Answer, Begin, Message, Offer
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation


class Agreements:
    """What leaders asked and peers answered, in all views of one world."""

    __slots__ = ("_named", "_to_learn", "_yes")

    def __init__(self) -> None:
        self._to_learn: set[tuple[Peer, str, int, int]] = set()
        """(who was asked to learn, lineage, view, stage)."""
        self._yes: set[tuple[Peer, str, int, int]] = set()
        """The same of those who said yes, to learn or to fill."""
        self._named: set[tuple[str, int, int, Peer]] = set()
        """(lineage, view, stage, learner) of all Begins."""

    def on_send(self, sender: Peer, to: Peer, message: Message) -> None:
        if isinstance(message, Offer) and message.learn:
            self._to_learn |= {(to, message.lineage, message.view, stage) for stage in message.stages}
        elif isinstance(message, Answer) and message.accepted:
            self._yes |= {(sender, message.lineage, message.view, stage) for stage in message.stages}
        elif isinstance(message, Begin):
            self._named |= {(message.lineage, message.view, stage, peer) for stage, peer in message.learners}

    def check(self, before: View, view: View) -> None:
        """Who comes in has said yes to the leader of the view before, in that view. A learner may have said it earlier,
        also in another lineage: a Begin of the view before names it. What the leader asks itself no one hears."""
        lineage, number = before.lineage.id, before.number
        for stage, group in enumerate(view.holders):
            for peer in {*group} - {*before.holders[stage]} - {before.leader}:
                agreed_now = (peer, lineage, number, stage) in self._yes
                learns = (lineage, number, stage, peer) in self._named and self._agreed_to_learn(peer, stage)
                if not (agreed_now or learns):
                    raise Violation("I2", f"{peer} has not agreed to hold stage {stage} from view {number} on: {view}")

    def _agreed_to_learn(self, peer: Peer, stage: int) -> bool:
        return any(one[0] == peer and one[3] == stage for one in self._yes & self._to_learn)
