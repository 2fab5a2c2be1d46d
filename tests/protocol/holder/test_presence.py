"""Where a participant says that it can be dialled."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ftnode.protocol.holder.presence import waiting_for
from ftnode.protocol.participant import Participant
from ftnode.protocol.wire.admission import ADDRESSES_MAX
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version
from tests.protocol.situations import SETTINGS as RUN
from tests.protocol.situations import VIEW, Held, Past, situation

ME = Peer("me", 1)
SETTINGS = Settings(run="r", stages=3, steps=9, microbatches=2, window=2, evaluation_microbatches=1, lease_seconds=5.0)
DIRECT, RELAYED = "/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2/p2p/relay/p2p-circuit"


def announced(effects: list[fx.Effect]) -> list[tuple[str, ...]]:
    return [effect.presence.addresses for effect in effects if isinstance(effect, fx.Announce)]


def participant() -> Participant:
    return Participant(ME, SETTINGS, Random(1), addresses=(DIRECT,), hold=1)


def test_new_addresses_are_announced_once() -> None:
    core = participant()
    assert announced(core.handle(ev.ComputeReady(1, True, 1.0), 0.0)) == [(DIRECT,)]
    assert announced(core.handle(ev.Moved((DIRECT, RELAYED)), 0.1)) == [(DIRECT, RELAYED)]
    assert announced(core.handle(ev.Moved((DIRECT, RELAYED)), 0.2)) == []
    assert core.peers.contacts[ME] == (DIRECT, RELAYED), "members learn them from certificates as well"


def test_nothing_is_announced_before_compute_is_ready() -> None:
    core = participant()
    assert announced(core.handle(ev.Moved((RELAYED,)), 0.0)) == []
    assert announced(core.handle(ev.ComputeReady(1, True, 1.0), 0.1)) == [(RELAYED,)]


def test_too_many_addresses_are_cut() -> None:
    core = participant()
    core.handle(ev.Moved((DIRECT,) * (ADDRESSES_MAX + 1)), 0.0)
    assert len(core.addresses) == ADDRESSES_MAX


def test_a_standby_waits_for_a_stage_until_the_run_is_over() -> None:
    """Also where nobody remembers the last commit, since all came back from their disks."""
    stranger, held = Peer("stranger", 1), Held(compute_ready=True)
    assert waiting_for(situation(me=stranger, own=held)) == "a stage that needs a holder"
    done = f"nothing more: all {RUN.steps} steps are done"
    assert waiting_for(situation(me=stranger, own=held, history=Past(newest_step=RUN.steps))) == done
    start = Version(RUN.steps, "last", Attempt(1, 1))
    view = replace(VIEW, lineage=replace(VIEW.lineage, start=start))
    assert waiting_for(situation(me=stranger, own=held, view=view)) == done
