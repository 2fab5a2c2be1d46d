"""`report.json`: what a finished run came to, from its traces, its audit and the moments at which nodes were killed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from ftnode.lab.audit.audit import Findings
from ftnode.lab.traces.story import Story, Told, first_commits
from ftnode.protocol.words.types import Rung
from ftnode.protocol.words.view import View

SURVIVORS = "survivors"
"""In the place of a rung: nothing had to be rebuilt."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A holder that was sent SIGKILL. `time` is CLOCK_MONOTONIC at that moment, `step` the one in work."""

    stage: int
    step: int
    node: str
    time: float
    accumulated: int
    """Microbatches of that step that it had counted, as far as its trace shows."""
    holders: int = 1
    """How many the stage had then."""
    survivors: bool = False
    """Some of them were left alive."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One stage lost and rebuilt. The five parts, all in seconds, add up to `outage_seconds`."""

    stage: int
    step: int
    rung: str
    reason: str
    epoch: int
    origin: str
    """PeerId of the holder before."""
    to: str
    detect_seconds: float
    """From the SIGKILL until the leader of the survivors knew."""
    elect_seconds: float
    """Offer and view change."""
    fetch_seconds: float
    """Until the newcomer had its weights, without the blending."""
    blend_seconds: float
    first_step_seconds: float
    """The rest, up to the next commit."""
    outage_seconds: float
    """From the demo's own time of the SIGKILL to the next commit."""
    bytes_fetched: int
    validation_before: float | None
    """The last validation loss before the interrupted step, nats per token."""
    validation_after: float | None
    """That of the weights after the interrupted step, which the swarm evaluates out of turn."""

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {"from" if name == "origin" else name: value for name, value in fields.items()}


def recover(story: Story, kill: Kill) -> Recovery | None:
    """How the stage of `kill` came back; None when it has not, or no step was committed since."""
    commit = next((told for told in first_commits(story.commits) if told.time > kill.time), None)
    if commit is None:
        return None
    if kill.survivors:
        return _carried_on(story, kill, commit)
    installs = sorted(
        (found for found in story.installed if found.record["stage"] == kill.stage and found.time > kill.time),
        key=lambda found: found.time,
    )
    # A newcomer may die in its turn: the one counts with whose weights the step was committed.
    install = next((found for found in reversed(installs) if found.time <= commit.time), next(iter(installs), None))
    settled = _taken_over(story, kill, install.node) if install is not None else None
    if install is None or settled is None:
        return None
    told, view = settled
    lost = min((note.time for note in story.notes if _tells_of(note, kill, story)), default=told.time)
    step = int(install.record["step"]) + 1
    marks = [kill.time, min(lost, told.time), told.time]
    total = commit.time - kill.time
    detect, elect = (later - earlier for earlier, later in pairwise(marks))
    blend = float(install.record["blend_seconds"])
    fetch = float(install.record["fetch_seconds"])
    return Recovery(
        stage=kill.stage,
        step=kill.step,
        rung=install.record["rung"],
        reason=install.record["reason"],
        epoch=view.epochs[kill.stage],
        origin=story.peers[kill.node].id,
        to=view.holders[kill.stage][0].id,
        detect_seconds=detect,
        elect_seconds=elect,
        fetch_seconds=fetch,
        blend_seconds=blend,
        first_step_seconds=total - detect - elect - fetch - blend,
        outage_seconds=total,
        bytes_fetched=int(install.record["bytes_fetched"]),
        validation_before=next(
            (story.evaluated[at] for at in sorted(story.evaluated, reverse=True) if at < step), None
        ),
        validation_after=story.evaluated.get(step),
    )


def _carried_on(story: Story, kill: Kill, commit: Told) -> Recovery | None:
    """One of several holders is gone: the others have done its part of the step as well."""
    killed = story.peers[kill.node]
    after = [(told, view) for told, view in story.views if told.time > kill.time and killed not in view.members()]
    if not after:
        return None
    told, view = min(after, key=lambda pair: pair[0].time)
    lost = min((note.time for note in story.notes if _tells_of(note, kill, story)), default=told.time)
    detect = min(lost, told.time) - kill.time
    elect, total = told.time - kill.time - detect, commit.time - kill.time
    group = view.holders[kill.stage]
    return Recovery(
        stage=kill.stage,
        step=kill.step,
        rung=SURVIVORS,
        reason=f"{len(group)} of {kill.holders} holders are left and did its part of the step",
        epoch=view.epochs[kill.stage],
        origin=killed.id,
        to=group[0].id if group else "",
        detect_seconds=detect,
        elect_seconds=elect,
        fetch_seconds=0.0,
        blend_seconds=0.0,
        first_step_seconds=total - detect - elect,
        outage_seconds=total,
        bytes_fetched=0,
        validation_before=None,
        validation_after=None,
    )


def _taken_over(story: Story, kill: Kill, owner: str) -> tuple[Told, View] | None:
    """The first view after the kill that gives the stage to `owner`, as its leader wrote it down."""
    found = [
        (told, view)
        for told, view in story.views
        if told.time > kill.time
        and view.holders[kill.stage]
        and story.name(view.holders[kill.stage][0]) == owner
        and story.name(view.leader) == told.node
    ]
    return min(found, key=lambda pair: pair[0].time, default=None)


def _tells_of(note: Told, kill: Kill, story: Story) -> bool:
    """A note `lost` after the kill that names the peer, or names nobody."""
    if note.record["kind"] != "lost" or note.time < kill.time:
        return False
    fields = note.record["fields"]
    killed = story.peers[kill.node]
    named = fields.get("peer", "")
    return not named or named in (killed.id, str(killed)) or killed.id in named or str(killed) in named


def vacancies_healed(story: Story, kills: list[Kill], recoveries: list[Recovery]) -> bool:
    """Every killed holder's stage came back, and the last view has no vacancy."""
    view = story.view
    return len(recoveries) == len(kills) and view is not None and not view.vacancies()


def unplanned(story: Story) -> list[dict[str, Any]]:
    """Rebuilds of any kind but the initial weights, for a reader who wonders why there are more than kills."""
    return [
        {"node": told.node, "stage": told.record["stage"], "step": told.record["step"], "rung": told.record["rung"],
         "reason": told.record["reason"]}
        for told in story.installed
        if told.record["rung"] != Rung.INITIAL
    ]  # fmt: skip


def tokens_per_second(commits: list[Told]) -> float:
    """From the first commit to the last, outages included."""
    if len(commits) < 2:
        return 0.0
    tokens = sum(told.record["tokens"] for told in commits[1:])
    return float(tokens / max(1e-9, commits[-1].time - commits[0].time))


def build_report(
    story: Story, kills: list[Kill], recoveries: list[Recovery], findings: Findings, *, stages: int, volunteers: int
) -> dict[str, Any]:
    """The contract of `ftnode demo`, and a little more. Losses are nats per token."""
    commits = first_commits(story.commits)
    losses = [told.record["loss"] for told in commits]
    last_evaluation = max(story.evaluated, default=None)
    return {
        "steps": story.committed,
        "stages": stages,
        "volunteers": volunteers,
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "validation_loss": None if last_evaluation is None else story.evaluated[last_evaluation],
        "validation": sorted(story.evaluated.items()),
        "tokens_per_second": tokens_per_second(commits),
        "training_seconds": commits[-1].time - commits[0].time if commits else 0.0,
        "duplicates_applied": findings.duplicates_applied,
        "microbatches_lost": findings.microbatches_lost,
        "audit": "passed" if findings.passed else [str(finding) for finding in findings.findings],
        "recoveries": [recovery.as_json() for recovery in recoveries],
        "kills": [asdict(kill) for kill in kills],
        "rebuilds": unplanned(story),
        "copies": [
            {"stage": stage, "copies": count, "bytes_fetched": sent}
            for stage, (count, sent) in sorted(story.copied.items())
        ],
        "skipped_steps": [told.record["step"] for told in commits if told.record["skipped"]],
    }
