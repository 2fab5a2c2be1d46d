"""`ftnode demo`: a swarm on this machine trains on real text, loses a stage, heals, and shows it.

Everything is real: a meeting point and volunteers as their own processes, started as a person would start them. The
demo starts them, reads their traces, kills, and judges; it instructs no node.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ftnode.lab.audit.audit import Findings, audit
from ftnode.lab.demo.baselines import Baselines, baselines
from ftnode.lab.demo.kills import Planned, plan_kills, strike, together
from ftnode.lab.demo.report import SURVIVORS, Kill, Recovery, build_report, recover, vacancies_healed
from ftnode.lab.demo.screen import Screen, open_screen
from ftnode.lab.results.result_files import folder_for
from ftnode.lab.swarms.swarm import Swarm
from ftnode.lab.traces.story import Story, first_commits
from ftnode.node.cli.manifest import manifest_text
from ftnode.node.data.corpus import corpus_facts
from ftnode.node.manifests.line_choice import Choice
from ftnode.node.manifests.presets import adapt, preset
from ftnode.node.manifests.protection_choice import with_protection
from ftnode.node.watch.status_table import spoken_rung
from ftnode.protocol.manifest.parse import Manifest, parse
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import spoken_stage

FOLDER = "ftnode-demo-%Y%m%d-%H%M%S"
LEASE_SECONDS = 5.0
MINORITY_WAIT_SECONDS = 5.0
START_SECONDS = 180.0
"""Until the first commit: a dozen processes import torch on a small machine."""
STALL_SECONDS = 90.0
"""Without a commit for this long a run is given up."""
STEPS_KEPT = 10
"""For what a kill is to show: from then on it does not wait for a second holder."""
POLL_SECONDS = 0.05
HASH_EVERY = 5
"""Steps after which holders hash their weights, for the audit: 1.4 ms for each MB, so a thousandth of a small step."""
STAGES = 4


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """`ftnode demo` as typed; None and empty: choose."""

    stages: int = STAGES
    volunteers: int | None = None
    """None: `replicas` for each stage and the head, and one standby per kill of a whole group."""
    replicas: int = 1
    """Holders of each stage."""
    steps: int | None = None
    kills: tuple[tuple[int, int, bool], ...] | None = None
    """(stage, step, all holders of the stage); None: a middle stage in the middle of the run."""
    preset: str = "tiny"
    device: str = "cpu"
    data: Path | None = None
    seed: int | None = None
    swap: bool = False
    """Swapped routes (CheckFree+); needs 4 stages."""
    protect: str | None = None
    """One of PROTECTIONS; None: what the preset says, which is checkfree."""
    evaluate_every: int | None = None
    """Steps; None: the preset's."""
    report: Path | None = None
    """A new or empty folder; None: one named after the time, here."""
    json: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo leaves behind besides its folder."""

    report: dict[str, Any]
    complaints: tuple[str, ...]
    """Why the exit code is not 0."""


def run(config: DemoConfig) -> int:
    """0 when all steps were committed, every vacancy was healed and the audit passed, else 1; 130 on Ctrl-C.

    Raises UserError for what was typed wrong, before anything is started.
    """
    manifest = _manifest(config)
    planned = plan_kills(config.kills, config.stages, manifest.run.steps)
    killed = sum(config.replicas if one.everybody else 1 for one in planned)
    standbys = sum(1 for one in planned if one.everybody or config.replicas == 1)
    volunteers = config.volunteers or config.replicas * (config.stages + 1) + standbys
    if volunteers <= killed:
        raise UserError(f"--volunteers {volunteers} leaves nobody after {killed} kills; give more")
    directory = folder_for(config.report or Path(time.strftime(FOLDER)), "--report")
    try:
        outcome = _run(config, manifest, planned, volunteers, directory)
    except KeyboardInterrupt:
        print(f"\ninterrupted; what there is lies in {directory}", file=sys.stderr)
        return 130
    if config.json:
        json.dump(outcome.report, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print(summary(outcome, directory))
    return 1 if outcome.complaints else 0


def _run(
    config: DemoConfig, manifest: Manifest, planned: Sequence[Planned], volunteers: int, directory: Path
) -> Outcome:
    path = directory / "manifest.toml"
    path.write_text(manifest_text(manifest), encoding="utf-8")
    story, kills = Story(), list[Kill]()
    with (
        Swarm(directory, path, data=config.data, device=config.device, hash_every=HASH_EVERY) as swarm,
        open_screen(manifest.run.steps, to_stderr=config.json) as screen,
    ):
        screen.say(f"{volunteers} volunteers for {config.stages} stages and the head; everything goes to {directory}")
        swarm.start_bootstrap()
        screen.say(f"meeting point at {swarm.address}")
        hold = -(-(config.stages + 1) // (volunteers - len(planned)))
        for number in range(1, volunteers + 1):
            process = swarm.start_volunteer(f"volunteer-{number}", hold=hold)
            story.follow(process.name, process.trace)
        tables = baselines(config.data, directory)
        screen.say(f"to beat: bigram table {tables.bigram:.2f}, trigram table {tables.trigram:.2f} nats per byte")
        trouble = _watch(swarm, story, screen, planned, kills, manifest)
        screen.say(trouble or "the run is over; stopping the volunteers")
        stubborn = swarm.stop()
        story.read()
    try:
        findings = audit(directory / "logs")
    except UserError as error:  # nobody came as far as its first line
        raise UserError(f"{trouble or error}; logs: {directory / 'logs'}", 69) from None
    return _judge(config, manifest, directory, story, kills, findings, tables, volunteers, [trouble, *stubborn])


def _watch(
    swarm: Swarm, story: Story, screen: Screen, planned: Sequence[Planned], kills: list[Kill], manifest: Manifest
) -> str:
    """Follow the run to its end, killing on the way. Returns what went wrong, empty when nothing did."""
    waiting = list(planned)
    newest, deadline = 0, time.monotonic() + START_SECONDS
    while True:
        screen.show(story, story.read())
        dead = [process for process in swarm.processes.values() if not process.alive]
        fallen = [process for process in dead if process.name not in {kill.node for kill in kills}]
        if fallen:
            return f"{fallen[0].name} ended by itself: {fallen[0].tail() or 'it said nothing'}"
        if story.finished:
            return ""
        if story.committed > newest:
            newest, deadline = story.committed, time.monotonic() + STALL_SECONDS
        if time.monotonic() > deadline:
            return f"no step was committed for {STALL_SECONDS:.0f} s after step {newest}: {_reason(story)}"
        if waiting and _is_time(story, together(waiting), manifest):
            struck = strike(swarm, story, together(waiting))
            if not struck:
                return (
                    f"stage {waiting[0].stage} never was in the middle of step {waiting[0].step}, so nobody was killed"
                )
            del waiting[: len(together(waiting))]
            kills.extend(struck)
            for kill in struck:
                screen.say(
                    f"SIGKILL: {kill.node}, {_rank(kill)} of stage {kill.stage}, in step {kill.step} after "
                    f"{kill.accumulated} of {story.microbatches} microbatches"
                )
        time.sleep(POLL_SECONDS)


def _is_time(story: Story, planned: Sequence[Planned], manifest: Manifest) -> bool:
    """The step before is committed; and a stage that is to lose one of its replicas has several, while steps are left
    to wait for that."""
    if story.committed < planned[0].step - 1 or (not story.committed and planned[0].step > 1):
        return False
    alone = [one for one in planned if not one.everybody and len(story.holders(one.stage)) < 2]
    return not alone or manifest.pipeline.replicas == 1 or story.committed >= manifest.run.steps - STEPS_KEPT


def _rank(kill: Kill) -> str:
    return "sole holder" if kill.holders == 1 else f"one of {kill.holders} holders"


def _reason(story: Story) -> str:
    return str(story.notes[-1].record["text"]) if story.notes else "the nodes wrote no reason; see their logs"


def _judge(
    config: DemoConfig, manifest: Manifest, directory: Path, story: Story, kills: list[Kill], findings: Findings,
    tables: Baselines, volunteers: int, complaints: list[str],
) -> Outcome:  # fmt: skip
    found = [recovery for kill in kills if (recovery := recover(story, kill)) is not None]
    report = build_report(story, kills, found, findings, stages=config.stages, volunteers=volunteers)
    report |= {"baselines": {"bigram": tables.bigram, "trigram": tables.trigram}, "preset": config.preset,
               "seed": manifest.run.seed, "run": manifest.run_id}  # fmt: skip
    complaints = [text for text in complaints if text]
    if story.committed < manifest.run.steps:
        complaints.append(f"{story.committed} of {manifest.run.steps} steps were committed")
    if not vacancies_healed(story, kills, found):
        complaints.append("a vacancy was not healed")
    if not findings.passed:
        complaints.append(f"the audit found {len(findings.findings)} faults, first: {findings.findings[0]}")
    report["complaints"] = complaints
    (directory / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _draw(directory, manifest, story, found, tables, report)
    return Outcome(report, tuple(complaints))


def _draw(
    directory: Path, manifest: Manifest, story: Story, found: list[Recovery], tables: Baselines, report: dict[str, Any]
) -> None:
    losses = [(told.record["step"], told.record["loss"]) for told in first_commits(story.commits)]
    if not losses:
        return
    from ftnode.lab.demo.pictures import draw_loss

    draw_loss(
        directory / "loss.png",
        losses=losses,
        evaluated=sorted(story.evaluated.items()),
        recoveries=found,
        baselines=tables,
        title="A swarm loses a stage and heals" if found else "A swarm trains",
        subtitle=f"{report['stages']} block stages and a head, {report['volunteers']} volunteers on one machine, "
        f"{manifest.tokens_per_step:,} bytes per step, {report['tokens_per_second']:,.0f} bytes per second",
    )


def summary(outcome: Outcome, directory: Path) -> str:
    """What happened, for a person who reads only this."""
    report = outcome.report
    lines = [
        f"{report['steps']} steps in {report['training_seconds']:.0f} s, {report['tokens_per_second']:,.0f} tokens/s"
    ]
    if report["validation_loss"] is not None:
        tables = report["baselines"]
        lines.append(
            f"training loss {report['loss_first']:.2f} → {report['loss_last']:.2f}, "
            f"validation {report['validation_loss']:.3f} "
            f"nats per byte (bigram table {tables['bigram']:.2f}, trigram table {tables['trigram']:.2f})"
        )
    for entry in report["recoveries"]:
        parts = ", ".join(
            f"{name} {entry[name + '_seconds']:.2f}" for name in ("detect", "elect", "fetch", "blend", "first_step")
        )
        stage = spoken_stage(entry["stage"])
        what, how = f"{stage} lost", f"back from {spoken_rung(entry['rung'])}"
        if entry["rung"] == SURVIVORS:
            what, how = f"a holder of {stage} lost", "its part done by the others"
        lines.append(f"{what} in step {entry['step']}, {how} after {entry['outage_seconds']:.2f} s ({parts})")
        facts = [f"{entry['bytes_fetched'] / 1e6:.1f} MB fetched"]
        facts += [
            f"validation {entry[field]:.3f} {when}"
            for field, when in (("validation_before", "before"), ("validation_after", "after that step"))
            if entry[field] is not None
        ]
        lines.append(f"  {', '.join(facts)}: {entry['reason']}")
    for name, kept in (
        ("of the head", [entry for entry in report["copies"] if entry["stage"] == 0]),
        ("of block stages (shadows)", [entry for entry in report["copies"] if entry["stage"]]),
    ):
        if kept:
            count, sent = (sum(entry[key] for entry in kept) for key in ("copies", "bytes_fetched"))
            lines.append(f"{count} copies {name} kept by others, {sent / 1e6:.1f} MB")
    passed = report["audit"] == "passed"
    lines.append(
        f"audit {'passed' if passed else 'FAILED'}: {report['duplicates_applied']} microbatches applied twice, "
        f"{report['microbatches_lost']} lost"
    )
    lines += [f"FAILED: {text}" for text in outcome.complaints]
    return "\n".join([*lines, f"report, picture, logs and traces: {directory}"])


def _manifest(config: DemoConfig) -> Manifest:
    """The preset with what was asked for. Raises UserError when that makes no run."""
    facts = corpus_facts(config.data, preset(config.preset).model.context)
    if facts.kind == "shards":
        raise UserError("the demo compares with baselines on text; give --data a text file or a folder of them", 65)
    manifest = adapt(
        preset(config.preset),
        **asdict(facts),
        name="demo",
        steps=config.steps,
        stages=config.stages,
        seed=config.seed,
        lease_seconds=LEASE_SECONDS,
        minority_wait_seconds=MINORITY_WAIT_SECONDS,
        swap=config.swap,
        replicas=config.replicas,
    )
    if config.protect is not None:
        manifest = with_protection(Choice(manifest), config.protect).manifest
    if config.evaluate_every is not None:
        manifest = replace(manifest, evaluation=replace(manifest.evaluation, every=config.evaluate_every))
    return parse(manifest_text(manifest, "the demo's manifest"), "the demo's manifest")
