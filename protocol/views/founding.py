"""The first view of a run, and the question whose lineage was founded for us."""

from __future__ import annotations

from ftnode.protocol.recovery.candidate_order import choose_stages
from ftnode.protocol.situation import ForgetWeights, Outcome, Situation, TakeUp
from ftnode.protocol.views.former_holders import FormerHolder
from ftnode.protocol.views.succession import genesis
from ftnode.protocol.words.messages import founding_proof
from ftnode.protocol.words.records import sensible
from ftnode.protocol.words.types import Peer, Snapshot, names_of
from ftnode.protocol.words.view import View


def on_disks(s: Situation) -> list[Snapshot]:
    """What this peer has on its disk, and what others have told the directory of."""
    if not s.settings.snapshot_every:
        return []
    told = (snapshot for presence in s.presences.values() for snapshot in presence.snapshots)
    return [snapshot for snapshot in (*s.own.snapshots_told(), *told) if sensible(snapshot, s.settings)]


def why_founded(s: Situation, view: View) -> str:
    """The reason of a view, for a person: where disks tell of steps, the first view of all is no new beginning."""
    if view.previous or not on_disks(s):
        return view.reason
    return "a swarm comes together again, and looks at its disks before it trains"


def found(s: Situation, serial: int) -> Outcome:
    """Genesis: with the stages that we have room for, those on our disk first."""
    out, own, settings = Outcome(), s.own, s.settings
    room, kept = min(s.hold, own.capacity), {snapshot.stage for snapshot in own.snapshots_told()}
    stages = choose_stages(range(settings.stage_count), room, own.may_head, own.refuses, kept)
    if stages:
        out.append(ForgetWeights())
        which = "all stages" if len(stages) == settings.stage_count else names_of(stages)
        newest = max((snapshot.version.step for snapshot in on_disks(s)), default=0)
        disks = f", and looks for the snapshots to go on from: the newest is of step {newest}" if newest else ""
        out.note("found", f"nobody else is here yet: {'takes' if newest else 'starts the run with'} {which}{disks}")
        founded = genesis(settings.run, s.me, stages, settings.stage_count, serial)
        out.append(TakeUp(founded, founding_proof(s.me)))
    return out


def founded_for_us(s: Situation, former: FormerHolder, sender: Peer, view: View) -> bool:
    """A lineage was founded out of our view, in one of three ways:

    - by survivors while we hear no quorum, with us in it;
    - by others outside while we are outside, too: their weights and ours have one past;
    - from disks by our leader, which alone knows that nobody can go on.
    """
    mine = s.view
    if mine is None:
        return False
    if not s.member and not view.lineage.from_disks:
        return not s.mine and not s.liveness.alive(mine.voters, s.now) and former.shares_past(view)
    if s.me not in view.members() or view.previous != mine.digest():
        return False
    if view.lineage.from_disks:
        led = sender == mine.leader or (sender in mine.voters and not s.quorate)
        return led and sender == view.leader
    return not s.quorate
