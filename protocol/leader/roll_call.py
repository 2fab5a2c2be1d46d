"""The leader's part in a roll: gather the digests of a commit's snapshots, and the signatures of the members (rule 46).

It holds nothing up. When all members have told of their snapshots, or a lease after the first did, the roll is shown to
all; when all have signed it, or a quorum has and a lease is over, all are told to keep it. A member that has no roll of
what it keeps says so again with each heartbeat.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ftnode.protocol.recovery.rolls import complete
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.messages import Roll, Rolled, Saved, Signed
from ftnode.protocol.words.types import Peer, Version
from ftnode.protocol.words.view import View


class RollCall:
    """Of the newest commit that members tell of, in one view."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._version: Version | None = None
        self._since = 0.0
        """When the first of them told of it, and then when the roll was shown."""
        self._told: dict[Peer, dict[int, str]] = {}
        """Member → the digests of its stages."""
        self._roll: Roll | None = None
        self._signed: dict[Peer, Signed] = {}
        self._whole: Roll | None = None
        """The roll as all were told to keep it."""

    def on_saved(self, s: Situation, sender: Peer, saved: Saved, base: Version | None) -> Outcome:
        """`base`: the newest commit."""
        versions = {snapshot.version for snapshot in saved.snapshots}
        if len(versions) != 1 or sender not in s.members or base is None:
            return Outcome()
        version = versions.pop()
        newest = self._version.step if self._version is not None else 0
        if version == self._version and self._whole is not None:
            out = Outcome()
            out.send(sender, self._said(self._whole))
            return out
        if version != self._version:
            if not newest < version.step <= base.step:
                return Outcome()
            self._start(s, version)
        if self._roll is None:
            mine = self.view.stages_of(sender)
            self._told[sender] = {kept.stage: kept.digest for kept in saved.snapshots if kept.stage in mine}
            if self._told.keys() >= s.members:
                return self._show(s)
        return Outcome()

    def call(self, s: Situation, version: Version) -> Outcome:
        """Members are about to leave at this commit, and save what they hold when nobody can ask them any more."""
        if version.step == 0 or version == self._version:
            return Outcome()
        self._start(s, version)
        return self._show(s)

    def on_rolled(self, s: Situation, sender: Peer, roll: Roll) -> Outcome:
        """A signature for the roll that was shown."""
        ours = self._roll
        if ours is None or self._whole is not None or sender not in s.members or roll.digest() != ours.digest():
            return Outcome()
        for signed in roll.signed:
            if signed.voter == sender:
                self._signed[sender] = signed
        return self._close(s) if self._signed.keys() >= s.members else Outcome()

    def beat(self, s: Situation) -> Outcome:
        late = s.now - self._since > s.settings.lease_seconds
        if self._version is None or self._whole is not None:
            return Outcome()
        if self._roll is None:
            return self._show(s) if late else Outcome()
        if late:
            return self._close(s)
        out = Outcome()
        for peer in sorted(s.members - self._signed.keys()):
            out.send(peer, self._said(self._roll))
        return out

    def _start(self, s: Situation, version: Version) -> None:
        self._version, self._since = version, s.now
        self._told, self._signed = {}, {}
        self._roll = self._whole = None

    def _show(self, s: Situation) -> Outcome:
        assert self._version is not None
        self._roll = Roll(self.view, self._version, tuple(map(self._digest, range(len(self.view.holders)))), ())
        self._since = s.now
        return self._to_all(s, self._roll)

    def _digest(self, stage: int) -> str:
        """What most of its holders say; empty if they do not."""
        group = self.view.holders[stage]
        said = Counter(self._told[peer][stage] for peer in group if stage in self._told.get(peer, {}))
        digest, count = said.most_common(1)[0] if said else ("", 0)
        return digest if 2 * count > len(group) else ""

    def _close(self, s: Situation) -> Outcome:
        """All have signed, or no more are waited for."""
        assert self._roll is not None
        roll = replace(self._roll, signed=tuple(signed for _, signed in sorted(self._signed.items())))
        if not complete(roll):
            self._version = None  # who has no roll says so again
            return Outcome()
        self._whole = roll
        return self._to_all(s, roll)

    def _to_all(self, s: Situation, roll: Roll) -> Outcome:
        out = Outcome()
        for peer in sorted(s.members):
            out.send(peer, self._said(roll))
        return out

    def _said(self, roll: Roll) -> Rolled:
        return Rolled(self.view.lineage.id, self.view.number, roll, bool(roll.signed))
