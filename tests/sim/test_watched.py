"""Whose boundary tensors are of an unusual size is checked in the next steps, and not accused for it (rule 42)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.holder.watching import Watching
from ftnode.protocol.situation import Outcome
from ftnode.protocol.step import doubts
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.boundary_norms import BoundaryNorms
from ftnode.protocol.step.boundary_ways import Ways
from ftnode.protocol.step.doubts import BUDGET_A_STEP, BUDGET_MAX, HEARD_A_STEP, HEARD_MAX, Doubts
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.types import Peer
from tests.sim import scenario
from tests.sim.compute import Tensor
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.planted import patched
from tests.sim.scenario import Scenario
from tests.sim.test_at_odds import lost, of_stage
from tests.sim.test_checks import SEEDS, SOON_SECONDS, steps_until_lost
from tests.sim.test_duty import betrays, seen, swarm
from tests.sim.world import World

SELDOM: Final = 1e-6
"""The share of checks: nobody is checked by lot."""
SETTLED_STEPS: Final = 20
LIARS: Final = range(1, 5)


@kept
def settled(seed: int, replicas: int, **changes: Any) -> World:
    """It has trained for so long that everybody knows what is usual."""
    world = swarm(seed, replicas, **{"checks": SELDOM, **changes})
    until = world.ledger.top_commit() + SETTLED_STEPS
    world.run(world.now + 10 * SOON_SECONDS, lambda: world.ledger.top_commit() >= until)
    assert world.ledger.top_commit() >= until
    world.notes.clear()
    return world


def passes_on(world: World, host: Host, gradients: bool, scale: float) -> None:
    """Other activations than its visits give, or other gradients, so many times as large."""

    def lie(made: Tensor) -> Tensor:
        return made._replace(chain=~made.chain, scale=scale) if made.gradient is gradients else made

    host.compute.lies, world.liars = lie, True


def turns(world: World, host: Host) -> None:
    """Other activations than its visits give, of the usual size, which point elsewhere."""

    def lie(made: Tensor) -> Tensor:
        return made if made.gradient else made._replace(chain=~made.chain, turned=True)

    host.compute.lies, world.liars = lie, True


@pytest.mark.parametrize("replicas", [2, 3])
def test_whose_activations_point_elsewhere_is_found_in_the_next_steps(replicas: int) -> None:
    world = settled(1, replicas)
    host = of_stage(world, True)
    turns(world, host)
    assert 0 <= steps_until_lost(world, host, 2 * SOON_SECONDS) <= 6
    assert lost(world) == [str(host.peer)]
    assert any(f"what {host.peer} gave to stage" in note and "turned away" in note for note in world.notes)


def test_planted_where_nobody_looks_at_directions_it_stays() -> None:
    with patched((Ways, "see", lambda self, way: "")):
        world = settled(1, 2)
        host = of_stage(world, True)
        turns(world, host)
        assert steps_until_lost(world, host, SOON_SECONDS) == -1


def unwatched() -> AbstractContextManager[Any]:
    return patched((BoundaryNorms, "see", lambda self, *_: ""))


@pytest.mark.parametrize("scale", [0.0, 0.001, 100.0, 1000.0])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("replicas", [2, 3])
def test_whose_tensors_are_far_out_is_found_in_the_next_steps(replicas: int, gradients: bool, scale: float) -> None:
    world = settled(1, replicas)
    host = of_stage(world, True)
    passes_on(world, host, gradients, scale)
    assert 0 <= steps_until_lost(world, host, 2 * SOON_SECONDS) <= 6
    assert lost(world) == [str(host.peer)]
    assert any(" doubt: " in note and f"what {host.peer} gave to stage" in note for note in world.notes)


@pytest.mark.parametrize("stage", [0, 1])
def test_also_who_holds_the_head_or_a_stage_beside_it(stage: int) -> None:
    world = settled(2, 2)
    view = seen(world)
    host = next(world.by_id[peer.id] for peer in view.holders[stage] if peer != view.leader)
    passes_on(world, host, stage == 0, 1000.0)
    assert 0 <= steps_until_lost(world, host, 2 * SOON_SECONDS) <= 6


def found_after(around: Callable[[], AbstractContextManager[Any]], seed: int) -> int:
    """Steps until a liar is found, with the default share of checks."""
    with around():
        world = settled(seed, 2, checks=0.02)
        host = of_stage(world, True)
        passes_on(world, host, False, 1000.0)
        return steps_until_lost(world, host, 10 * SOON_SECONDS)


def test_that_is_long_before_its_lot() -> None:
    watched = [found_after(nullcontext, seed) for seed in LIARS]
    by_lot = [found_after(unwatched, seed) for seed in LIARS]
    assert all(0 <= steps <= 6 for steps in watched), watched
    assert sum(steps if steps >= 0 else 100 for steps in by_lot) > 3 * sum(watched), (watched, by_lot)


@pytest.mark.parametrize("planted", ["nobody watches", "nobody tells", "nobody listens"])
def test_planted_without_a_part_of_it_nobody_finds_the_liar(planted: str) -> None:
    bugs = {
        "nobody watches": (BoundaryNorms, "see", lambda self, *_: ""),
        "nobody tells": (Watching, "_doubt", lambda self, *_: None),
        "nobody listens": (Watching, "on_doubted", lambda self, *_: Outcome()),
    }
    with patched(bugs[planted]):  # type: ignore[arg-type]
        world = settled(1, 2)
        host = of_stage(world, True)
        passes_on(world, host, False, 1000.0)
        assert steps_until_lost(world, host, SOON_SECONDS) == -1


def test_without_checks_nobody_watches() -> None:
    world = settled(1, 2, checks=0.0)
    host = of_stage(world, True)
    passes_on(world, host, False, 1000.0)
    host.compute.watched = True
    sent = messages_of(world)
    world.run(world.now + SOON_SECONDS)
    assert not sent and not any(" doubt: " in note for note in world.notes)


def messages_of(world: World) -> list[tuple[Peer, Peer]]:
    """(from, to) of each Doubted from now on."""
    sent: list[tuple[Peer, Peer]] = []

    def look(host: Host, effect: fx.Send) -> None:
        if isinstance(effect.message, ms.Doubted):
            sent.append((host.peer, effect.to))

    world.on_send = look
    return sent


@pytest.mark.parametrize("replicas", [2, 3])
def test_an_honest_swarm_with_heavy_tails_accuses_nobody(replicas: int) -> None:
    """Some tensors are doubted, and some makers are checked for it."""
    world = settled(3, replicas)
    sent, steps = messages_of(world), world.ledger.top_commit()
    for host in world.live():
        odd_now_and_then(host)
    world.run(world.now + 4 * SOON_SECONDS)
    assert world.ledger.top_commit() >= steps + 50
    assert sent and any(" says that what " in note for note in world.notes), "nobody was ever doubted"
    assert lost(world) == [] and not any("liar" in note for note in world.notes)


def odd_now_and_then(host: Host) -> None:
    """One in fifty of its tensors is a thousand times as large, and right."""
    host.compute.lies = lambda made: made._replace(scale=1000.0) if made.chain % 50 == 0 else made


@pytest.mark.parametrize("checks", [1e-3, 1.0])
@pytest.mark.parametrize("seed", SEEDS[:12])
def test_honest_peers_are_never_accused_whatever_goes_wrong(
    seed: int, checks: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All faults of the virtual world happen, and honest tensors are far out now and then."""
    drawn, start = scenario.draw_settings, World.start
    monkeypatch.setattr(scenario, "draw_settings", lambda *given: replace(drawn(*given), checks=checks))

    def starts(self: World, *given: Any, **more: Any) -> Any:
        host = start(self, *given, **more)
        for each in self.live():
            odd_now_and_then(each)
        return host

    monkeypatch.setattr(World, "start", starts)
    outcome = Scenario(seed).run()
    assert not outcome.violation, outcome.report()


# -- who says it without a reason


def floods(host: Host) -> None:
    """With everything that it hears it doubts all holders of all stages, to all of them."""

    def way(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        effects, work = decide(event), host.participant.holder.work
        if not (isinstance(event, ev.Done) and work is not None):
            return effects
        view, begin = work.view, work.begin
        return effects + [
            fx.Send(to, ms.Doubted(begin.lineage, view.number, begin.step, begin.attempt, stage, peer), None)
            for stage, group in enumerate(view.holders)
            for to in group
            for peer in group
            if to not in (host.peer, peer)
        ]

    betrays(host, way)


def checks_for_doubts(world: World, host: Host) -> tuple[float, int]:
    """Checks of a whole step that one of the others did at most while `host` floods, and steps."""
    whole, drawn = set[tuple[Peer, int]](), StepWork.__init__

    def count(self: StepWork, *given: Any, **more: Any) -> None:
        drawn(self, *given, **more)
        if self._check is not None and self._check.weighs is not None:
            whole.add((self.me, self.begin.step))

    floods(host)
    before = world.ledger.top_commit()
    with unwatched(), patched((StepWork, "__init__", count)):
        world.run(world.now + 8 * SOON_SECONDS)
    checkers = {peer for peer, _ in whole}
    return max(sum(one == peer for one, _ in whole) for peer in checkers), world.ledger.top_commit() - before


def test_who_doubts_everybody_has_others_check_so_often_and_no_more() -> None:
    world = settled(1, 3)
    host = of_stage(world, True)
    most, steps = checks_for_doubts(world, host)
    assert steps >= 100 and 2 <= most <= HEARD_MAX + HEARD_A_STEP * steps + 1
    assert lost(world) == [] and not any("liar" in note for note in world.notes)


def test_planted_without_a_budget_everybody_checks_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUDGET_A_STEP", "HEARD_A_STEP"):
        monkeypatch.setattr(doubts, name, 1.0)
    world = settled(1, 3)
    most, steps = checks_for_doubts(world, of_stage(world, True))
    assert most > steps / 2


def test_planted_without_a_budget_for_each_a_liar_spends_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "HEARD_A_STEP", 1.0)
    world = settled(1, 3)
    most, steps = checks_for_doubts(world, of_stage(world, True))
    assert HEARD_MAX + HEARD_A_STEP * steps + 1 < most <= BUDGET_MAX + BUDGET_A_STEP * steps + 1


@pytest.mark.parametrize("stage", range(4))
def test_only_who_gets_tensors_of_the_stage_is_heard(stage: int) -> None:
    """The one stage of the run that neither feeds it nor is fed by it does not count."""
    heard = list[tuple[Peer, Peer]]()
    hear = Doubts.hear

    def hears(self: Doubts, sender: Peer, doubt: doubts.Doubt, step: int) -> bool:
        heard.append((sender, doubt.peer))
        return hear(self, sender, doubt, step)

    world = settled(1, 2)
    view = seen(world)
    sender = next(peer for peer in view.holders[stage] if peer != view.leader)
    floods(world.by_id[sender.id])
    with patched((Doubts, "hear", hears)):
        world.run(world.now + 5.0)
    stages = len(view.holders)
    beside = {(stage + 1) % stages, (stage - 1) % stages}
    assert {named for _, named in heard} == {peer for near in beside for peer in view.holders[near]}
    assert {by for by, _ in heard} == {sender}
