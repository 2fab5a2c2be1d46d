"""The status of a run as one participant knows it, for `/ftnode/status/1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import median

from ftnode.node.acquaintances import Acquaintance
from ftnode.node.progress import Progress
from ftnode.node.stage_summary import Circumstances, summarize
from ftnode.node.status import (
    COMMITS_MAX,
    CommitPoint,
    CopyRow,
    PeerRow,
    RecoveryRow,
    Speaker,
    StageRow,
    StageSummary,
    SwarmStatus,
    perplexity_of,
)
from ftnode.protocol.chronicle import Rebuild
from ftnode.protocol.manifest import Manifest
from ftnode.protocol.participant import Participant
from ftnode.protocol.types import Peer
from ftnode.protocol.watchers import beats_to

VERSION = version("ftnode")
PACE_COMMITS = 8
"""Of the newest, for the speed and the time that is left."""
SILENT_LEASES = 2
"""Who stands by is heard twice per lease."""
PEERS_MAX = 256
PEER_ADDRESSES_MAX = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a node knows besides its core."""

    device: str
    progress: Progress = field(default_factory=Progress)
    acquaintances: Mapping[str, Acquaintance] = field(default_factory=dict)
    reach: str = ""
    clock: float | None = None
    """Wall clock now."""


def snapshot(
    core: Participant, manifest: Manifest, around: Surroundings, now: float, curve: bool = True
) -> SwarmStatus:
    """What this node knows; rows of other holders are as of their last heartbeat. `curve`: with the commits."""
    speaker = Speaker(core.me.id, VERSION, around.device, "volunteer", around.reach)
    newest = core.chronicle.commits.get(core.chronicle.newest_step)
    last_validation = max(core.chronicle.validation, default=None)
    view = core.view
    if view is None:
        return SwarmStatus(
            speaker, run=manifest.run_id, name=manifest.run.name, steps=manifest.run.steps, state="waiting",
            waiting=core.waiting(), clock=around.clock, volunteers=1, peers=_peers(core, around, now),
        )  # fmt: skip
    report = core.reports.get(view.leader)
    waiting = core.waiting() if core.leader is not None or report is None else report.waiting
    state, rows = _state(core, waiting), _rows(core, manifest, now)
    peers = _peers(core, around, now)
    validation = core.chronicle.validation[last_validation] if last_validation is not None else None
    return SwarmStatus(
        speaker,
        run=manifest.run_id,
        name=manifest.run.name,
        step=newest.step if newest is not None else 0,
        steps=manifest.run.steps,
        loss=newest.loss if newest is not None else None,
        validation=validation,
        tokens_per_second=_speed(core),
        leader=view.leader.id,
        lineage=view.lineage.id,
        view=view.number,
        state=state,
        waiting=waiting,
        stages=rows,
        standbys=tuple(sorted(peer.id for peer in _present(core, now) if peer not in core.members)),
        recoveries=_recoveries(core),
        commits=_curve(core) if curve else (),
        validation_step=last_validation,
        perplexity=perplexity_of(validation),
        eta_seconds=_eta(core) if state == "training" else None,
        volunteers=sum(row.role != "bootstrap" for row in peers),
        commit_age=around.progress.commit_age(now),
        clock=around.clock,
        summaries=_summaries(core, around, rows, state, waiting, now),
        peers=peers,
        copies=_copies(core),
        skipped_steps=sum(commit.skipped for commit in core.chronicle.commits.values()),
    )


def look(core: Participant, progress: Progress, now: float) -> None:
    """Note what has moved since the last look."""
    rows = {} if core.view is None else dict.fromkeys(range(len(core.view.holders)), 0)
    for peer, report in core.reports.items():
        if core.view is not None and report.view == core.view.number and peer in core.members:
            for told in report.stages:
                if told.stage in rows:
                    rows[told.stage] = max(rows[told.stage], told.applied)
    for stage in core.mine:
        rows[stage] = max(rows.get(stage, 0), core.holder.applied(stage))
    progress.look(core.chronicle.newest_step, {stage: step for stage, step in rows.items() if step > 0}, now)


def _copies(core: Participant) -> tuple[CopyRow, ...]:
    """By the keepers' own word."""
    told = [(peer, report.copies) for peer, report in core.reports.items() if peer in core.members]
    told.append((core.me, core.holder.copies.told()))
    rows = [CopyRow(copy.stage, peer.id, copy.step, copy.fetched) for peer, copies in told for copy in copies]
    return tuple(sorted(rows, key=lambda row: (row.stage, row.peer))[:COMMITS_MAX])


def _curve(core: Participant) -> tuple[CommitPoint, ...]:
    """The whole curve, thinned evenly to what a status may hold; the newest commit is always there."""
    commits = core.chronicle.commits
    every = -(-len(commits) // COMMITS_MAX)
    steps = sorted(commits, reverse=True)[:: max(1, every)]
    return tuple(CommitPoint(step, commits[step].loss, commits[step].seconds) for step in reversed(steps))


def _state(core: Participant, waiting: str) -> str:
    if waiting.startswith("halted"):
        return "halted"
    if waiting:
        return "waiting"
    over = core.chronicle.newest_step >= core.settings.steps
    return "finished" if core.holder.finished or over else "training"


def _eta(core: Participant) -> float | None:
    """Seconds to the last step at the pace of the newest commits."""
    newest = core.chronicle.newest_commits(PACE_COMMITS)
    if not newest:
        return None
    pace = sum(commit.seconds for commit in newest) / len(newest)
    return max(0, core.settings.steps - core.chronicle.newest_step) * pace


def _speed(core: Participant) -> float | None:
    """Tokens per second over the newest commits."""
    newest = core.chronicle.newest_commits(PACE_COMMITS)
    seconds = sum(commit.seconds for commit in newest)
    return sum(commit.tokens for commit in newest if commit.seconds > 0) / seconds if seconds > 0 else None


def _summaries(
    core: Participant, around: Surroundings, rows: tuple[StageRow, ...], state: str, waiting: str, now: float
) -> tuple[StageSummary, ...]:
    view, swap = core.view, core.settings.swap
    assert view is not None
    newest = core.chronicle.newest_commits(PACE_COMMITS)
    circumstances = Circumstances(
        waiting=waiting,
        finished=state == "finished",
        step_seconds=median(commit.seconds for commit in newest) if newest else None,
        silence_seconds=core.settings.lease_seconds,
        heard=frozenset(peer.id for peer in core.members if core.member and core.me in beats_to(view, peer, swap)),
        refused=frozenset(peer.id for peer in core.liveness.refused) if state == "finished" else frozenset(),
        rebuilds={
            rebuild.stage: f"rebuilt by {rebuild.rung.value}: {rebuild.reason}"
            for rebuild in core.chronicle.rebuilds.values()
            if rebuild.seconds is None
        },
    )
    return summarize(rows, lambda stage: around.progress.stage_age(stage, now), circumstances)


def _peers(core: Participant, around: Surroundings, now: float) -> tuple[PeerRow, ...]:
    """This node, the other members by stage, who learns or stands by, and who else was met (a meeting point)."""
    view, begin = core.view, core.holder.begin
    stages: dict[Peer, tuple[int, ...]] = {}
    roles: dict[Peer, str] = {}
    for peer in view.members() if view is not None else ():
        stages[peer] = view.stages_of(peer) if view is not None else ()
        roles[peer] = "leader" if view is not None and peer == view.leader else "holder"
    for stage, peer in begin.learners if begin is not None else ():
        if roles.get(peer, "learner") == "learner":
            stages[peer], roles[peer] = (*stages.get(peer, ()), stage), "learner"
    for peer in sorted({core.me, *_present(core, now)}):
        roles.setdefault(peer, "standby")
    found = [
        _peer_row(core, around, peer, roles[peer], stages.get(peer, ()), now)
        for peer in sorted(roles, key=lambda peer: (stages.get(peer) or (1 << 20,), peer))
    ]
    named = {peer.id for peer in roles}
    found += [
        PeerRow(peer_id, met.role, (), (met.address,), met.path, met.latency, met.version, None)
        for peer_id, met in sorted(around.acquaintances.items())
        if peer_id not in named and met.role == "bootstrap"
    ]
    return tuple(found[:PEERS_MAX])


def _present(core: Participant, now: float) -> list[Peer]:
    """Those in the directory whose record does not merely outlive them: their address refuses us, or they were heard
    once and are silent since."""
    alive = core.liveness
    return [
        peer
        for peer in core.presences
        if peer not in alive.refused
        and not (peer in alive.heard and alive.silence(peer, now) > SILENT_LEASES * core.settings.lease_seconds)
    ]


def _peer_row(
    core: Participant, around: Surroundings, peer: Peer, role: str, stages: tuple[int, ...], now: float
) -> PeerRow:
    if peer == core.me:
        return PeerRow(peer.id, role, stages, core.addresses[:PEER_ADDRESSES_MAX], "self", None, VERSION, 0.0)
    met = around.acquaintances.get(peer.id, Acquaintance("none"))
    presence = core.presences.get(peer)
    addresses = core.contacts.get(peer) or (presence.addresses if presence is not None else ())
    heard = core.liveness.heard.get(peer)
    return PeerRow(
        peer.id, role, stages, addresses[:PEER_ADDRESSES_MAX], met.path, met.latency, met.version,
        None if heard is None else max(0.0, now - heard),
    )  # fmt: skip


def _rows(core: Participant, manifest: Manifest, now: float) -> tuple[StageRow, ...]:
    view = core.view
    assert view is not None
    rows = []
    paces = core.watch.paces()
    tokens = manifest.tokens_per_step / manifest.batch.microbatches
    for stage, group in enumerate(view.holders):
        if not group:
            rows.append(StageRow(stage, "", "vacant", view.epochs[stage], 0, 0, 0, 0.0))
        for peer in group:
            reports = core.watch.heartbeat(False).stages if peer == core.me else ()
            beat = core.reports.get(peer)
            if beat is not None and beat.view == view.number:
                reports = beat.stages
            age = 0.0 if peer == core.me else core.liveness.silence(peer, now)
            found = next((report for report in reports if report.stage == stage), None)
            state, applied, accumulated, queue = ("unknown", 0, 0, 0)
            if found is not None:
                state, applied, accumulated, queue = found.state, found.applied, found.accumulated, found.queue
            pace = paces.get((peer, stage))
            rows.append(
                StageRow(
                    stage, peer.id, state, view.epochs[stage], max(0, applied), accumulated, queue, max(0.0, age),
                    tokens / pace if pace else None,
                )
            )  # fmt: skip
    return tuple(rows)


def _recoveries(core: Participant) -> tuple[RecoveryRow, ...]:
    return tuple(
        RecoveryRow(
            rebuild.stage, rebuild.step, rebuild.rung.value, rebuild.epoch,
            rebuild.lost.id if rebuild.lost is not None else "",
            rebuild.newcomer.id if rebuild.newcomer is not None else "", rebuild.reason, rebuild.seconds,
            _bytes_fetched(core, rebuild), *core.chronicle.around(rebuild),
        )
        for _, rebuild in sorted(core.chronicle.rebuilds.items())
    )  # fmt: skip


def _bytes_fetched(core: Participant, rebuild: Rebuild) -> int:
    """As the newcomer says, while it holds the stage."""
    if rebuild.newcomer is None:
        return 0
    if rebuild.newcomer == core.me:
        return core.holder.installs.fetched.get(rebuild.stage, 0)
    report = core.reports.get(rebuild.newcomer)
    stages = report.stages if report is not None else ()
    return next((told.fetched for told in stages if told.stage == rebuild.stage), 0)
