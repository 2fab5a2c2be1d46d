"""Who was there knows in which step somebody lied, and who heard of it later knows that it does not (rule 51)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ftnode.protocol.leader.convictions import liar_of
from ftnode.protocol.leader.first_lie import was_seen
from ftnode.protocol.words.effects import KeepConvicted
from tests.sim.disks import Disks
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.test_at_odds import lost
from tests.sim.test_checks import SOON_SECONDS, lies, turned
from tests.sim.test_duty import seen, swarm
from tests.sim.test_signed_tensors import gone_after, shows_others
from tests.sim.test_third import NOBODY_REMEMBERS, convicts_and_loses_its_leader, gone_from, of_stage


@contextmanager
def written() -> Iterator[list[tuple[str, KeepConvicted]]]:
    """What nodes keep of liars, with their PeerIds."""
    found: list[tuple[str, KeepConvicted]] = []
    keep = Disks.keep_convicted

    def keeps(self: Disks, host: Host, kept: KeepConvicted) -> None:
        found.append((host.peer.id, kept))
        keep(self, host, kept)

    with patched((Disks, "keep_convicted", keeps)):
        yield found


def test_members_that_were_there_saw_the_lie_by_the_word_of_most() -> None:
    with written() as found:
        world = swarm(1, 3, checks=1.0)
        host = of_stage(world)
        others = {peer.id for peer in seen(world).members()} - {host.peer.id}
        lies(world, host, turned)
        assert gone_from(world, host) == [str(host.peer)]
    assert {liar_of(kept.case) for _, kept in found} == {host.peer}
    assert {peer for peer, kept in found if was_seen(kept)} >= others


def test_members_that_were_there_saw_two_signed_tensors() -> None:
    with written() as found:
        world, host = shows_others(True, 3)
        assert {*gone_after(world, host)} == {str(host.peer)}
    saw = [peer for peer, kept in found if was_seen(kept) and liar_of(kept.case) == host.peer]
    assert len(saw) >= len(seen(world).members()) - 1


def test_a_leader_that_was_not_there_has_not_seen_it() -> None:
    with patched(NOBODY_REMEMBERS), written() as found:
        world, host = convicts_and_loses_its_leader()
        world.run(world.now + 4 * world.settings.lease_seconds)
        leader = world.by_id[seen(world).leader.id].participant
        leader.memory.convicted.clear()
        world.notes.clear()
        found.clear()
        world.run(world.now + 20 * SOON_SECONDS, lambda: str(host.peer) in lost(world))
    later = [kept for peer, kept in found if peer == leader.me.id]
    assert later and not any(map(was_seen, later))
