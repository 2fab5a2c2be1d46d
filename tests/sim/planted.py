"""Bugs planted into the real core. Each is a patch of one decision; the world's checks must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from ftnode.protocol import participant
from ftnode.protocol.holder import holder, own_stages
from ftnode.protocol.leader import leader, leader_memory, next_view, recruiting, restart
from ftnode.protocol.leader.cases import Cases
from ftnode.protocol.recovery import copies, disk_versions, install_plans, installs, lent_copies, rolls, standing
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step import attempt, group, line_pace, outbox, routes, work_split
from ftnode.protocol.views import ballot, following, given_up, lineage_rank, succession
from ftnode.protocol.words import view
from ftnode.protocol.words.effects import Reduce, Release
from ftnode.protocol.words.events import ComputeReady, StageLost
from ftnode.protocol.words.messages import Begin, Plan, Status
from ftnode.protocol.words.settings import Settings
from tests.sim.compute import Compute
from tests.sim.kept_worlds import planted
from tests.sim.scenario import SOFT

MODULES = (following, next_view, succession)


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes, and put the originals back."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        with planted():
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def any_quorum() -> Any:
    """One voter is a quorum."""
    return patched((view.View, "is_quorum", lambda self, peers: bool(set(peers) & set(self.voters))))


def no_adoption() -> Any:
    """A proposer puts its own view forward although one may have been accepted (rule 11)."""
    return patched((ballot, "adopt", lambda promises, own: own))


def no_barrier() -> Any:
    """The leader of a new view decides when half of the members have reported (rule 17)."""
    original = leader.Leader._decide

    def decide(self: leader.Leader, s: Situation, out: Outcome, exhausted: bool = False) -> None:
        statuses = self.progress.statuses
        missing = sorted(s.members - statuses.keys())
        if self.progress.begin is None and len(statuses) > len(missing):
            statuses |= dict.fromkeys(missing, nothing_said(self.view))
        original(self, s, out, exhausted)

    return patched((leader.Leader, "_decide", decide))


def nothing_said(of: view.View) -> Status:
    """The Status of a peer that has nothing."""
    return Status(of.lineage.id, of.number, None, 0, None, False, False, False, (), None, (), (), (), (), -1)


def early_commit() -> Any:
    """All but one Ready are enough (rule 24)."""
    return patched((leader.Leader, "_all_ready", lambda self, s: len(self.progress.ready) >= len(s.members) - 1))


def apply_without_gradient() -> Any:
    """A holder is Ready when everything is accumulated, and nobody ever reduces (rule 23)."""

    def complete(self: Any) -> bool:
        return not self._inflight and all(self.groups.expected(stage) <= self.accumulated for stage in self.stages)

    return patched(
        (attempt.StepWork, "complete", property(complete)),
        (attempt.StepWork, "has_reduced", lambda self, stage: True),
        (attempt.StepWork, "_reduce_if_complete", lambda self, stage, now: []),
    )


def newcomers_vote() -> Any:
    """Every member of a new view is a voter at once (rule 13)."""
    original = succession.next_view

    def next_view(
        before: Any, leads: Any, gone: Any, vacated: Any, fills: Any, settled: Any, reason: Any, joins: Any = (),
        *others: Any,
    ) -> Any:  # fmt: skip
        voters = {*settled, *fills.values(), *(peer for _, peer in joins)}
        return original(before, leads, gone, vacated, fills, voters, reason, joins, *others)

    places = [module for module in MODULES if vars(module).get("next_view") is original]
    return patched(*((module, "next_view", next_view) for module in places))


def old_attempts_accepted() -> Any:
    """A tensor of an earlier attempt is as good as one of this (rule 21)."""

    def on_boundary(self: Any, s: Any, sender: Any, boundary: Any, handle: Any, relay: str = "") -> Any:
        if self.work is None or s.view is None:
            return [Release((handle,))]
        return self.work.on_boundary(sender, boundary, handle)

    def fits(me: Any, sender: Any, boundary: Any, in_view: Any, begin: Any, settings: Any) -> bool:
        return bool(len(boundary.path) == settings.stages + 2 and boundary.path[boundary.visit] == me)

    return patched((holder.Holder, "on_boundary", on_boundary), (attempt, "fits", fits))


def double_accumulation() -> Any:
    """A tensor that comes twice is computed twice (rule 21)."""
    return patched((attempt.StepWork, "_has", lambda self, key: False))


def range_computed_twice() -> Any:
    """Who takes over a stage in front of its own goes through all of them, though some have been done (decision
    0043)."""
    original = attempt.StepWork._with_neighbours

    def with_neighbours(self: Any, task: Any) -> Any:
        with patched((attempt.StepWork, "_has", lambda self, key: False)):
            return original(self, task)

    return patched((attempt.StepWork, "_with_neighbours", with_neighbours))


def nothing_is_resent() -> Any:
    """A tensor whose acknowledgement is missing is not sent again (rule 21)."""
    return patched((outbox.Outbox, "resend", lambda self, now, due: []))


def stale_begin() -> Any:
    """A Begin is obeyed whoever sends it and of whatever view (rule 19)."""

    def on_begin(self: Any, sender: Any, message: Any) -> None:
        if self.view is not None and self.member:
            self.carry_out(self.holder.on_begin(self.situation, message))

    return patched((participant.Participant, "_on_begin", on_begin))


def plans_of_an_old_view() -> Any:
    """A leader fills a stage by what somebody answered in an earlier view, and asks nobody (rule 10)."""
    fills_now, wants_now = recruiting.Recruiting.fills.fget, recruiting.Recruiting._wants
    answered = dict[int, tuple[Any, dict[int, Any]]]()  # with the memory, so that no other one gets its id

    def earlier(self: Any) -> dict[int, Any]:
        known = answered.setdefault(id(self.memory), (self.memory, {}))[1]
        return {stage: peer for stage, peer in known.items() if stage in self.needed() and peer not in self.losses.gone}

    def fills(self: Any) -> dict[int, Any]:
        assert fills_now is not None
        old, new = earlier(self), fills_now(self)
        answered[id(self.memory)][1].update(new)
        return old | new

    def wants(self: Any, stage: int) -> bool:
        return wants_now(self, stage) and stage not in earlier(self)

    return patched((recruiting.Recruiting, "fills", property(fills)), (recruiting.Recruiting, "_wants", wants))


def promises_broken() -> Any:
    """An acceptor forgets what it promised and accepted (rule 12)."""
    original = ballot.Balloting.on_prepare

    def on_prepare(self: Any, sender: Any, prepare: Any) -> Any:
        self.promised = self.accepted = None
        return original(self, sender, prepare)

    return patched((ballot.Balloting, "on_prepare", on_prepare))


def nobody_yields() -> Any:
    """Two lineages that meet both go on (rule 16)."""
    return patched((view.Lineage, "beats", lambda self, other: False))


def copies_cross_lineages() -> Any:
    """A keeper that yields to another lineage still offers what its own one made (rule 16), and its word for it counts
    (rule 49)."""
    return patched(
        (copies.OwnCopies, "forget", lambda self, lineages: Outcome()),
        (lent_copies.LentCopies, "counts", lambda self, keeper, stage, version: True),
        (lent_copies.LentCopies, "counts_of_step", lambda self, keeper, stage, step: True),
        (Plan, "takes", lambda self, digest: True),
    )


def kept_before_it_is_whole() -> Any:
    """A keeper tells of a copy as soon as it has asked for it."""
    original = copies.OwnCopies.on_begin

    def on_begin(self: Any, s: Any, begin: Begin) -> Any:
        outcome = original(self, s, begin)
        self.held |= {stage: version for stage, (version, _) in self._pending.items()}
        return outcome

    return patched((copies.OwnCopies, "on_begin", on_begin))


def validation_swaps_too() -> Any:
    """A validation microbatch takes the route of its number (CheckFree+ validates in normal order)."""
    return patched(
        (attempt.StepWork, "route", lambda self, m: routes.route(self.settings.stages, m, self.settings.swap))
    )


def reduced_before_it_is_whole() -> Any:
    """A group reduces when every holder has said something, whether it is the step's set or not (rule 23)."""

    def due(self: Any, stage: int, now: float, checked: Any = None) -> Any:
        told = self._told.get(stage, {})
        if stage in self.reducing or not set(self.view.holders[stage]) <= told.keys():
            return None
        visits = tuple((peer, len(told.get(peer, ()))) for peer in self.of(stage))
        task = Reduce(stage, self.begin.step, self.begin.attempt, self.view.number, visits, checked)
        self.reducing[stage] = task, now
        return task

    return patched((group.Groups, "due", due))


def dead_ends() -> Any:
    """Visits of the dead are left with the dead when an attempt goes on (rule 22)."""
    return patched((work_split, "_survivors", lambda view, visited, path, given: path))


NOBODY_JUDGES: Final[tuple[type, str, Any]] = (Cases, "_judges", lambda self, *given: [])
"""Nobody is asked to do again what one says of another."""


def other_sums(of: Callable[[str, Reduce], bool]) -> Any:
    """No bug of the core: compute processes that `of` picks (owner, task) add up something else than their group."""
    original = Compute.reduce

    def reduce(self: Compute, task: Reduce, parts: Any, commit: str) -> Any:
        result = original(self, task, parts, commit)
        if result.fault or not of(self.owner, task):
            return result
        self.reduced[task.stage] = self.reduced[task.stage]._replace(chain=hash((self.owner, task.step)))
        return result._replace(gradient=f"other {self.owner}")

    return patched((Compute, "reduce", reduce))


def replicas_at_odds() -> Any:
    """The leader commits although replicas are Ready with different gradients (rule 23)."""
    return patched((leader, "agree", lambda readies: True), (standing, "agree", lambda readies: True))


def sums_of_an_earlier_view() -> Any:
    """Who has a group's sum keeps it when the attempt goes on without somebody (rule 23)."""
    original = attempt.StepWork.continue_in

    def continue_in(self: Any, view: Any, begin: Any, now: float) -> Any:
        results = dict(self.results)
        effects = original(self, view, begin, now)
        self.results |= results
        return effects

    return patched((attempt.StepWork, "continue_in", continue_in))


def kept_tensors_stay() -> Any:
    """What the dead had acknowledged is not sent to whoever takes their place (rule 22)."""
    original = outbox.Outbox.reroute

    def reroute(self: Any, number: int, paths: Any, now: float) -> Any:
        stored = [kept for kept in self._kept.values() if kept.stored]
        ours = original(self, number, paths, now)
        for kept in stored:
            kept.stored = True
        return [kept for kept in ours if kept not in stored]

    return patched((outbox.Outbox, "reroute", reroute))


def admitted_between_status_and_begin() -> Any:
    """A holder of the head admits when it likes, also along a path that the leader was not told of (rule 22)."""
    original = attempt.StepWork.advance
    return patched((attempt.StepWork, "advance", lambda self, now, admits: original(self, now, True)))


def forks_go_on() -> Any:
    """The founder of a lineage goes on with its parent's attempt (rule 22)."""
    original = leader.Leader._continue

    def go_on(self: leader.Leader, s: Situation, out: Outcome, where: Any) -> None:
        held: Any = s.own
        if held.begin is not None:
            held.begin = replace(held.begin, lineage=self.view.lineage.id)
        original(self, s, out, where)

    return patched((leader.Leader, "_continue", go_on))


def missed_sums_do_not_matter() -> Any:
    """A learner that has missed a sum takes what it has for the step's weights all the same (rule 26)."""
    original = own_stages.OwnStages._learn

    def learn(self: Any, s: Any, out: Any, stage: int, begin: Begin, at_work: Any) -> None:
        if self._work_of_base(stage, begin, at_work) is not None or not self.installs.carries_on(stage, begin.base):
            original(self, s, out, stage, begin, at_work)

    return patched((own_stages.OwnStages, "_learn", learn))


def learnt_once_is_learnt_for_good() -> Any:
    """A learner keeps what it has when its stage is rebuilt meanwhile, since the name is the same."""
    return patched((installs.Installs, "outdated", lambda self, s, stage, begin, goes_on: False))


def one_donor_is_enough() -> Any:
    """A lender is taken whether it has weights or not."""
    original = install_plans.filled_from

    def filled_from(stage: int, available: Any, settings: Any) -> Any:
        everywhere = frozenset(range(settings.stage_count)) - {stage}
        return original(stage, available._replace(held=everywhere), settings)

    return patched((install_plans, "filled_from", filled_from))


def digests_do_not_matter() -> Any:
    """Whoever has a snapshot of the stage lends it, whatever the others have (rule 35)."""
    return patched((disk_versions, "_counted", lambda digests: (next(iter(digests.values())), tuple(digests))))


def other_histories_mix() -> Any:
    """A snapshot is taken for what its step is called (rule 35)."""
    original = disk_versions._by_version

    def by_version(known: Any, only: Any = None) -> Any:
        named = {one.version.step: one.version for listed in known.values() for one in listed}
        renamed = {p: tuple(replace(one, version=named[one.version.step]) for one in known[p]) for p in known}
        return original(renamed, named.get(only.step, only) if only is not None else None)

    return patched(
        (disk_versions, "_by_version", by_version),
        (disk_versions, "kept_of", lambda version, known: next(iter(by_version(known, version).values()), {})),
        (restart, "kept_of", lambda version, known: next(iter(by_version(known, version).values()), {})),
    )


def weights_do_not_matter() -> Any:
    """Disks are looked at although what is in memory suffices, and at once (rule 35)."""
    return patched(
        (restart.Restart, "concerns", lambda self, s, where: bool(self.known(s))),
        (Settings, "restart_wait_seconds", property(lambda self: 0.0)),
    )


def epochs_from_nothing() -> Any:
    """A lineage from disks counts its epochs from 0 (rule 36)."""
    return patched((restart, "number_after", lambda known, number: number + 1))


def any_weights_block() -> Any:
    """Disks are not looked at as long as anybody has any weights, or knows of a commit (rule 35)."""
    original = restart.Restart.look

    def look(self: restart.Restart, s: Situation) -> Outcome:
        progress = self.progress
        stages = (stage for status in progress.statuses.values() for stage in status.stages)
        if all(stage.version is None for stage in stages) and (progress.base is None or progress.base.step == 0):
            return original(self, s)
        return Outcome()

    return patched((restart.Restart, "look", look))


def steps_do_not_matter() -> Any:
    """Lineages without a common past are ranked like those with one (rule 16)."""
    return patched((lineage_rank, "_farther", lambda s, step: 0))


def hearsay_does_not_matter() -> Any:
    """Only disks that can be asked count: the run begins from nothing although others were told of (rule 35)."""

    def concerns(self: restart.Restart, s: Situation, where: Any) -> bool:
        return where.base.step == 0 and bool(self.known(s))

    return patched((restart.Restart, "concerns", concerns))


def the_past_is_waited_for() -> Any:
    """Who starts again looks for the members of a view that are all earlier lives of those who are here (rule 37)."""
    return patched((given_up.GivenUpLineages, "is_over", lambda self, s, view, heard_at: False))


def liars_are_believed() -> Any:
    """A snapshot or a copy that nobody gets is counted on for ever (rules 29, 35)."""
    return patched(*((module, "FAILURES_MAX", 10**9) for module in (leader_memory, recruiting)))


def disks_are_believed() -> Any:
    """Nobody has a roll, and one peer's word is enough (rule 46)."""
    return patched(
        (rolls.OwnRolls, "say", lambda self, s, disk: Outcome()), (restart, "witnessed", lambda found, known: found)
    )


def keepers_ignore_sites() -> Any:
    """Who keeps copies is chosen as if nobody had said where it is (rule 30)."""
    return patched((leader, "keepers", lambda of, settings, sites, kept: copies.keepers(of, settings, {}, kept)))


def lines_are_not_told() -> Any:
    """Only compute's pace counts, however thin a peer's line is (rule 20)."""
    return patched((line_pace.LinePace, "seconds", lambda self, stage: 0.0))


def delays_count() -> Any:
    """A line takes as long for a tensor as its acknowledgement (rule 20)."""
    observe = line_pace.LinePace._observe
    naive = (line_pace.LinePace, "acknowledged", lambda self, peer, made, again, now: observe(self, now - made))
    return patched(naive)


def keeps_what_is_lost() -> Any:
    """A holder believes that it still has the weights of a stage that compute has lost."""
    original = holder.Holder.on_stage_lost

    def on_stage_lost(self: holder.Holder, s: Situation, lost: StageLost) -> Outcome:
        weights = self.weights
        had, made = weights.versions.get(lost.stage), weights.made_in.get(lost.stage)
        out = original(self, s, lost)
        if had is not None and made is not None:
            weights.versions[lost.stage], weights.made_in[lost.stage] = had, made
        return out

    return patched((holder.Holder, "on_stage_lost", on_stage_lost))


def forgets_its_limit() -> Any:
    """A peer without memory for a stage claims as many again when its compute reports again."""
    original = holder.Holder.on_compute_ready

    def on_compute_ready(self: holder.Holder, event: ComputeReady) -> None:
        self._fits = None
        original(self, event)

    return patched((holder.Holder, "on_compute_ready", on_compute_ready))


ANY = SOFT
BUGS: dict[str, tuple[Callable[[], Any], Sequence[str], int, int]] = {
    function.__name__: (function, faults, shows, seeds)
    for function, faults, shows, seeds in (
        (any_quorum, ANY, 5, 200),
        (no_adoption, ("election",), 6, 200),
        (promises_broken, ("election",), 6, 200),
        (no_barrier, ("election", "newcomers"), 6, 200),
        (newcomers_vote, ANY, 1, 200),
        (early_commit, ANY, 1, 200),
        (apply_without_gradient, ANY, 1, 200),
        (old_attempts_accepted, ANY, 2, 200),
        (double_accumulation, ANY, 1, 200),
        (range_computed_twice, ("double", "adjacent"), 34, 600),
        (nothing_is_resent, ANY, 9, 200),
        (keeps_what_is_lost, ("memory",), 21, 200),
        (nobody_yields, ("split", "partition"), 2, 200),
        (plans_of_an_old_view, ("memory", "double", "compute"), 7, 200),
        (stale_begin, ("isolate", "one-way", "pause", "partition"), 429, 2000),
        (copies_cross_lineages, ("split", "adjacent"), 25, 200),
        (kept_before_it_is_whole, ("head", "double", "adjacent"), 3, 200),
        (validation_swaps_too, ANY, 10, 200),
        (one_donor_is_enough, ("adjacent",), 2, 200),
        (reduced_before_it_is_whole, ANY, 5, 200),
        (dead_ends, ANY, 5, 200),
        (learnt_once_is_learnt_for_good, ANY, 213, 800),
        (keepers_ignore_sites, ("site",), 6, 200),
    )
}
"""Name to the patch, the faults that seeds draw from, a seed that shows it and is looked at first, and the number of
seeds within which it must be found when another change of the core made that one show it no more."""
