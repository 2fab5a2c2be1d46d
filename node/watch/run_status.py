"""The status of a run as one participant knows it, for `/ftnode/status/1`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from statistics import median

from ftnode.node.links.address_cards import bare
from ftnode.node.links.undigested import Failures
from ftnode.node.watch.alarms import alarms
from ftnode.node.watch.bottleneck import Bottleneck, bottleneck
from ftnode.node.watch.peer_latency import UNCONNECTED, Acquaintance
from ftnode.node.watch.progress import Progress
from ftnode.node.watch.stage_summary import LEFT_OUT, Circumstances, summarize
from ftnode.node.watch.status import (
    COMMITS_MAX,
    CommitPoint,
    ConvictedRow,
    CopyRow,
    CreditRow,
    DoubtRow,
    PeerRow,
    RecoveryRow,
    Speaker,
    StageRow,
    StageSummary,
    SwarmStatus,
    UndigestedRow,
    UndoVotesRow,
    perplexity_of,
)
from ftnode.node.watch.time_left import STEPS_SEEN, seconds_left
from ftnode.node.watch.time_use import TimeUse
from ftnode.node.watch.versions import VERSION
from ftnode.protocol.leader.convictions import against, liar_of
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.messages import HALTED, Convicted
from ftnode.protocol.words.types import Peer, Rung
from ftnode.protocol.words.view import majority

PACE_COMMITS = 8
"""Of the newest, for the speed."""
SILENT_LEASES = 2
"""Who stands by is heard twice per lease."""
RATE_MAX = 1e12
"""Tokens a second that are told of. Who is said to compute faster is not as fast."""
PEERS_MAX = 256
PEER_ADDRESSES_MAX = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a node knows besides what its core shows."""

    device: str
    progress: Progress = field(default_factory=Progress)
    acquaintances: Mapping[str, Acquaintance] = field(default_factory=dict)
    reach: str = ""
    clock: float | None = None
    """Wall clock now."""
    trouble: str = ""
    """What this node waits for, whatever its run does."""
    undigested: tuple[UndigestedRow, ...] = ()
    use: TimeUse | None = None
    """Of our own time."""
    revision: int = 0
    """Of the manifest that this node works by."""
    credits: tuple[CreditRow, ...] = ()
    filled: Callable[[RecoveryRow], RecoveryRow] = lambda row: row
    """A recovery with what others told of it (old_recoveries.py)."""


def run_status(
    picture: Picture, manifest: Manifest, around: Surroundings, now: float, curve: bool = True
) -> SwarmStatus:
    """What this node knows; rows of other holders are as of their last heartbeat. `curve`: with the commits."""
    speaker = Speaker(picture.me.id, VERSION, around.device, "volunteer", around.reach)
    newest = picture.history.commits.get(picture.history.newest_step)
    last_validation = max(picture.history.validation, default=None)
    view = picture.view
    if view is None:
        return SwarmStatus(
            speaker, run=manifest.run_id, name=manifest.run.name, steps=manifest.run.steps, state="waiting",
            waiting=picture.waiting, clock=around.clock, volunteers=1, peers=_peers(picture, around, now),
            trouble=around.trouble, undigested=around.undigested,
        )  # fmt: skip
    waiting = picture.run_waiting
    start, state, rows = view.lineage.start, _state(picture, waiting), _rows(picture, manifest, now)
    peers = _peers(picture, around, now)
    limiting = bottleneck(peers) if state == "training" else Bottleneck()
    validation = picture.history.validation[last_validation] if last_validation is not None else None
    return SwarmStatus(
        speaker,
        run=manifest.run_id,
        name=manifest.run.name,
        step=newest.step if newest is not None else max(picture.highest_step, start.step if start is not None else 0),
        steps=manifest.run.steps,
        loss=newest.loss if newest is not None else None,
        validation=validation,
        tokens_per_second=_speed(picture),
        leader=view.leader.id,
        lineage=view.lineage.id,
        view=view.number,
        state=state,
        waiting=waiting,
        stages=_of_each_stage(rows, len(view.holders)),
        standbys=tuple(sorted(peer.id for peer in _present(picture, now) if peer not in picture.members)),
        recoveries=_recoveries(picture, around),
        commits=_curve(picture) if curve else (),
        validation_step=last_validation,
        perplexity=perplexity_of(validation),
        eta_seconds=_eta(picture) if state == "training" else None,
        volunteers=sum(row.role != "bootstrap" for row in peers),
        commit_age=around.progress.commit_age(now),
        clock=around.clock,
        trouble=around.trouble,
        undigested=around.undigested,
        cut_off=picture.cut_off,
        convicted=tuple(convicted_row(case) for case in picture.convicted[::-1]),
        doubts=tuple(DoubtRow(each.peer.id, each.stage, each.step, each.reason) for each in picture.doubts[::-1]),
        summaries=_summaries(picture, around, rows, state, waiting, now),
        peers=peers,
        limiting_peer=limiting.peer,
        limited_by=limiting.kind,
        revision=around.revision,
        rollback_ordered=picture.order.step if picture.order.number else None,
        rollback_by=_giver(picture),
        rollback_number=picture.order.number,
        rollback_votes=_undo_votes(picture),
        rollback_went_to=_went_to(picture),
        rollback_trouble=picture.order_trouble,
        copies=_copies(picture),
        alarms=alarms(picture, now),
        plan=picture.plan,
        credits=around.credits,
        credits_step=picture.history.credit.step,
        skipped_steps=sum(commit.skipped for commit in picture.history.commits.values()),
    )


def _giver(picture: Picture) -> str:
    if not picture.order.number:
        return ""
    return "members" if picture.order.members else "author"


def _undo_votes(picture: Picture) -> tuple[UndoVotesRow, ...]:
    needed = majority(len(picture.view.voters)) if picture.view is not None else 0
    return tuple(UndoVotesRow(step, len(peers), needed) for step, peers in picture.undo_votes.items() if peers)


def _went_to(picture: Picture) -> int | None:
    """The step that the run went back to by the newest order."""
    order, lineage = picture.order, picture.view.lineage if picture.view is not None else None
    if not order.number or lineage is None or lineage.order < order.number or lineage.start is None:
        return None
    return min(lineage.start.step, order.step)


def undigested_rows(failures: Failures) -> tuple[UndigestedRow, ...]:
    """Newest first. Neither whose messages they were nor what these said is told."""
    return tuple(UndigestedRow(kept.protocol, kept.place, kept.count) for kept in failures.newest)


def look(picture: Picture, progress: Progress, now: float) -> None:
    """Note what has moved since the last look."""
    rows = {} if picture.view is None else dict.fromkeys(range(len(picture.view.holders)), 0)
    for peer, report in picture.reports.items():
        if picture.view is not None and report.view == picture.view.number and peer in picture.members:
            for told in report.stages:
                if told.stage in rows:
                    rows[told.stage] = max(rows[told.stage], told.applied)
    _note_fetched(picture, progress)
    progress.look(picture.history.newest_step, {stage: step for stage, step in rows.items() if step > 0}, now)


def _copies(picture: Picture) -> tuple[CopyRow, ...]:
    """By the keepers' own word."""
    told = picture.reports.items()
    rows = [CopyRow(copy.stage, peer.id, copy.step, copy.fetched) for peer, report in told for copy in report.copies]
    return tuple(sorted(rows, key=lambda row: (row.stage, row.peer))[:COMMITS_MAX])


def _curve(picture: Picture) -> tuple[CommitPoint, ...]:
    """The whole curve, thinned evenly to what a status may hold; the newest commit is always there."""
    commits = picture.history.commits
    every = -(-len(commits) // COMMITS_MAX)
    steps = sorted(commits, reverse=True)[:: max(1, every)]
    return tuple(CommitPoint(step, commits[step].loss, commits[step].seconds) for step in reversed(steps))


def _state(picture: Picture, waiting: str) -> str:
    if waiting.startswith(HALTED):
        return "halted"
    if waiting:
        return "waiting"
    return "finished" if picture.finished or picture.over else "training"


def _eta(picture: Picture) -> float | None:
    """Seconds to the last step."""
    took = [commit.seconds for commit in picture.history.newest_commits(STEPS_SEEN)]
    return seconds_left(picture.settings.steps - picture.history.newest_step, took)


def _speed(picture: Picture) -> float | None:
    """Tokens per second over the newest commits."""
    newest = picture.history.newest_commits(PACE_COMMITS)
    return _rate(
        sum(commit.tokens for commit in newest if commit.seconds > 0), sum(commit.seconds for commit in newest)
    )


def _rate(tokens: float, seconds: float) -> float | None:
    """Tokens per second; None where nothing is known, or said that can be."""
    return tokens / seconds if tokens < RATE_MAX * seconds else None


def _of_each_stage(rows: tuple[StageRow, ...], stages: int) -> tuple[StageRow, ...]:
    """As many as a status may hold: of a large swarm the first holders of each stage."""
    if len(rows) <= COMMITS_MAX:
        return rows
    groups = (group for _, group in groupby(rows, key=lambda row: row.stage))
    return tuple(row for group in groups for row in islice(group, COMMITS_MAX // stages))


def convicted_row(case: Convicted) -> ConvictedRow:
    """What signed words say, for people."""
    liar, said = liar_of(case), case.accusation
    reason = said.reason if liar != case.accuser else f"said that another one lies, who does not: {said.reason}"
    return ConvictedRow(
        liar.id if liar is not None else "", said.step, reason, tuple(peer.id for peer in against(case))
    )


def _summaries(
    picture: Picture, around: Surroundings, rows: tuple[StageRow, ...], state: str, waiting: str, now: float
) -> tuple[StageSummary, ...]:
    took = [commit.seconds for commit in picture.history.newest_commits(PACE_COMMITS) if commit.seconds > 0]
    circumstances = Circumstances(
        waiting=waiting,
        finished=state == "finished",
        step_seconds=median(took) if took else None,
        silence_seconds=picture.settings.lease_seconds,
        heard=frozenset(peer.id for peer in picture.watched),
        refused=frozenset(peer.id for peer in picture.signs.refused) if state == "finished" else frozenset(),
        rebuilds={
            rebuild.stage: f"being rebuilt from {rebuild.rung.spoken}: {rebuild.reason}"
            for rebuild in picture.history.rebuilds.values()
            if rebuild.seconds is None
        },
    )
    return summarize(rows, lambda stage: around.progress.stage_age(stage, now), circumstances)


def _peers(picture: Picture, around: Surroundings, now: float) -> tuple[PeerRow, ...]:
    """This node, the other members by stage, who learns or stands by, and who else was met (a meeting point)."""
    view = picture.view
    stages: dict[Peer, tuple[int, ...]] = {}
    roles: dict[Peer, str] = {}
    for peer in view.members() if view is not None else ():
        stages[peer] = view.stages_of(peer) if view is not None else ()
        roles[peer] = "leader" if view is not None and peer == view.leader else "holder"
    for stage, peer in picture.learners:
        if roles.get(peer, "learner") == "learner":
            stages[peer], roles[peer] = (*stages.get(peer, ()), stage), "learner"
    for peer in sorted({picture.me, *_present(picture, now)}):
        roles.setdefault(peer, "standby")
    found = [
        _peer_row(picture, around, peer, roles[peer], stages.get(peer, ()), now)
        for peer in sorted(roles, key=lambda peer: (stages.get(peer) or (1 << 20,), peer))
    ]
    named = {peer.id for peer in roles}
    found += [
        PeerRow(peer_id, met.role, (), (met.address,), met.path, met.latency, met.version, None)
        for peer_id, met in sorted(around.acquaintances.items())
        if peer_id not in named and met.role == "bootstrap"
    ]
    return tuple(found[:PEERS_MAX])


def _present(picture: Picture, now: float) -> list[Peer]:
    """Those in the directory whose record does not merely outlive them: their address refuses us, or they were heard
    once and are silent since."""
    signs = picture.signs
    return [
        peer
        for peer in picture.presences
        if peer not in signs.refused
        and not (peer in signs.heard and signs.silence(peer, now) > SILENT_LEASES * picture.settings.lease_seconds)
    ]


def _peer_row(
    picture: Picture, around: Surroundings, peer: Peer, role: str, stages: tuple[int, ...], now: float
) -> PeerRow:
    if peer == picture.me:
        addresses = bare(picture.contacts[peer])
        return PeerRow(
            peer.id, role, stages, addresses[:PEER_ADDRESSES_MAX], "self", None, VERSION, 0.0, *_use(around.use)
        )
    met = around.acquaintances.get(peer.id, UNCONNECTED)
    presence = picture.presences.get(peer)
    addresses = bare(picture.contacts.get(peer) or (presence.addresses if presence is not None else ()))
    heard = picture.signs.heard.get(peer)
    return PeerRow(
        peer.id, role, stages, addresses[:PEER_ADDRESSES_MAX], met.path, met.latency, met.version,
        None if heard is None else max(0.0, now - heard), *_use(met.use),
    )  # fmt: skip


def _use(use: TimeUse | None) -> tuple[float | None, ...]:
    """The last fields of a PeerRow."""
    return (None,) * 5 if use is None else (use.computed, use.sent, use.waited, use.full, use.up)


def _rows(picture: Picture, manifest: Manifest, now: float) -> tuple[StageRow, ...]:
    view = picture.view
    assert view is not None
    rows = []
    tokens = manifest.tokens_per_step / manifest.batch.microbatches
    for stage, group in enumerate(view.holders):
        if not group:
            state = LEFT_OUT if stage in view.omitted else "vacant"
            rows.append(StageRow(stage, "", state, view.epochs[stage], 0, 0, 0, 0.0))
        for peer in group:
            beat = picture.reports.get(peer)
            reports = beat.stages if beat is not None and beat.view == view.number else ()
            age = 0.0 if peer == picture.me else picture.signs.silence(peer, now)
            found = next((report for report in reports if report.stage == stage), None)
            state, applied, accumulated, queue = ("unknown", 0, 0, 0)
            if found is not None:
                state, applied, accumulated, queue = found.state, found.applied, found.accumulated, found.queue
            pace = picture.pace(peer, stage)
            rows.append(
                StageRow(
                    stage, peer.id, state, view.epochs[stage], max(0, applied), accumulated, queue, max(0.0, age),
                    _rate(tokens, pace),
                )
            )  # fmt: skip
    return tuple(rows)


def _recoveries(picture: Picture, around: Surroundings) -> tuple[RecoveryRow, ...]:
    """Not those of a swarm that started again as a whole from its disks: nobody was lost then."""
    rows = [
        RecoveryRow(
            rebuild.stage, rebuild.step, rebuild.rung.value, rebuild.epoch,
            rebuild.lost.id if rebuild.lost is not None else "",
            rebuild.newcomer.id if rebuild.newcomer is not None else "", rebuild.reason, rebuild.seconds,
            around.progress.fetched.get(key, 0), *picture.history.around(rebuild),
        )
        for key, rebuild in sorted(picture.history.rebuilds.items())
    ]  # fmt: skip
    return tuple(row for row in map(around.filled, rows) if row.rung != Rung.SNAPSHOT.value or row.lost)


def _note_fetched(picture: Picture, progress: Progress) -> None:
    """A newcomer says how much it has fetched for a stage, which is for the last time that it was rebuilt."""
    rebuilds = picture.history.rebuilds
    progress.fetched = {key: size for key, size in progress.fetched.items() if key in rebuilds}
    for stage, key in {key[1]: key for key in sorted(rebuilds)}.items():
        newcomer = rebuilds[key].newcomer
        report = picture.reports.get(newcomer) if newcomer is not None else None
        told = next((told.fetched for told in report.stages if told.stage == stage), 0) if report is not None else 0
        if told:
            progress.fetched[key] = told
