"""Deaths at messages: somebody is struck when the n-th message of a kind is sent or received, before it or after it."""

from __future__ import annotations

import random
from typing import Final

from ftnode.protocol.words.effects import Send
from ftnode.protocol.words.messages import Message
from ftnode.protocol.words.view import View
from tests.sim.faults import Faults
from tests.sim.host import Host
from tests.sim.targets import best_view, holders, would_halt
from tests.sim.world import World

MESSAGES_OF_RULES: Final = (
    "Prepare", "Promise", "Propose", "Accepted", "Certificate", "Status", "Begin", "Ready", "Offer", "Answer",
    "Suspect", "Poll", "PollReply", "Boundary", "Stored", "Resign", "Share",
)  # fmt: skip
"""Rules 8 to 24, message by message."""
ELECTION: Final = (
    ("Certificate", True, False), ("Certificate", True, False), ("Accepted", False, True), ("Accepted", False, False),
    ("Accepted", True, True), ("Propose", True, True), ("Propose", False, True), ("Promise", False, True),
    ("Prepare", False, True), ("Status", False, False), ("Begin", True, False), ("Begin", True, True),
)  # fmt: skip
"""(message, sending, after): the moments between a proposal and the commit that a new view may make."""


class Trigger:
    """Strike at a message: `left` more of its kind, when sending or receiving, before or after."""

    __slots__ = ("after", "kind", "left", "sending")

    def __init__(self, kind: str, left: int, sending: bool, after: bool) -> None:
        self.kind, self.left, self.sending, self.after = kind, left, sending, after


class Moments(Faults):
    """The faults that wait for a moment."""

    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__(world, chance)
        self.triggers: list[Trigger] = []
        self.kinds |= {
            "message": self.message, "election": self.election, "newcomers": self.newcomers_first,
            "head": self.head, "adjacent": self.adjacent,
        }  # fmt: skip

    def message(self) -> bool:
        """Any message, any moment."""
        chance = self.chance
        self.arm(chance.choice(MESSAGES_OF_RULES), chance.random() < 0.5, chance.random() < 0.5)
        return True

    def election(self) -> bool:
        """Somebody goes, and so do others in the election that follows."""
        leads = self.chance.random() < 0.5
        host = (self.pick_holder(leader=True) if leads else None) or self.pick_holder(leader=False)
        if host is None:
            return False
        for _ in range(self.chance.randint(1, 3)):
            self.arm(*self.chance.choice(ELECTION))
        self.take_away(host, "election")
        return True

    def head(self) -> bool:
        """Whoever holds the head goes, as often as not in the rebuild of another stage."""
        view = best_view(self.world)
        group = holders(self.world, view)[0] if view is not None else []
        if not group or group[0].paused or would_halt(self.world, self.gone_with(group[0])):
            return False
        self.take_away(group[0], "head")
        return True

    def adjacent(self) -> bool:
        """Two block stages that are neighbours, at once; now and then a third."""
        view = best_view(self.world)
        if view is None or self.world.settings.stages < 2:
            return False
        groups = holders(self.world, view)
        first = self.chance.randint(1, self.world.settings.stages - 1)
        wide = self.chance.choice([2, 2, 2, 3])
        hosts = {host for stage in range(first, first + wide) for host in groups.get(stage, []) if not host.paused}
        names = {name for host in hosts for name in self.gone_with(host)}
        if not groups[first] or not groups[first + 1] or would_halt(self.world, names):
            return False
        for host in sorted(hosts, key=lambda host: host.peer):
            if host.alive:
                self.take_away(host, "adjacent")
        return True

    def newcomers_first(self) -> bool:
        """As many stages as can be lost together are lost, and whoever held before is cut off from the newcomers."""
        view = best_view(self.world)
        if view is None or self.world.network.blocked or self.world.on_view is not None:
            return False
        lost: set[Host] = set()
        for group in holders(self.world, view).values():
            for host in group:
                names = {other.peer.id for other in lost} | self.gone_with(host)
                if host.peer != view.leader and not would_halt(self.world, names):
                    lost.add(host)
        if not lost:
            return False
        for host in sorted(lost, key=lambda host: host.peer):
            self.world.kill(host, "newcomers", silently=False)
            self.newcomer()
        self.world.on_view = self._cut_off_newcomers
        self.last = self.world.now
        return True

    def _cut_off_newcomers(self, host: Host, view: View) -> None:
        """When a view with new holders is chosen, those who were there before are cut off from everybody else."""
        before = self.world.ledger.views.get((view.lineage.id, view.number - 1))
        stayed = [peer.id for peer in view.members() if before is not None and peer in before.members()]
        if len(stayed) == len(view.members()) or not stayed or self.world.network.blocked:
            return
        self.world.on_view = None
        others = [h.peer.id for h in self.world.live() if h.peer.id not in stayed]
        seconds = self.world.settings.lease_seconds * self.chance.choice([3.0, 6.0])
        self._cut({pair for a in stayed for b in others for pair in ((a, b), (b, a))}, seconds, "newcomers")

    # -- messages

    def arm(self, kind: str, sending: bool, after: bool) -> None:
        self.triggers.append(Trigger(kind, self.chance.choice([1, 1, 1, 2, 3]), sending, after))
        self.world.on_send, self.world.on_receive = self.on_send, self.on_receive

    def on_send(self, host: Host, effect: Send) -> None:
        if self.triggers:
            self._meet(host, type(effect.message).__name__, True)

    def on_receive(self, host: Host, message: Message) -> None:
        if self.triggers:
            self._meet(host, type(message).__name__, False)

    def _meet(self, host: Host, kind: str, sending: bool) -> None:
        for trigger in self.triggers:
            if trigger.kind != kind or trigger.sending != sending:
                continue
            trigger.left -= 1
            if trigger.left > 0 or would_halt(self.world, self.gone_with(host)):
                continue
            self.triggers.remove(trigger)
            moment = f"{'sent' if sending else 'received'} {kind}"
            self.counts[f"{'after' if trigger.after else 'before'} it {moment}"] += 1
            if trigger.after:
                self.world.at(self.world.now, self._strike_at, (host, f"after it {moment}"))
            else:
                self._strike_at(host, f"before it {moment}")
            return

    def _strike_at(self, host: Host, text: str) -> None:
        if host.alive and not host.paused:
            self.world.remark(f"{host.peer} is struck {text}")
            self.take_away(host, "message")
