"""This peer's own way out: it hands over and stops, or it stays, since the training would go with it.

Whoever pauses comes back. Where nobody is left to take over what it holds, it is as if it had not been asked, and
whoever asked lets it stand still instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.effects import Stop
from ftnode.protocol.events import Leave
from ftnode.protocol.last_copy import last_copies, trained

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant


class Departing:
    """What has become of the owner's wish that this peer goes."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self.pauses = False
        """All that was asked for are pauses."""
        self.stayed = 0
        """How often it stayed after all."""

    def leave(self, event: Leave) -> None:
        """Hand the stages over and stop when others have them and have agreed, or when that takes too long."""
        core = self.core
        self.pauses = event.pauses and (self.pauses or not core.leaving)
        core.leaving = core.leaving or event.reason
        alone = core.members == {core.me} and (core.leader is None or not core.leader.leavers.hopeful())
        if not core.member or alone or core.holder.finished or not (core.mine or core.leader):
            self.stop()
            return
        core.holder.resigning.start(core.mine, f"leaves: {event.reason}", True, True)
        core.timers.set("leave", core.now + core.settings.hand_over_seconds * max(1, len(core.mine)))

    def on_view(self, led: bool) -> None:
        """The view is without us, or without all others. Who led the one before stays a heartbeat longer, to tell those
        who miss it."""
        core = self.core
        if led and not self._loses_all():
            core.timers.set("leave", core.now + core.settings.heartbeat_seconds)
        else:
            self.stop()

    def due(self) -> None:
        """It has taken too long."""
        core = self.core
        if last_copies(core, core.now):
            return
        if not core.holder.resigning.hands_over or self._loses_all():
            self.stop()
            return
        core.note("leave", "nobody has taken over what this node holds: leaves without handing over")
        core.holder.resigning.at_once()
        core.timers.set("leave", core.now + 2 * core.settings.lease_seconds)

    def stop(self) -> None:
        """Nothing more is to be waited for."""
        if self._loses_all():
            self.stay("nobody is there to take over what it holds")
        else:
            self.core.emit(Stop(self.core.leaving))

    def waited_enough(self) -> None:
        """Nobody who might learn from us has done so in the time that the pause has, or nobody does after the end."""
        if self._loses_all() or (self.pauses and last_copies(self.core, self.core.now)):
            self.stay("nobody has learnt what it holds in time")

    def stay(self, reason: str) -> None:
        """As if nobody had asked."""
        core = self.core
        core.leaving, self.pauses = "", False
        core.holder.resigning.take_back()
        core.timers.clear("leave")
        core.memory.leavers.pop(core.me, None)
        self.stayed += 1
        core.note("leave", f"stays, and may stand still: {reason}")

    def _loses_all(self) -> bool:
        """It pauses alone in a run with training in it, which would be gone."""
        core = self.core
        return self.pauses and core.members == {core.me} and not core.holder.finished and bool(trained(core))
