"""What a new run spends on losses: chosen, or as asked for, and said in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from ftnode.node.home.size import size_text
from ftnode.node.manifests.line_choice import Choice
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.manifests.protection_choice import (
    NEVER,
    PROTECTIONS,
    protection_text,
    shadow_every,
    with_protection,
)
from ftnode.protocol.manifest.parse import Manifest, Start, parse, render
from ftnode.protocol.manifest.sections import SHADOWS_SHARE
from ftnode.protocol.recovery.rungs import choose_rung
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD

SMALL = PRESETS["small"]
KILLS: Final = Path(__file__).parents[3] / "docs" / "recovery" / "swarm_kills.json"


def chosen(manifest: Manifest, name: str | None = None) -> Manifest:
    choice = with_protection(Choice(manifest), name)
    assert parse(render(choice.manifest, reasons=choice.reasons)) == choice.manifest, "the reader takes it"
    return choice.manifest


def in_stages(stages: int) -> Manifest:
    return replace(SMALL, pipeline=replace(SMALL.pipeline, stages=stages))


@pytest.mark.parametrize("name", PROTECTIONS)
def test_each_is_what_its_name_says(name: str) -> None:
    made = chosen(SMALL, name)
    assert made.pipeline.swap is (name == "checkfree+")
    assert (made.recovery.shadow_every > 0) is (name == "shadow")
    assert (made.recovery.head_every == NEVER) is (name == "none")
    assert protection_text(made).startswith(f"protection {name}: ")


def test_by_default_all_stages_are_copied_where_the_bytes_allow_it() -> None:
    made = chosen(SMALL)
    assert made.recovery.shadow_every == shadow_every(SMALL) >= 10
    spent = made.pipeline.stages * made.shadow_bytes / made.recovery.shadow_every
    assert spent <= SHADOWS_SHARE * made.step_bytes
    assert "volunteers keep copies for each other, of each stage every 10 steps and of the head" in protection_text(
        made
    )


def test_bytes_and_what_losses_cost_are_said() -> None:
    made = chosen(SMALL, "shadow")
    spent = 4 * made.shadow_bytes / made.recovery.shadow_every + 2 * made.head_state_bytes / made.head_every
    takes = f"that is {size_text(spent)} a step beside its tensors, {spent / made.step_bytes:.1%} more"
    gives = (
        "a stage whose holders have all gone goes on from its copy: 24 such losses cost a run of 800 steps 6 of them"
    )
    assert f"; {takes}; {gives} with copies every 10 steps" in protection_text(made)
    nothing = (
        "protection none: nobody keeps copies; a stage whose holders have all gone is made of its neighbours, and "
    )
    assert protection_text(chosen(SMALL, "none")).startswith(
        f"{nothing}learns again, but a lost head halts the run: 24"
    )


@pytest.mark.parametrize("name", PROTECTIONS)
def test_a_stranger_understands_it(name: str) -> None:
    """Who starts a first run knows neither what the program calls an iteration, nor in what losses are measured."""
    text = protection_text(chosen(SMALL, name))
    assert not {"nats", "iterations", "behind", "blend", "shadows"} & set(text.replace(",", " ").split())


@pytest.mark.parametrize("name", PROTECTIONS)
def test_what_one_loss_cost_is_what_was_measured(name: str) -> None:
    rows = [row for row in json.loads(KILLS.read_text(encoding="utf-8")) if row["protect"] == name]
    rise = sum(row["swarm"][-1] for row in rows) / len(rows)
    assert len(rows) == 3 and f"a loss that is {rise:.2f} higher" in protection_text(chosen(SMALL, name))


def test_shadows_that_would_be_old_are_not_chosen() -> None:
    thin = replace(
        SMALL, batch=replace(SMALL.batch, microbatches=1, sequences=1), model=replace(SMALL.model, context=2)
    )
    assert shadow_every(thin) > 100
    assert chosen(thin).recovery.shadow_every == 0
    assert chosen(thin, "shadow").recovery.shadow_every == shadow_every(thin), "but they are when somebody asks"


@pytest.mark.parametrize("stages", [1, 2])
def test_few_stages_are_copied_too(stages: int) -> None:
    made = chosen(in_stages(stages))
    assert made.recovery.shadow_every == shadow_every(in_stages(stages))
    assert "goes on from its copy" in protection_text(made)


def test_swapped_routes_want_more_stages() -> None:
    with pytest.raises(UserError, match=r"--protect checkfree\+ needs 4 stages") as failed:
        with_protection(Choice(in_stages(2)), "checkfree+")
    assert failed.value.exit_code == 64


@pytest.mark.parametrize("name", ["none", "checkfree"])
def test_one_stage_alone_is_made_of_nothing(name: str) -> None:
    """No rung fills it, and no such loss was measured."""
    told = protection_text(chosen(in_stages(1), name))
    assert told.startswith(f"protection {name}: ") and told.endswith("the run waits for one of them")
    assert (
        "neighbours, and" not in told
        and choose_rung(1, frozenset({HEAD}), 7, Settings("run", 1, 9, 1, 1), {})[0] is None
    )


def test_a_run_that_goes_on_from_a_model_has_it_to_begin_again_with() -> None:
    continued = replace(SMALL, start=Start(weights="0" * 64, architecture="LlamaForCausalLM"))
    made = chosen(continued)
    assert made.recovery.shadow_every == 0
    assert "begins again with the model that the run goes on from" in protection_text(made)
