"""What a stage's only holder passes on is done again by who keeps its shadow (rule 53): who lies is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import Any, Final

import pytest

from ftnode.protocol.holder.holder import Holder
from ftnode.protocol.recovery import copy_trials, step_trace
from ftnode.protocol.recovery.copies import OwnCopies, keepers
from ftnode.protocol.recovery.copy_trials import CopyTrials, Refuted
from ftnode.protocol.recovery.step_trace import StepTrace
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.check import Check
from ftnode.protocol.step.showing import Showing
from ftnode.protocol.step.tensor_holds import Holds
from ftnode.protocol.words.effects import NOT_DONE, Effect, Keep, Sample, Send
from ftnode.protocol.words.messages import Begin, Boundary, Show
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Peer
from tests.sim.checks import Violation
from tests.sim.compute import Poison, Weights
from tests.sim.host import Host
from tests.sim.liars import grown, lost, view_of
from tests.sim.planted import patched
from tests.sim.rebuild import Rebuilding
from tests.sim.samples import AGAINST, Samples
from tests.sim.test_checks import passes_on, turned
from tests.sim.test_duty import LONG
from tests.sim.test_signed_tensors import another
from tests.sim.world import World

SETTINGS: Final = replace(LONG, stages=5, microbatches=8, window=4, checks=0.2, shadow_every=4)
STAGE: Final = 3
SECONDS: Final = 120.0


def world_of(seed: int, settings: Settings = SETTINGS, spare: int = 1) -> World:
    world = grown(seed, settings, settings.stage_count, spare=spare)
    world.run(world.now + 20.0)
    world.notes.clear()
    return world


def holder(world: World, stage: int = STAGE) -> Host:
    (peer,) = view_of(world).holders[stage]
    return world.by_id[peer.id]


def shows_others(world: World, host: Host) -> None:
    """Than it gave to whom they were for."""
    world.liars = True
    host.shows = lambda tensor, own, to: another(tensor) if own else tensor


@contextmanager
def tried() -> Iterator[list[float]]:
    """How far off what was done again on copies is, each time."""
    values: list[float] = []
    with patched((CopyTrials, "_on_recount", counted(CopyTrials._on_recount, values))):
        yield values


def counted(judged: Callable[..., None], values: list[float]) -> Callable[..., None]:
    """It goes on as usual, and what came of each task is in `values`, if anything did."""

    def on_done(self: CopyTrials, *given: Any) -> None:
        values.extend([given[-1].value] if given[-1].value != NOT_DONE else [])
        judged(self, *given)

    return on_done


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_passes_on_something_else_goes(seed: int, gradients: bool) -> None:
    world = world_of(seed)
    liar = holder(world)
    passes_on(world, liar, gradients)
    before = world.ledger.top_commit()
    world.run(world.now + SECONDS, lambda: str(liar.peer) in lost(world))
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]
    assert world.ledger.top_commit() - before <= 2 * SETTINGS.shadow_every
    world.run(world.now + SECONDS, lambda: world.ledger.top_commit() >= before + 40)
    assert world.ledger.top_commit() >= before + 40
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]


def beside(stages: int, seed: int) -> tuple[World, Host]:
    """A run with so few block stages that who keeps a stage's shadow holds one beside it, or the head; and who holds
    one of these stages, and does not lead."""
    world = world_of(seed, replace(SETTINGS, stages=stages))
    view = view_of(world)
    (stage,) = [stage for stage in range(1, stages + 1) if view.leader not in view.holders[stage]][:1]
    return world, holder(world, stage)


@pytest.mark.parametrize("lie", ["activations", "gradients", "training"])
@pytest.mark.parametrize(("stages", "seed"), [(1, 1), (2, 2), (3, 3)])
def test_a_keeper_beside_the_stage_sees_it_too(stages: int, seed: int, lie: str) -> None:
    world, liar = beside(stages, seed)
    if lie == "training":
        trains_otherwise(world, liar)
    else:
        passes_on(world, liar, lie == "gradients")
    before = world.ledger.top_commit()
    world.run(world.now + 3 * SECONDS, lambda: str(liar.peer) in lost(world))
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]
    assert world.ledger.top_commit() - before <= (12 if lie == "training" else 2) * SETTINGS.shadow_every
    world.run(world.now + SECONDS)
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_keeper_beside_the_stage_sees_nothing_where_nobody_lies(stages: int) -> None:
    world, _ = beside(stages, 1)
    with tried() as values, retraced() as traced:
        world.run(world.now + 2 * SECONDS)
    assert len(values) > 5 and len(traced) > 5 and {*values, *traced} == {0.0} and not lost(world), (values, traced)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_lends_other_weights_than_it_works_with_goes(seed: int) -> None:
    world = world_of(seed)
    liar = holder(world)
    world.liars = True
    whole = Rebuilding._whole

    def bent(self: Rebuilding, host: Host, effect: Keep, serial: int, weights: Weights, *rest: Any) -> None:
        other = weights._replace(history=~weights.history) if effect.donor.peer == liar.peer else weights
        whole(self, host, effect, serial, other, *rest)

    with patched((Rebuilding, "_whole", bent)):
        world.run(world.now + SECONDS, lambda: str(liar.peer) in lost(world))
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]


@pytest.mark.parametrize("seconds", [0.05, 5.0, 20.0])
def test_a_copy_that_takes_several_steps_is_tried_on_the_step_that_it_is_of(seconds: float) -> None:
    world = world_of(1)
    world.rebuilding.copy_seconds = seconds
    with tried() as values:
        world.run(world.now + SECONDS)
    assert len(values) > 5 and {*values} == {0.0} and not lost(world), (values, lost(world))


@pytest.mark.parametrize("checks,least,most", [(0.0, 0, 0), (0.02, 0.003, 0.045), (0.1, 0.03, 0.15)])
def test_the_share_of_checks_says_how_many_visits_are_done_again(checks: float, least: float, most: float) -> None:
    world = world_of(1, replace(SETTINGS, checks=checks))
    before = world.ledger.top_commit()
    with tried() as values:
        world.run(world.now + 1.5 * SECONDS)
    visits = (world.ledger.top_commit() - before) * SETTINGS.microbatches * SETTINGS.stages
    assert least <= len(values) / visits <= most, (len(values), visits)


@pytest.mark.parametrize("seed", [1, 2])
def test_who_passes_on_something_unusual_is_tried_on_the_next_copy(seed: int) -> None:
    """Those beside see it, and tell who keeps the shadow."""
    world = world_of(seed, replace(SETTINGS, checks=0.001))
    liar = holder(world)
    liar.compute.lies, world.liars = lambda made: made._replace(scale=1000.0 * made.scale, chain=~made.chain), True
    before = world.ledger.top_commit()
    world.run(world.now + SECONDS, lambda: str(liar.peer) in lost(world))
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]
    assert world.ledger.top_commit() - before <= 2 * SETTINGS.shadow_every


@pytest.mark.parametrize("seed", [1, 2])
def test_honest_holders_stay_whoever_comes_and_goes(seed: int) -> None:
    """Leaders, holders and keepers are lost, and steps are tried again."""
    world = world_of(seed, spare=4)
    killed = set[str]()
    with tried() as values:
        for number in range(3):
            victim = holder(world, (STAGE + number) % SETTINGS.stage_count)
            killed.add(str(victim.peer))
            step = world.ledger.top_commit() + 2
            world.poisons.append(Poison(step, 0, 1, True, 1))
            world.kill(victim, "kill", silently=False)
            world.run(world.now + SECONDS / 2)
    assert {*values} == {0.0} and {*lost(world)} <= killed, (lost(world), killed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_gave_the_holder_another_tensor_than_it_shows_is_convicted(seed: int) -> None:
    """And the holder, which computed rightly with what it was given, stays."""
    world = world_of(seed)
    honest, before = holder(world), holder(world, STAGE - 1)
    shows_others(world, before)
    world.run(world.now + SECONDS, lambda: bool(lost(world)))
    assert str(before.peer) in lost(world) and str(honest.peer) not in lost(world), [*world.notes][-20:]


def trains_otherwise(world: World, host: Host) -> None:
    """It passes on what its visits give, and trains with something else."""
    host.compute.trains, world.liars = turned, True


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_trains_with_something_else_goes(seed: int) -> None:
    world = world_of(seed)
    liar = holder(world)
    trains_otherwise(world, liar)
    before = world.ledger.top_commit()
    world.run(world.now + 3 * SECONDS, lambda: str(liar.peer) in lost(world))
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]
    assert world.ledger.top_commit() - before <= 12 * SETTINGS.shadow_every
    world.run(world.now + SECONDS)
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]


def test_who_makes_another_update_of_its_gradient_goes_at_once() -> None:
    world = world_of(1)
    liar = holder(world)

    class Told(dict[int, dict[tuple[int, int], int]]):
        def __setitem__(self, stage: int, parts: dict[tuple[int, int], int]) -> None:
            super().__setitem__(stage, turned(parts))

    liar.compute.trained_with, world.liars = Told(), True
    before = world.ledger.top_commit()
    world.run(world.now + SECONDS, lambda: str(liar.peer) in lost(world))
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]
    assert world.ledger.top_commit() - before <= 3 * SETTINGS.shadow_every


@contextmanager
def retraced() -> Iterator[list[float]]:
    """What came of each step that was looked at."""
    values: list[float] = []
    with patched((CopyTrials, "_on_retrace", counted(CopyTrials._on_retrace, values))):
        yield values


@pytest.mark.parametrize("seconds", [0.05, 5.0])
def test_also_of_a_copy_that_takes_several_steps_it_is_seen_how_the_step_was_trained(seconds: float) -> None:
    world = world_of(1)
    world.rebuilding.copy_seconds = seconds
    with retraced() as values:
        world.run(world.now + SECONDS)
    assert len(values) > 5 and {*values} == {0.0} and not lost(world), (values, lost(world))


def says_so(self: CopyTrials, s: Situation, work: StepWork, *given: object) -> Outcome:
    """It says that whoever it keeps a copy of lies."""
    for stage, keeper in work.begin.keepers:
        if keeper == s.me and stage != HEAD and s.view is not None and len(s.view.holders[stage]) == 1:
            self.refuted = Refuted(stage, s.view.holders[stage][0], "a lie", 1.0)
    return Outcome()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_keeper_that_accuses_without_a_reason_costs_one_holder_its_place_and_a_newcomer_besides(seed: int) -> None:
    world = world_of(seed, spare=3)
    world.liars = True
    (peer,) = [peer for stage, peer in keepers(view_of(world), SETTINGS) if stage == STAGE]
    liar = world.by_id[peer.id]
    liar.participant.holder.copy_trials.begin = MethodType(  # type: ignore[method-assign]
        says_so, liar.participant.holder.copy_trials
    )
    before = world.ledger.top_commit()
    world.run(world.now + 4 * SECONDS, lambda: str(peer) in lost(world))
    gone = lost(world)
    assert str(peer) in gone and len(gone) <= 3, gone  # the second one is new
    world.run(world.now + SECONDS)
    assert world.ledger.top_commit() > before + 20 and lost(world) == gone, lost(world)


@pytest.mark.parametrize("planted", [False, True])
def test_who_keeps_the_copy_no_more_says_nothing_and_could_not_tell(planted: bool) -> None:
    """What it found stood until the holder had gone, and its word made others try steps again."""
    world = world_of(1, spare=2)
    world.liars, view = True, view_of(world)
    of = view.holders[STAGE][0]
    keeper = dict(keepers(view, SETTINGS))[STAGE]
    other = next(peer for peer in view.members() if peer not in (keeper, view.leader, of))
    trials = world.by_id[other.id].participant.holder.copy_trials
    trials.refuted, before = Refuted(STAGE, of, "found while it kept the copy", 1.0), world.ledger.top_commit()
    if planted:  # it says so all the same
        with patched((CopyTrials, "begin", lambda self, *given: Outcome())):
            world.run(world.now + 30.0)
    else:
        world.run(world.now + 30.0)
        assert trials.refuted is None
    assert world.ledger.top_commit() > before + 15 and not lost(world)
    assert not [note for note in world.notes if "tried once more" in note or "skipped" in note]


def fetched(world: World, seconds: float, doubted: bool) -> int:
    """Copies of the stage, where its holder lends no samples and something may speak against it."""
    view, kept = view_of(world), list[int]()
    keeper, fetch = dict(keepers(view, SETTINGS))[STAGE], OwnCopies.fetch
    if doubted:
        trials = world.by_id[keeper.id].participant.holder.copy_trials
        trials._of(STAGE, view.holders[STAGE][0]).steps = 0.3

    def counted(self: OwnCopies, s: Situation, begin: Begin, stage: int) -> Keep:
        kept.append(stage)
        return fetch(self, s, begin, stage)

    with patched((OwnCopies, "fetch", counted)):
        world.run(world.now + seconds)
    return kept.count(STAGE)


def refuses(self: Samples, host: Host, task: Sample, waited: float) -> None:
    self._ends(host, task, "refused")


@pytest.mark.parametrize("planted", [False, True])
def test_who_lends_no_samples_is_not_asked_for_copies_without_end(planted: bool) -> None:
    with patched((Samples, "_ask", refuses)):
        usual = fetched(world_of(1), 40.0, False)
        if planted:
            with patched((CopyTrials, "_hastens", lambda self, stage, of, *given: self._of(stage, of).doubted)):
                assert fetched(world_of(1), 40.0, True) > 2 * usual
        else:
            assert fetched(world_of(1), 40.0, True) <= 2 * usual


NO_COURSE: Final = (CopyTrials, "_course", lambda self, *given: None)
"""Nobody looks which way weights go."""


def lends_no_samples(seed: int) -> tuple[World, str]:
    """Of one that trains with something else, until it goes or for a while."""
    world = world_of(seed)
    liar = holder(world)
    trains_otherwise(world, liar)
    with patched((Samples, "_ask", refuses)):
        world.run(world.now + 2 * SECONDS, lambda: str(liar.peer) in lost(world))
    return world, str(liar.peer)


@pytest.mark.parametrize("seed", [1, 2])
def test_who_lends_no_samples_and_trains_with_something_else_goes(seed: int) -> None:
    """Its weights do not go the way of its microbatches."""
    world, liar = lends_no_samples(seed)
    assert lost(world) == [liar], [*world.notes][-20:]
    world.run(world.now + SECONDS / 2)
    assert lost(world) == [liar], [*world.notes][-20:]


class Adapts:
    """One that trains rightly in the steps whose weights it is asked for, and otherwise in all others."""

    def __init__(self, world: World, liar: Host) -> None:
        self.asked, self.compute = set[int](), liar.compute
        sample, whole, peer = Samples._ask, Rebuilding._whole, liar.peer

        def asks(samples: Samples, host: Host, task: Sample, waited: float) -> None:
            if task.donor.peer == peer:
                self.asked.add(task.version.step + 1)
            sample(samples, host, task, waited)

        def lends(rebuilding: Rebuilding, host: Host, effect: Keep, serial: int, weights: Weights, *rest: Any) -> None:
            if effect.donor.peer == peer:
                self.asked.add(weights.version.step + 1)
            whole(rebuilding, host, effect, serial, weights, *rest)

        self.bugs = (Samples, "_ask", asks), (Rebuilding, "_whole", lends)
        liar.compute.trains, world.liars = self.trains, True

    def trains(self, parts: Any) -> Any:
        weights = self.compute.weights.get(STAGE)
        return parts if weights is not None and weights.version.step + 1 in self.asked else turned(parts)


@pytest.mark.parametrize(("seed", "planted"), [(1, False), (2, False), (1, True)])
def test_who_trains_rightly_in_the_steps_that_it_is_asked_about_goes(seed: int, planted: bool) -> None:
    """Some visits of others are done again, too. The planted bug: they are not."""
    world = world_of(seed, replace(SETTINGS, shadow_every=10))
    liar = holder(world)
    adapts = Adapts(world, liar)
    late = (copy_trials, "LATE_CHANCE", 0.0)
    with patched(*adapts.bugs, *([late] if planted else [])):
        world.run(world.now + 3 * SECONDS, lambda: str(liar.peer) in lost(world))
    assert lost(world) == ([] if planted else [str(liar.peer)]), [*world.notes][-20:]


def test_planted_where_nobody_looks_which_way_weights_go_it_stays() -> None:
    with patched(NO_COURSE):
        world, _ = lends_no_samples(1)
    assert not lost(world)


@pytest.mark.parametrize("stages", [2, 5])
def test_which_way_honest_weights_go_is_looked_at_and_says_nothing_against_anybody(stages: int) -> None:
    values = list[float]()
    with patched((CopyTrials, "_on_course", counted(CopyTrials._on_course, values))):
        world = world_of(1, replace(SETTINGS, stages=stages))
        world.run(world.now + 2 * SECONDS)
    assert len(values) > 5 and {*values} == {AGAINST} and not lost(world), values


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("stages", [2, 5])
def test_nobody_is_sent_the_same_tensor_again_and_again(stages: int, planted: bool) -> None:
    sent, on_show = Counter[Any](), Showing.on_show

    def counted(self: Showing, sender: Peer, show: Show) -> list[Effect]:
        made = on_show(self, sender, show)
        tensors = [each.message for each in made if isinstance(each, Send) and isinstance(each.message, Boundary)]
        sent.update((sender, one.step, one.attempt, one.microbatch, one.visit, one.direction) for one in tensors)
        return made

    always = (copy_trials._Trial, "asks_again", lambda self, s: self.check.ask_again())
    with patched((Showing, "on_show", counted), *([always] if planted else [])):
        world = world_of(1, replace(SETTINGS, stages=stages))
        world.run(world.now + SECONDS / 2)
    assert len(sent) > 50 and (sent.total() > 1.3 * len(sent)) == planted, (sent.total(), len(sent))


# -- planted bugs


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param((copy_trials, "_chance", lambda stage, settings: 0.0), id="nobody draws"),
        pytest.param((CopyTrials, "go_on", lambda self, *given: Outcome()), id="nothing is done again"),
        pytest.param((copy_trials, "COPIES_ROUND", 100.0), id="anything is near enough"),
        pytest.param((Holder, "_say_what_is_refuted", lambda self, *given: None), id="nobody is told"),
        pytest.param((Showing, "_those_who_may_see", lambda self, stage: self.groups.of(stage)), id="nobody shows"),
        pytest.param((Showing, "own", lambda self, key: None), id="a keeper beside does not look at its own"),
    ],
)  # fmt: skip
def test_without_a_part_of_it_the_liar_stays(bug: tuple[Any, str, Any]) -> None:
    with patched(bug):
        world, liar = beside(2, 1)
        passes_on(world, liar, False)
        world.run(world.now + SECONDS, lambda: str(liar.peer) in lost(world))
    assert not lost(world)


class Whoever(Peer):
    """Everybody's equal."""

    __hash__ = Peer.__hash__

    def __eq__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize("planted", [False, True])
def test_a_copy_of_who_held_the_stage_before_says_nothing_of_who_has_made_it_anew(planted: bool) -> None:
    """It has the same version, and other weights."""
    bug = (OwnCopies, "lent_by", lambda self, stage, version: Whoever("", 0))
    with patched(*([bug] if planted else [])):
        world, liar = beside(3, 3)
        trains_otherwise(world, liar)
        world.run(world.now + 3 * SECONDS, lambda: str(liar.peer) in lost(world))
        world.run(world.now + SECONDS / 4)
    assert (lost(world) != [str(liar.peer)]) == planted, lost(world)


def test_planted_a_ledger_of_its_own_releases_what_the_attempt_holds() -> None:
    alone = Holds.__init__
    with patched((Holds, "__init__", lambda self, beside=None: alone(self))), pytest.raises(Violation):
        beside(2, 1)


def test_where_the_holder_is_not_asked_what_it_was_given_it_goes_for_anothers_lie() -> None:
    world = world_of(1)
    liar = holder(world, STAGE - 1)
    shows_others(world, liar)
    with patched((Check, "asking_whether_given", lambda self, task: None)):
        world.run(world.now + SECONDS, lambda: bool(lost(world)))
    assert lost(world)[0] != str(liar.peer)


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param((StepTrace, "on_begin", lambda self, begin: None), id="no second sample"),
        pytest.param((StepTrace, "due", lambda self: None), id="nothing is compared"),
        pytest.param((step_trace, "EVIDENCE_MAX", 1000.0), id="nothing is enough"),
        pytest.param((step_trace, "SHARE_EXPECTED", 0.0), id="nothing speaks against anybody"),
    ],
)  # fmt: skip
def test_without_a_part_of_it_who_trains_with_something_else_stays(bug: tuple[Any, str, Any]) -> None:
    with patched(bug, NO_COURSE):
        world = world_of(1)
        liar = holder(world)
        trains_otherwise(world, liar)
        world.run(world.now + 2 * SECONDS, lambda: str(liar.peer) in lost(world))
    assert not lost(world)
