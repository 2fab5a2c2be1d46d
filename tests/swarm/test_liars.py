"""A volunteer that lies about what its visits give, among honest ones on real processes: it is found, and goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.lab.liars.hardware import AVX2, OLD
from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story
from ftnode.node.snapshots.liar_book import FOLDER
from ftnode.protocol.manifest.parse import Manifest, Trust, parse
from tests.swarm.conftest import sizes
from tests.swarm.test_switched_off import switch_off, with_snapshots

OpenTrial = Callable[..., Trial]
STAGES = 2
GROW_SECONDS = 60.0
FOUND_SECONDS = 60.0
LIAR = "liar"
KEPT_OUT_SECONDS = 30.0
"""Whoever is asked for a place that is free holds a stage sooner."""
OLD_STEPS = 100
"""Nobody is new any more: who is new is not asked about others."""


def checked(manifest: Manifest) -> Manifest:
    """All holders check another one in each step."""
    return replace(manifest, pipeline=replace(manifest.pipeline, replicas=2), trust=Trust(checks=1.0))


def told(story: Story, kind: str) -> list[str]:
    return [str(note.record["fields"].get("peer")) for note in story.notes if note.record["kind"] == kind]


@pytest.mark.parametrize("lie", ["times1.5", "turned", "older"])
def test_who_lies_about_a_gradient_is_found_and_nobody_else(open_swarm: OpenTrial, lie: str) -> None:
    trial = open_swarm(volunteers=2 * (STAGES + 1) - 1, stages=STAGES, change=checked, numbers=True)
    trial.volunteer(LIAR, program=("ftnode.lab.hostile.liar", lie))
    trial.wait("full groups", lambda story: sizes(story) == [2] * (STAGES + 1), GROW_SECONDS)
    liar = trial.story.peers[LIAR].id

    trial.wait("the liar to be found", lambda story: liar in told(story, "lost"), FOUND_SECONDS)
    assert set(told(trial.story, "liar")) == {liar} and set(told(trial.story, "lost")) == {liar}
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)
    assert {note.record["rung"] for note in trial.story.installed} <= {"initial", "replica"}


def test_who_sends_numbers_near_the_largest_float_goes_and_takes_one_along_at_most(open_swarm: OpenTrial) -> None:
    """Who gets them first refuses them, so that the two are at odds, and the liar is so with the next one as well."""

    def pairs(manifest: Manifest) -> Manifest:
        return replace(manifest, pipeline=replace(manifest.pipeline, replicas=2))

    trial = open_swarm(volunteers=2 * STAGES + 1, stages=STAGES, change=pairs, numbers=True)
    trial.volunteer(LIAR, program=("ftnode.lab.hostile.liar", "activations-largest"))
    trial.wait("full groups", lambda story: sizes(story) == [2] * (STAGES + 1), GROW_SECONDS)
    liar = trial.story.peers[LIAR].id

    trial.wait("the liar to be found", lambda story: liar in told(story, "lost"), 2 * FOUND_SECONDS)
    assert len({*told(trial.story, "lost")} - {liar}) <= 1
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)


@pytest.mark.parametrize(
    ("lie", "stages"), [("activations-noise", 2), pytest.param("activations-turned", 4, marks=pytest.mark.night)]
)
def test_who_holds_a_stage_alone_is_tried_by_who_keeps_its_shadow(
    open_swarm: OpenTrial, other_text: Path, lie: str, stages: int
) -> None:
    """Nobody else goes, but the keeper once where the liar leads (rule 25). With somebody new the run goes on."""

    def shadowed(manifest: Manifest) -> Manifest:
        recovery = replace(manifest.recovery, shadow_every=10)
        return replace(manifest, recovery=recovery, trust=Trust(checks=0.02))

    trial = open_swarm(volunteers=0, stages=stages, change=shadowed, numbers=True)
    for number in range(stages):
        trial.volunteer(f"v{number + 1}")
    no_head = ("--data", str(other_text))
    trial.volunteer(LIAR, options=no_head, program=("ftnode.lab.hostile.liar", f"{lie},from=30"))
    trial.wait("a holder for each stage", lambda story: sizes(story) == [1] * (stages + 1), GROW_SECONDS)
    liar, view = trial.story.peers[LIAR].id, trial.story.view
    most = 1 if view is not None and view.leader.id == liar else 0

    trial.wait("the liar to be found", lambda story: liar in told(story, "lost"), 2 * FOUND_SECONDS)
    trial.volunteer("newcomer")
    before = trial.story.committed
    trial.wait_for_step(before + 5, GROW_SECONDS)
    assert set(told(trial.story, "liar")) == {liar} and len({*told(trial.story, "lost")} - {liar}) <= most


def test_honest_holders_agree_with_each_other(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=2 * (STAGES + 1), stages=STAGES, change=checked, numbers=True)
    trial.wait("full groups", lambda story: sizes(story) == [2] * (STAGES + 1), GROW_SECONDS)
    trial.wait_for_step(trial.story.committed + 10, GROW_SECONDS)
    assert told(trial.story, "liar") == [] and told(trial.story, "check") == []


def test_who_shows_a_checker_another_tensor_than_it_gave_goes_and_nobody_else(open_swarm: OpenTrial) -> None:
    """Whom that would make a liar shows what it was given, signed by the same."""
    trial = open_swarm(volunteers=2 * (STAGES + 1) - 1, stages=STAGES, change=checked, numbers=True)
    trial.volunteer(LIAR, program=("ftnode.lab.hostile.liar", "shown-turned"))
    trial.wait("full groups", lambda story: sizes(story) == [2] * (STAGES + 1), GROW_SECONDS)
    liar = trial.story.peers[LIAR].id

    trial.wait("the liar to be found", lambda story: liar in told(story, "lost"), FOUND_SECONDS)
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)
    assert set(told(trial.story, "lost")) == {liar} == set(told(trial.story, "convicted"))
    assert told(trial.story, "liar") == []


def threes(manifest: Manifest) -> Manifest:
    return replace(manifest, pipeline=replace(manifest.pipeline, replicas=3), trust=Trust(checks=1.0))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (("ftnode.lab.hostile.liar", "times1.5"), "gave to its sum"),
        (("ftnode.lab.hostile.liar", "sums-turned"), "gave to its sum"),
        (("ftnode.lab.hostile.liar", "sums-turned,hides=1"), "does not show what it made its piece of the sum of"),
        (("ftnode.lab.hostile.traitor", "hiding"), "does not show the tensors of its visit"),
        (("ftnode.lab.hostile.traitor", "accusing"), ""),
    ],
)
def test_a_third_decides_and_signed_words_of_it_are_kept(
    open_swarm: OpenTrial, tmp_path: Path, program: tuple[str, ...], why: str
) -> None:
    """Who gives something else is found by two, with what it has signed; who says so of others without a reason is
    found by the two, and they stay."""
    order = tmp_path / "order"
    order.touch()
    others = 3 * (STAGES + 1) - 1
    trial = open_swarm(volunteers=others, stages=STAGES, change=threes, numbers=True)
    trial.wait("all others to hold a stage", lambda story: sum(sizes(story)) == others, 2 * GROW_SECONDS)
    trial.wait_for_step(trial.story.committed + OLD_STEPS, 3 * GROW_SECONDS)
    trial.volunteer(LIAR, program=(*program, str(order)) if "traitor" in program[0] else program)
    trial.wait("full groups", lambda story: sizes(story) == [3] * (STAGES + 1), 2 * GROW_SECONDS)
    liar = trial.story.peers[LIAR].id

    trial.wait("the liar to be found", lambda story: liar in told(story, "lost"), 2 * FOUND_SECONDS)
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)
    assert set(told(trial.story, "lost")) == {liar} and set(told(trial.story, "convicted")) == {liar}
    words = [str(note.record["text"]) for note in trial.story.notes if note.record["kind"] == "convicted"]
    assert len(words) >= 2 and all("have signed what they saw" in text and why in text for text in words)


def test_honest_holders_on_unlike_machines_agree_with_each_other(open_swarm: OpenTrial) -> None:
    """Two have other instructions than the others, or other threads, and make products in bfloat16 as a card does. The
    audit compares all weights to the bit."""
    trial = open_swarm(volunteers=0, stages=1, change=checked, numbers=True)
    program = ("ftnode.lab.liars.in_bfloat16",)
    trial.volunteer("old", program=program, environment=OLD)
    trial.volunteer("new", program=program, environment=AVX2, options=("--threads", "2"))
    trial.wait_for_step(1)
    for name in ("v1", "v2"):
        trial.volunteer(name)
    trial.wait("full groups", lambda story: sizes(story) == [2] * 2, GROW_SECONDS)
    said = {name: (trial.swarm.processes[name].home / "output.log").read_text() for name in ("old", "new", "v1", "v2")}
    assert [name for name, text in said.items() if ", bfloat16; a stage needs" in text] == ["old", "new"]
    trial.wait_for_step(trial.story.committed + 30, GROW_SECONDS)
    assert told(trial.story, "liar") == [] and told(trial.story, "check") == []


@pytest.mark.timeout(400)
def test_who_was_convicted_stays_out_after_everybody_has_started_again(open_swarm: OpenTrial) -> None:
    """It comes back honest, and there is a place for it. Everybody knows from its own disk."""
    others, places = [f"v{number}" for number in range(1, 6)], 6
    trial = open_swarm(volunteers=len(others), stages=1, change=lambda manifest: with_snapshots(threes(manifest)),
                       numbers=True)  # fmt: skip
    trial.wait("all others to hold a stage", lambda story: sum(sizes(story)) == len(others), 2 * GROW_SECONDS)
    trial.wait_for_step(trial.story.committed + OLD_STEPS, 3 * GROW_SECONDS)
    trial.volunteer(LIAR, program=("ftnode.lab.hostile.liar", "times1.5"))
    trial.wait("full groups", lambda story: sum(sizes(story)) == places, 2 * GROW_SECONDS)
    liar = trial.story.peers[LIAR].id
    homes = {name: trial.swarm.processes[name].home for name in [*others, LIAR]}
    run = parse(trial.swarm.manifest.read_text()).run_id
    books = [homes[name] / FOLDER / f"{run}.json" for name in others]
    trial.wait("all others to keep what was signed", lambda _: all(book.exists() for book in books), 2 * FOUND_SECONDS)
    switch_off(trial, *homes)
    trial.story.read()
    for name, home in homes.items():
        home.rename(home.with_name(f"{name}-again"))
        trial.volunteer(f"{name}-again")
    before, again = len(trial.story.commits), {f"{name}-again" for name in others}

    def know(story: Story) -> bool:
        said = [note for note in story.notes if note.record["kind"] == "convicted" and note.node in again]
        return {note.node for note in said if note.record["fields"]["peer"] == liar} == again

    trial.wait("everybody to know from its disk", know, GROW_SECONDS)
    trial.wait("steps after the restart", lambda story: len(story.commits) > before, 2 * GROW_SECONDS)
    until = time.monotonic() + KEPT_OUT_SECONDS
    trial.wait("it to be asked in vain", lambda story: is_member(story, liar) or time.monotonic() > until)
    assert not is_member(trial.story, liar) and trial.story.view is not None
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)


def is_member(story: Story, peer_id: str) -> bool:
    return story.view is not None and peer_id in {peer.id for peer in story.view.members()}
