"""A node with two compute processes holds stages in both, and trains as one process that has the whole model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ftnode.lab.audit.audit import audit
from ftnode.lab.swarms.trial import open_trial, small_manifest
from ftnode.lab.traces.story import Story
from tests.swarm.test_exactness import (
    STAGES,
    TOLERANCE,
    WAIT_SECONDS,
    Asked,
    distances,
    last_weights,
    one_process,
    weights_of,
)

STEPS, ALONE_STEPS = 120, 5
"""The newcomer has time to come, also where other programs run."""


def has_a_stage(story: Story, node: str) -> bool:
    return any(node in story.holders(stage) for stage in range(STAGES + 1))


def test_stages_in_two_processes_of_one_node(tmp_path: Path, text: Path) -> None:
    """It begins with the whole model, and a newcomer takes a stage over."""
    asked = Asked(holders=1)
    manifest, folder = asked.shaped(small_manifest(text, STAGES, STEPS)), tmp_path / "swarm"
    folder.mkdir()
    with open_trial(manifest, folder, text, hash_every=1) as trial:
        both = trial.volunteer("v1", hold=STAGES + 1, options=("--device", "cpu,cpu"))
        trial.wait_for_step(ALONE_STEPS, WAIT_SECONDS)
        trial.volunteer("v2", hold=1)
        trial.wait("a stage to move", lambda story: has_a_stage(story, "v2"), WAIT_SECONDS)
        trial.wait_for_step(STEPS, WAIT_SECONDS)
        weights = last_weights(trial, manifest)
        told = (both.log / "node.log").read_text()
    assert all(f"in compute process {number}" in told for number in (0, 1)), told
    found = audit(folder / "logs")
    assert found.passed, [str(finding) for finding in found.findings[:10]]
    model = one_process(manifest, text)
    start = weights_of(model)
    for step in range(1, STEPS + 1):
        model.train(step)
    apart = distances(weights, weights_of(model), start)
    assert max(apart.values()) < TOLERANCE["adam"], apart


def test_a_run_whose_activations_do_not_all_fit_is_joined_with_fewer(tmp_path: Path, text: Path) -> None:
    """By the memory that a stage and its activations were measured to take."""
    manifest, folder = small_manifest(text, STAGES, STEPS), tmp_path / "swarm"
    manifest = replace(
        manifest,
        batch=replace(manifest.batch, sequences=64),
        pipeline=replace(manifest.pipeline, live_activations=1024),
    )
    folder.mkdir()
    with open_trial(manifest, folder, text) as trial:
        node = trial.volunteer("v1", hold=1, options=("--vram", "1GiB", "--json"))
        output = node.home / "output.log"
        trial.wait(
            "the node to say what it offers", lambda story: '"kind": "offer"' in output.read_text(), WAIT_SECONDS
        )
        told = output.read_text()
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    (offer, _) = [line for line in lines if line["kind"] == "offer"]
    assert offer["stages"] == 1
    assert "computes the others again for their backward passes" in told
