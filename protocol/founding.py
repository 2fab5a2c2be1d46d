"""The first view of a run, and of a lineage that goes on from disks: what its founder takes, and its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.snapshots import sensible
from ftnode.protocol.succession import genesis, restart
from ftnode.protocol.types import Peer, Snapshot, Version
from ftnode.protocol.vacancy import choose_stages
from ftnode.protocol.view import View

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant


def on_disks(core: Participant) -> list[Snapshot]:
    """What this peer has on its disk, and what others have told the directory of."""
    settings = core.settings
    if not settings.snapshot_every:
        return []
    told = (snapshot for presence in core.presences.values() for snapshot in presence.snapshots)
    return [snapshot for snapshot in (*core.disk.told(), *told) if sensible(snapshot, settings)]


def found(core: Participant, serial: int) -> None:
    """Genesis: with the stages that we have room for, those on our disk first."""
    room, kept = min(core.hold, core.holder.capacity), {snapshot.stage for snapshot in core.disk.told()}
    every = range(core.settings.stage_count)
    stages = choose_stages(every, room, core.holder.may_head, core.holder.refuses, kept)
    if not stages:
        return
    core.holder.forget_all()
    core.note("found", f"no certificate and no other founder: founds the run with stages {list(stages)}")
    core.install(genesis(core.settings.run, core.me, stages, core.settings.stage_count, serial))


def start_again(core: Participant, serial: int, number: int, start: Version, exact_stages: int, reason: str) -> None:
    """Rule 36: we lead, what is in memory does not suffice, and what is on disks does: found the lineage that goes on
    from them."""
    assert core.view is not None
    core.note("restart", reason, step=str(start.step))
    core.install(restart(core.view, core.me, serial, number, start, exact_stages, reason))
    for peer in sorted(core.members - {core.me}):
        core.send(peer, core.certificate())


def founded_for_us(core: Participant, sender: Peer, view: View) -> bool:
    """A lineage out of our view: by survivors while we hear no quorum, with us in it or, when we are outside anyway, by
    others who are, since their weights and ours have one past; or from disks by our leader, which alone knows that
    nobody can go on."""
    mine = core.view
    if mine is None:
        return False
    if not core.member and not view.lineage.from_disks:
        return core.follow.outside.shares_past(view) and not core.liveness.alive(mine.voters, core.now)
    if core.me not in view.members() or view.previous != mine.digest():
        return False
    if view.lineage.from_disks:
        led = sender == mine.leader or (sender in mine.voters and not core.follow.quorate)
        return led and sender == view.leader
    return not core.follow.quorate
