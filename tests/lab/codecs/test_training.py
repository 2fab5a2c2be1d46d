"""Runs of a row: where they end, and that one that was cut off again and again is the same as one that was not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.codecs.plan import FULL, QUICK, Row, Scale
from ftnode.lab.codecs.training import train
from ftnode.lab.results.cut_off_work import CutOff, Slice
from tests.lab.codecs.codecs_micro import MICRO
from tests.lab.recovery.recovery_micro import corpus


def trained(row: Row, slice_: Slice | None = None, scale: Scale = MICRO, seed: int = 0) -> dict[str, Any]:
    return train(scale, row, seed, corpus(), 256, slice_ or Slice())


@pytest.mark.parametrize("row", MICRO.rows, ids=lambda row: row.name)
def test_a_run_that_is_cut_off_at_every_step_is_the_same(row: Row, tmp_path: Path) -> None:
    path, cuts = tmp_path / "one.pt", 0
    while True:
        try:
            found = trained(row, Slice(path, lambda: True))
            break
        except CutOff:
            cuts += 1
    whole = trained(row)
    assert cuts == MICRO.steps_max
    for name in found.keys() - {"processor_seconds_per_step"}:
        assert found[name] == whole[name], name
    assert len(found["curve"]) == 7 and found["steps"] is None and found["steps_trained"] == 12


@pytest.mark.parametrize("settings", ["a rate", "a subspace", "steps between validations", "a seed"])
def test_a_run_of_other_settings_is_not_gone_on_with(
    settings: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new target, or more steps, are no other settings."""
    row, path = MICRO.rows[0], tmp_path / "one.pt"
    with pytest.raises(CutOff, match="step 1"):
        trained(row, Slice(path, lambda: True))
    other, seed = MICRO, 0
    if settings == "a rate":
        other = replace(MICRO, rates={row.optimiser: 1e-3})
    elif settings == "a subspace":
        row = replace(row, subspace=8)
    elif settings == "a seed":
        seed = 1
    else:
        other = replace(MICRO, validate_every=3)
    found = trained(row, Slice(path), other, seed)
    expected = trained(row, None, other, seed)
    assert found["curve"] == expected["curve"] and "other settings; begins anew" in capsys.readouterr().err
    with pytest.raises(CutOff, match="step 2"):
        trained(MICRO.rows[0], Slice(path, lambda: True), replace(MICRO, steps_max=20, target=0.1))


def test_a_run_ends_when_it_has_come_down() -> None:
    row = MICRO.rows[0]
    curve = trained(row)["curve"]
    middle = sum(loss for _, loss in curve[:5]) / 5
    found = trained(row, scale=replace(MICRO, target=middle + 1e-6))
    assert found["steps"] == 4 and found["steps_trained"] == 8
    assert found["curve"] == curve[:5]


def test_seeds_and_rows_differ() -> None:
    curves = [trained(row, seed=seed)["curve"] for row in MICRO.rows for seed in (0, 1)]
    assert len({curve[-1][1] for curve in curves}) == 4
    assert all(curve[-1][1] < curve[0][1] for curve in curves)


def test_all_rows_have_the_size_that_the_contest_asks_for() -> None:
    plain = FULL.contestant(FULL.rows[0], 4096)
    for row in FULL.rows:
        size = FULL.contestant(row, 4096)
        blocks = size.config.layers * size.config.block_parameters
        assert 5_000_000 <= blocks <= plain.config.layers * plain.config.block_parameters < 1.01 * blocks
        assert size.stages == size.config.layers == 8 and size.tokens_per_step == 2048
        assert size.encodings == (row.boundary, row.gradients or row.boundary)
        assert size.optimiser().kind == row.optimiser
        assert size.optimiser().decay == "constant"
    assert FULL.rows[0] == Row("bfloat16", "adam")
    assert len({row.name for row in FULL.rows}) == len(FULL.rows)
    assert {row.boundary for row in FULL.rows} == {"float32", "bfloat16", "int8", "int4"}


def test_a_subspace_pays_with_a_wider_hidden_layer() -> None:
    config = FULL.start.config
    wide = config.in_subspace(64)
    assert wide.hidden > config.hidden and wide.subspace == 64
    one_more = replace(wide, hidden=wide.hidden + 8)
    assert wide.block_parameters <= config.block_parameters < one_more.block_parameters
    assert QUICK.contestant(QUICK.rows[-1], 300).config.subspace == 16
