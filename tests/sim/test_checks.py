"""What one holder of a stage gave to a sum is done again by another (rule 42): who lies is found, and nobody else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.leader.cases import Cases
from ftnode.protocol.leader.disputes import BARRED_LEASES, Disputes
from ftnode.protocol.planning.changes import Changes
from ftnode.protocol.step.check import Check, checkable
from ftnode.protocol.step.doubts import Doubts
from ftnode.protocol.step.showing import SHOWN_TIMES, Showing
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.effects import Recount
from ftnode.protocol.words.messages import Show, WasGiven
from ftnode.protocol.words.types import PartSeen, Peer
from tests.sim import scenario
from tests.sim.compute import Compute, Gradients, Result, Tensor
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.planted import patched
from tests.sim.scenario import Scenario
from tests.sim.test_at_odds import lost, of_stage, trains_without
from tests.sim.test_duty import LONG, betrays, seen, swarm
from tests.sim.world import World
from tests.tiers import at_night, seeds

SEEDS: Final = range(24)
SOON_SECONDS: Final = 30.0
Lie = Callable[[Gradients], Gradients]


def turned(gradients: Gradients) -> Gradients:
    """Another number for each visit."""
    return {visit: ~chain for visit, chain in gradients.items()}


def one_of_them(gradients: Gradients) -> Gradients:
    """Another number for one visit."""
    first = min(gradients, default=None)
    return {visit: ~chain if visit == first else chain for visit, chain in gradients.items()}


def lies(world: World, host: Host, lie: Lie) -> None:
    host.lies, world.liars = lie, True


def passes_on(world: World, host: Host, gradients: bool) -> None:
    """Other activations than its visits give, or other gradients."""

    def lie(made: Tensor) -> Tensor:
        return made._replace(chain=~made.chain) if made.gradient is gradients else made

    host.compute.lies, world.liars = lie, True


def steps_until_lost(world: World, host: Host, seconds: float) -> int:
    """Steps that counted before the host was out of the view; -1: it never was."""
    before, until = world.ledger.top_commit(), world.now + seconds
    world.run(until, lambda: str(host.peer) in lost(world))
    return world.ledger.top_commit() - before if str(host.peer) in lost(world) else -1


@pytest.mark.parametrize("seed", SEEDS)
def test_honest_peers_are_never_accused_whatever_goes_wrong(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody checks somebody in each step, and all faults of the virtual world happen."""
    drawn = scenario.draw_settings
    monkeypatch.setattr(scenario, "draw_settings", lambda *given: replace(drawn(*given), checks=1.0))
    outcome = Scenario(seed).run()
    assert not outcome.violation, outcome.report()


@pytest.mark.parametrize("lie", [turned, one_of_them])
@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("replicas", [2, 3])
def test_who_gives_something_else_to_a_sum_goes_and_nobody_else(replicas: int, older: bool, lie: Lie) -> None:
    world = swarm(1, replicas, checks=1.0)
    host = of_stage(world, older)
    lies(world, host, lie)
    trains_without(world, host, SOON_SECONDS, others=0)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize(("gives", "most"), [(True, 20), (False, 8)])
def test_a_liar_is_found_after_about_as_many_steps_as_the_share_of_checks_says(
    gives: bool, most: int, replicas: int
) -> None:
    """Of n holders each draws somebody else, and one of n - 1 is the liar. All that it did is done again once in ten
    steps, and each of its visits besides."""
    found = []
    for seed in seeds(24):
        world = swarm(1 + seed, replicas, checks=0.2)  # it takes 22 steps in the first one, which is much of a few
        host = of_stage(world, True)
        lies(world, host, turned) if gives else passes_on(world, host, False)
        found.append(steps_until_lost(world, host, 10 * SOON_SECONDS))
    assert min(found) >= 0 and sum(found) / len(found) <= most, found


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("replicas", [2, 3])
def test_who_passes_on_something_else_goes_and_nobody_else(replicas: int, older: bool, gradients: bool) -> None:
    world = swarm(1, replicas, checks=1.0)
    host = of_stage(world, older)
    passes_on(world, host, gradients)
    trains_without(world, host, SOON_SECONDS, others=0)


def test_where_what_was_passed_on_is_not_compared_nobody_finds_it() -> None:
    recount = Compute._recount

    def blind(self: Compute, task: Recount, *given: Any) -> Result:
        return recount(self, task, *given)._replace(value=0.0)

    with patched((Compute, "_recount", blind)):
        world = swarm(1, 2, checks=1.0)
        host = of_stage(world, True)
        passes_on(world, host, False)
        assert steps_until_lost(world, host, SOON_SECONDS) == -1


@kept
def alone_with_room(seed: int, hold: int) -> World:
    """As many peers as stages, with room for more, and nobody stands by."""
    settings = replace(LONG, replicas=2, checks=1.0)
    world = World(settings, seed, delay_max=0.03)
    world.notes = deque()
    for index in range(settings.stage_count):
        world.at(0.1 * index, world.start, (f"peer{index}", hold, True))
    world.run(12 * settings.move_seconds)
    return world


def checked_by_somebody(world: World) -> list[Peer]:
    view = seen(world)
    pairs = ((peer, other) for peer in view.members() for other in view.members() if peer != other)
    return sorted({of for of, by in pairs if of != view.leader and checkable(view, by, of, world.settings)})


def unfinished(world: World) -> list[str]:
    """Checks that were given up, not only since somebody else holds the stages now."""
    return [note for note in world.notes if " check: " in note and "others hold the stages now" not in note]


@pytest.mark.parametrize("hold", [2, 3])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_whoever_held_a_stage_alone_gets_a_second_one_beside_it(seed: int, hold: int) -> None:
    """And then it is found when it lies."""
    world = alone_with_room(seed, hold)
    assert sum(len(group) == 2 for group in seen(world).holders) >= 3
    assert not unfinished(world) and not [note for note in world.notes if " liar: " in note]
    host = world.by_id[checked_by_somebody(world)[0].id]
    passes_on(world, host, True)
    assert steps_until_lost(world, host, SOON_SECONDS) >= 0 and lost(world) == [str(host.peer)]


def test_planted_nobody_holds_a_stage_for_the_sake_of_checks() -> None:
    """Often, those that come one after the other are asked in time to hold what another one has."""
    with patched((Changes, "best_second", lambda self, names: None)):
        views = (seen(alone_with_room(seed, 2)) for seed in range(3, 9))  # seed 3 shows it
        assert any(sum(len(group) == 1 for group in view.holders) >= 3 for view in views)


def test_without_checks_nobody_finds_it() -> None:
    world = swarm(1, 2)
    host = of_stage(world, True)
    lies(world, host, turned)
    assert steps_until_lost(world, host, SOON_SECONDS) == -1


@pytest.mark.parametrize("gradients", [False, True])
def test_without_checks_nobody_finds_what_was_passed_on_either(gradients: bool) -> None:
    world = swarm(1, 2)
    host = of_stage(world, True)
    passes_on(world, host, gradients)
    before = world.ledger.top_commit()
    assert steps_until_lost(world, host, SOON_SECONDS) == -1
    assert world.ledger.top_commit() > before + 3 and not lost(world)


def test_a_comparison_that_says_yes_to_everything_finds_nobody() -> None:
    def agrees(self: Check, stage: int, distance: float, now: float) -> bool:
        self._unweighed.discard(stage)
        return True

    with patched((Check, "agrees", agrees)):
        world = swarm(1, 2, checks=1.0)
        host = of_stage(world, True)
        lies(world, host, turned)
        assert steps_until_lost(world, host, SOON_SECONDS) == -1


@pytest.mark.parametrize("replicas", [2, 3])
def test_who_accuses_honest_peers_takes_two_of_them_along_at_most(replicas: int) -> None:
    """One, and a newcomer that has come in its place: once it is believed of somebody new (rule 45)."""
    world = swarm(1, replicas, spare=3, checks=1.0)
    host = of_stage(world, True)
    host.accuses, world.liars = True, True
    trains_without(world, host, 4 * SOON_SECONDS, others=2)


def test_without_a_memory_an_accuser_wins_for_ever() -> None:
    with patched((Disputes, "settle", lambda self, view, gone, suspects: None)):
        world = swarm(1, 2, spare=4, checks=1.0)
        host = of_stage(world, True)
        host.accuses, world.liars = True, True
        with pytest.raises(AssertionError):
            trains_without(world, host, 4 * SOON_SECONDS, others=4)


def test_who_lied_comes_back_late_and_goes_again() -> None:
    """On the word of one it may come back after a while, since that one may have lied; later and later."""
    world = swarm(1, 2, spare=0, checks=1.0)
    host = of_stage(world, True)
    lies(world, host, turned)
    world.run(world.now + SOON_SECONDS)
    assert lost(world) == [str(host.peer)]
    times = [world.now]
    for often in (2, 3) if at_night() else (2,):
        world.run(world.now + 60 * SOON_SECONDS, lambda often=often: len(lost(world)) == often)  # type: ignore[misc]
        times.append(world.now)
    assert {*lost(world)} == {str(host.peer)}
    first, *later = [after - before for before, after in pairwise(times)]
    assert first > (BARRED_LEASES - 10) * world.settings.lease_seconds and all(wait > 1.5 * first for wait in later)


def test_without_a_bar_a_liar_comes_back_again_and_again() -> None:
    with patched((Disputes, "barred_until", lambda self, peer: 0.0)):
        world = swarm(1, 2, spare=0, checks=1.0)
        host = of_stage(world, True)
        lies(world, host, turned)
        world.run(world.now + 30 * SOON_SECONDS, lambda: lost(world).count(str(host.peer)) > 2)
        assert lost(world).count(str(host.peer)) > 2


def test_the_word_of_a_liar_counts_no_longer_when_it_goes() -> None:
    world = swarm(1, 2, spare=2, checks=1.0)
    host = of_stage(world, True)
    host.accuses, world.liars = True, True
    world.run(world.now + 20 * SOON_SECONDS, lambda: str(host.peer) in lost(world))
    gone = {*lost(world)} - {str(host.peer)}
    assert 1 <= len(gone) <= 2 and str(host.peer) in lost(world)
    leader = next(other.participant.leader for other in world.live() if other.participant.leader is not None)
    assert leader is not None and not any(leader.memory.disputes.exposed.values())


def shows_nothing(me: Host) -> None:
    """It answers nobody who wants to do visits again."""

    def way(event: object, decide: traitor.Decide) -> list[fx.Effect]:
        sender = getattr(event, "sender", None)
        if isinstance(getattr(event, "message", None), Show) and sender is not None:
            return []
        return decide(event)  # type: ignore[arg-type]

    betrays(me, way)  # type: ignore[arg-type]


def hides(world: World) -> None:
    for host in world.live():
        shows_nothing(host)


NOBODY_ELSE_ASKS: Final = (Cases, "_ask_for_tensors", lambda self, *given: None)
"""As where all others that could are new."""


def test_where_nobody_shows_anything_steps_are_slower_and_go_on() -> None:
    with patched(NOBODY_ELSE_ASKS):
        world = swarm(1, 2, checks=1.0)
        hides(world)
        before = world.ledger.top_commit()
        world.run(world.now + SOON_SECONDS)
        assert world.ledger.top_commit() >= before + 3 and not lost(world)


def test_planted_nobody_else_asks_who_shows_nothing() -> None:
    """Then a liar stays."""
    with patched(NOBODY_ELSE_ASKS):
        world = swarm(1, 2, checks=1.0)
        host = of_stage(world, True)
        hides(world)
        lies(world, host, turned)
        assert steps_until_lost(world, host, SOON_SECONDS) == -1 and not lost(world)


def test_a_check_that_nobody_ends_stops_the_run() -> None:
    with patched((Check, "late", lambda self, now: False), NOBODY_ELSE_ASKS):
        world = swarm(1, 2, checks=1.0)
        hides(world)
        before = world.ledger.top_commit()
        world.run(world.now + SOON_SECONDS)
        assert world.ledger.top_commit() < before + 3 or lost(world)


def _is_word(effect: fx.Effect) -> bool:
    return isinstance(effect, fx.Send) and isinstance(effect.message, WasGiven)


def test_a_tensor_is_shown_to_who_holds_the_stage_and_so_often_at_most() -> None:
    """For a check of its own, for the leader, and where it was lost. Else a liar could have others send without end.
    Who asks what somebody was given gets a word for a word."""
    shown: list[tuple[str, object]] = []
    on_show = Showing.on_show

    def often(self: Showing, sender: object, show: Show) -> list[fx.Effect]:
        first, *_, again = (on_show(self, sender, show) for _ in range(SHOWN_TIMES + 1))  # type: ignore[arg-type]
        shown.extend((str(sender), effect) for effect in again if not _is_word(effect))
        return first

    with patched((Showing, "on_show", often)):
        world = swarm(1, 2, checks=1.0)
    assert world.ledger.top_commit() > 0 and shown == []


def parts_in(world: World, size: Callable[[Peer], float]) -> None:
    """Each sum tells its owner of the others' parts, as real ones do."""
    chance, honest = Random(7), world.deliver

    def deliver(host: Host, event: ev.Event) -> None:
        if isinstance(event, ev.Done) and isinstance(event.task, fx.Reduce):
            others = [peer for peer, count in event.task.group if count and peer != host.peer]
            sizes = [(peer, size(peer) * chance.paretovariate(1.5)) for peer in others]
            parts = tuple(
                PartSeen(peer, found, chance.uniform(-1.0, 1.0), 1.0 if found < 32 else 1 / found)
                for peer, found in sizes
            )
            event = replace(event, parts=parts)
        honest(host, event)

    world.deliver = deliver  # type: ignore[method-assign]


@pytest.mark.parametrize("replicas", [2, 3])
def test_an_honest_swarm_whose_parts_have_heavy_tails_accuses_nobody(replicas: int) -> None:
    """A third of them is doubted at some time, and some parts do not count in full."""
    world = swarm(3, replicas, checks=0.01)
    parts_in(world, lambda peer: 1.0)
    steps = world.ledger.top_commit()
    world.run(world.now + 4 * SOON_SECONDS)
    assert world.ledger.top_commit() >= steps + 50
    assert any("what is usual in its group" in note for note in world.notes), "nobody was ever doubted"
    assert lost(world) == [] and not any("liar" in note for note in world.notes)


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_liar_whose_parts_look_odd_is_found_long_before_its_lot(replicas: int) -> None:
    world = swarm(1, replicas, checks=1e-6)
    host = of_stage(world, True)
    lies(world, host, turned)
    parts_in(world, lambda peer: 1e6 if peer == host.peer else 1.0)
    assert 0 <= steps_until_lost(world, host, 4 * SOON_SECONDS) <= 10


def test_planted_nobody_is_checked_for_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Doubts, "choose", lambda self, step, able, chance: None)
    world = swarm(1, 3, checks=1e-6)
    host = of_stage(world, True)
    lies(world, host, turned)
    parts_in(world, lambda peer: 1e6 if peer == host.peer else 1.0)
    assert steps_until_lost(world, host, SOON_SECONDS) == -1
