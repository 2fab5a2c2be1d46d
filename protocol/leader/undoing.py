"""The leader's part in rolling back by the author's order (rule 47): look what the disks have of the step that was
ordered, or of earlier ones, and found the lineage that goes on from there.

Nothing is changed while the disks are looked at, and nothing where they have no such version: the swarm trains on, and
whoever leads goes on looking, since somebody may come whose disk has it.
"""

from __future__ import annotations

from ftnode.protocol.leader.restart import Restart
from ftnode.protocol.recovery.disk_versions import number_after
from ftnode.protocol.situation import GoOnFromDisks, Outcome, ShowView, Situation
from ftnode.protocol.words.effects import ShowOrder
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View


class Undoing:
    """In one view."""

    def __init__(self, view: View, restart: Restart) -> None:
        self.view, self.restart = view, restart
        self.told: set[Peer] = set()
        """Members that have said what is on their disks since the order is known here."""
        self.trouble = ""
        """Why nothing has come of the order so far, in words."""
        self._since: float | None = None

    def beat(self, s: Situation) -> Outcome:
        """Empty while nothing is to be undone. All members are waited for, for a lease at most where the disks suffice,
        and else as long as disks are waited for after a restart, whatever views this peer leads meanwhile."""
        out, settings, order = Outcome(), s.settings, s.order
        if not s.to_roll_back or not s.quorate:
            return out
        for peer in sorted(s.members - self.told - {s.me}):  # a certificate has what members ordered
            out.append(ShowView(peer, self.view.number) if order.members else ShowOrder(peer))
        if self._since is None:
            self._since = s.now
        memory, best = self.restart.memory, self.restart.before_order(s)
        if memory.ordered[0] != order.number:
            memory.ordered = order.number, s.now
        looked = self.told >= s.members - {s.me} or s.now - self._since >= settings.lease_seconds
        if best is not None and looked:
            known = self.restart.known(s)
            counted = {peer for _, peers in best.kept.values() for peer in peers}
            kept = (one for peer in counted for one in known[peer] if one.version == best.version)
            number = number_after(kept, self.view.number)
            lost = max(0, s.highest_step - best.version.step)
            reason = (
                f"{order.giver} ordered to roll back to step {order.step}: goes on from the snapshots of step "
                f"{best.version.step}, and {lost} steps are undone"
            )
            out.append(GoOnFromDisks(number, best.version, len(best.kept), reason, order.number))
        elif best is None and looked:
            self.trouble = f"no disk here has all stages of step {order.step} or of an earlier one"
            if not settings.snapshot_every:
                self.trouble = "this run keeps no snapshots"
            if s.now - memory.ordered[1] >= settings.restart_wait_seconds:
                told = f"the order to roll back to step {order.step} changes nothing: {self.trouble}"
                out.note("rollback", told, step=str(order.step))
        return out
