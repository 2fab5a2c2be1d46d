"""What a new run is given for its volunteers' lines: values that follow the measurements, and the reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.models.config import ModelConfig
from ftnode.node.manifests.line_choice import HOME, TRAVELS, choose
from ftnode.node.manifests.presets import PRESETS, adapt
from ftnode.protocol.lines.step_estimate import Line, estimate
from ftnode.protocol.manifest.parse import Manifest, parse, render

FAT = Line(125e6, 125e6, 0.03)
NAMES = ("tiny", "small", "medium", "large")


def start(name: str, **options: int) -> Manifest:
    return adapt(PRESETS[name], sha256="0f" * 32, **options)


@pytest.mark.parametrize("line", [None, HOME, FAT, Line(32e3, 160e3, 0.03)])
@pytest.mark.parametrize("name", PRESETS)
def test_every_choice_is_a_manifest_of_the_same_batch(name: str, line: Line | None) -> None:
    first = start(name)
    choice = choose(first, line)
    text = render(choice.manifest, reasons=choice.reasons)
    assert parse(text) == choice.manifest
    assert choice.manifest.tokens_per_step == first.tokens_per_step
    now = choice.manifest.model
    assert replace(now, subspace=0, hidden=first.model.hidden) == first.model and choice.manifest.run == first.run
    before, after = (ModelConfig.of(one).block_parameters for one in (first.model, now))
    assert 0.98 * before < after <= before
    seen = (one.evaluation.microbatches * one.batch.sequences for one in (choice.manifest, first))
    kept = (one.pipeline.live_activations * one.batch.sequences for one in (choice.manifest, first))
    assert len(set(seen)) == len(set(kept)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_thin_line_gets_few_bytes_and_a_fat_one_few_steps(name: str) -> None:
    thin, fat = choose(start(name), HOME).manifest, choose(start(name), FAT).manifest
    assert (fat.pipeline.boundary, fat.model.subspace) == ("int8", 0)
    assert thin.pipeline.sums == "int4"
    steps = next(
        travel.steps
        for travel in TRAVELS
        if (travel.boundary, travel.part > 1) == (thin.pipeline.boundary, thin.model.subspace > 0)
    )
    assert steps * estimate(thin, HOME).seconds < estimate(fat, HOME).seconds
    assert estimate(thin, HOME).seconds < 0.25 * estimate(start(name), HOME).seconds


def test_thin_lines_get_a_subspace_with_a_wider_hidden_layer() -> None:
    found, first = choose(start("small"), HOME), start("small").model
    assert (found.manifest.pipeline.boundary, found.manifest.model.subspace) == ("int4", first.dim // 4)
    assert found.manifest.model.hidden > first.hidden
    assert f"{first.dim // 4} of {first.dim} coordinates" in found.reasons["model.subspace"]


def test_microbatches_are_cut_until_twice_the_hops_are_on_their_way() -> None:
    """Four stages and the head: ten hops, so 32 of 4 sequences for 16 of 8, and 20 of them at once."""
    found = choose(start("small"), HOME)
    assert (found.manifest.batch.microbatches, found.manifest.batch.sequences) == (32, 4)
    assert found.manifest.pipeline.window == 20
    assert "32 of 4 sequences instead of 16 of 8" in found.reasons["batch.microbatches"]
    assert "twice the 10 hops" in found.reasons["pipeline.window"]


def test_what_cannot_be_cut_stays() -> None:
    found = choose(start("large"), HOME)
    assert found.manifest.batch == start("large").batch and found.manifest.pipeline.window == 16
    assert "cannot be had" in found.reasons["batch.microbatches"] and "28" in found.reasons["pipeline.window"]
    assert choose(start("tiny"), FAT).manifest.batch == start("tiny").batch


def test_microbatches_stay_within_what_a_manifest_may_have() -> None:
    first = start("small", stages=12)
    many = replace(first, batch=replace(first.batch, microbatches=20, sequences=48))
    assert parse(render(choose(many, HOME).manifest)).batch.microbatches >= 2 * 2 * 13


def test_muon_where_its_update_is_small_beside_the_steps_that_it_spares() -> None:
    kinds = {name: choose(start(name), HOME).manifest.optimiser.kind for name in NAMES}
    assert kinds == {"tiny": "muon", "small": "muon", "medium": "adam", "large": "adam"}
    assert choose(start("small"), FAT).manifest.optimiser.kind == "adam"
    assert "on one thread" in choose(start("large"), HOME).reasons["optimiser.kind"]


def test_without_a_line_the_batch_stays_and_nothing_is_rounded_that_costs() -> None:
    for name in NAMES:
        first, found = start(name), choose(start(name), None).manifest
        assert (found.batch, found.evaluation, found.pipeline.window) == (
            first.batch, first.evaluation, first.pipeline.window,
        )  # fmt: skip
        assert (found.pipeline.boundary, found.pipeline.sums, found.model.subspace) == ("int8", "int8", 0)


def test_rows_that_make_no_blocks_are_sent_as_bfloat16() -> None:
    odd = start("tiny")
    odd = replace(odd, model=replace(odd.model, dim=88))
    found = choose(odd, HOME)
    assert found.manifest.pipeline.boundary == "bfloat16" and "too short" in found.reasons["pipeline.boundary"]
    assert parse(render(found.manifest)) == found.manifest


def test_reasons_have_the_numbers_and_one_line_each() -> None:
    found = choose(start("small"), HOME)
    assert " with int8 in a subspace, " in found.reasons["pipeline.boundary"]
    assert "1.00, 1.08, 1.07, 1.48 of bfloat16's steps" in found.reasons["pipeline.boundary"]
    assert all("\n" not in reason for reason in found.reasons.values())


def test_a_run_without_replicas_has_no_sums() -> None:
    alone = choose(start("small", replicas=1), HOME)
    assert alone.manifest.pipeline.sums == "exact" and "pipeline.sums" not in alone.reasons
