"""The status of a run as one participant knows it, for `/ftnode/status/1`."""

from __future__ import annotations

from importlib.metadata import version

from ftnode.node.status import COMMITS_MAX, CommitPoint, CopyRow, RecoveryRow, Speaker, StageRow, SwarmStatus
from ftnode.protocol.chronicle import Rebuild
from ftnode.protocol.manifest import Manifest
from ftnode.protocol.participant import Participant

VERSION = version("ftnode")


def snapshot(core: Participant, manifest: Manifest, device: str, now: float) -> SwarmStatus:
    """What this node knows; rows of other holders are as of their last heartbeat."""
    role = "volunteer"
    speaker = Speaker(core.me.id, VERSION, device, role)
    commits = _curve(core)
    newest = core.chronicle.commits.get(core.chronicle.newest_step)
    last_validation = max(core.chronicle.validation, default=None)
    view = core.view
    if view is None:
        return SwarmStatus(
            speaker, run=manifest.run_id, name=manifest.run.name, steps=manifest.run.steps, state="waiting",
            waiting=core.waiting(),
        )  # fmt: skip
    report = core.reports.get(view.leader)
    waiting = core.waiting() if core.leader is not None or report is None else report.waiting
    return SwarmStatus(
        speaker,
        run=manifest.run_id,
        name=manifest.run.name,
        step=newest.step if newest is not None else 0,
        steps=manifest.run.steps,
        loss=newest.loss if newest is not None else None,
        validation=core.chronicle.validation[last_validation] if last_validation is not None else None,
        tokens_per_second=_speed(core),
        leader=view.leader.id,
        lineage=view.lineage.id,
        view=view.number,
        state=_state(core, waiting),
        waiting=waiting,
        stages=_rows(core, now),
        standbys=tuple(sorted(peer.id for peer, p in core.presences.items() if peer not in core.members)),
        recoveries=_recoveries(core),
        commits=commits,
        copies=_copies(core),
        skipped_steps=sum(commit.skipped for commit in core.chronicle.commits.values()),
    )


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


def _speed(core: Participant) -> float | None:
    """Tokens per second over the newest commits."""
    newest = core.chronicle.newest_commits(8)
    seconds = sum(commit.seconds for commit in newest)
    return sum(commit.tokens for commit in newest if commit.seconds > 0) / seconds if seconds > 0 else None


def _rows(core: Participant, now: float) -> tuple[StageRow, ...]:
    view = core.view
    assert view is not None
    rows = []
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
            rows.append(
                StageRow(stage, peer.id, state, view.epochs[stage], max(0, applied), accumulated, queue, max(0.0, age))
            )
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
