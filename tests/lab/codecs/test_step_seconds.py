"""Bytes and seconds of the large model, against the codecs themselves and against sums by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ftnode.lab.codecs.plan import FULL, Row
from ftnode.lab.codecs.step_seconds import (
    ASSUMED,
    DEVICE_TFLOPS,
    LINES,
    MODEL,
    Measured,
    manifest_of,
    read_measured,
    seconds_of,
)
from ftnode.models.boundary import ActivationCodec, BoundaryCodec
from ftnode.protocol.words.errors import UserError

THEIRS, HOMES = LINES
EXACT = (Measured("", 1 << 20, 1.0, "made"),)


@pytest.mark.parametrize("row", FULL.rows, ids=lambda row: row.name)
def test_tensors_are_as_large_as_the_codecs_make_them(row: Row) -> None:
    tensors = manifest_of(row, FULL).boundary_bytes
    width = 4 * row.subspace or 1024
    shape, device = (1, 1024, width), torch.device("cpu")
    activation = ActivationCodec(row.encodings[0], shape, device, 2 if row.subspace else 0)
    gradient = BoundaryCodec(row.encodings[1], shape, device, dither=True)
    assert (tensors.forward, tensors.backward) == (activation.bytes, gradient.bytes)


def test_the_model_is_theirs() -> None:
    assert MODEL.total_parameters() == pytest.approx(203_828_352, rel=1e-3)
    manifest = manifest_of(FULL.rows[0], FULL)
    assert manifest.tokens_per_step == 524_288
    assert manifest.pipeline.stages == 8 and manifest.batch.sequences == 1


def test_a_step_with_bfloat16_by_hand() -> None:
    """Two tensors of 2,048 bytes a token, 524,288 tokens, at 25 MB/s, are 85.9 s; theirs took 100.5 s."""
    found = seconds_of(manifest_of(Row("bfloat16", "adam"), FULL), THEIRS, DEVICE_TFLOPS, EXACT)
    line = 2 * 2048 * 524_288 / 25e6
    assert line == pytest.approx(85.9, abs=0.01)
    assert line < found.seconds == found.bound < 1.05 * line
    assert found.way == "up" and found.update == 0 and found.tensor_bytes == 2 << 20
    home = seconds_of(manifest_of(Row("bfloat16", "adam"), FULL), HOMES, DEVICE_TFLOPS, EXACT)
    assert home.seconds == pytest.approx(10 * line, rel=0.05)


def test_the_device_counts_where_tensors_are_small() -> None:
    manifest = manifest_of(Row("int4", "adam", 32), FULL)
    slow, fast = (seconds_of(manifest, THEIRS, tflops, EXACT) for tflops in (10.0, 1000.0))
    assert slow.way == "compute" and fast.way == "up" and slow.seconds > 2 * fast.seconds


def test_muon_pays_for_its_update() -> None:
    adam, muon = (seconds_of(manifest_of(Row("int8", kind), FULL), THEIRS, 40.0, EXACT) for kind in ("adam", "muon"))
    assert muon.seconds - adam.seconds == pytest.approx(muon.update)
    assert 0.1 < muon.update < 1.0


def test_what_was_measured_counts_where_it_is_nearest() -> None:
    manifest = manifest_of(Row("int4", "adam"), FULL)
    plain = seconds_of(manifest, THEIRS, 40.0, EXACT).seconds
    assert seconds_of(manifest, THEIRS, 40.0, (ASSUMED,)).seconds == pytest.approx(1.3 * plain)
    measured = (
        Measured(THEIRS, 2 << 20, 1.5, "large"), Measured(THEIRS, 1 << 19, 1.2, "small"),
        Measured(HOMES, 540_672, 1.9, "homes"),
    )  # fmt: skip
    assert seconds_of(manifest, THEIRS, 40.0, measured).ratio == 1.2
    assert seconds_of(manifest, HOMES, 40.0, measured).ratio == 1.9
    assert seconds_of(manifest, HOMES, 40.0, measured[:2]).ratio == 1.3


def lines_file(path: Path, **changes: Any) -> Path:
    asked = {"rates": [25e6, 25e6], "delay_seconds": 0.05}
    told = {"asked": asked, "tensor_bytes": {"forward": 540_672, "backward": 540_672}, "ratio": 1.17} | changes
    path.write_text(json.dumps(told))
    return path


def test_a_file_of_lab_lines_is_read(tmp_path: Path) -> None:
    assert read_measured(lines_file(tmp_path / "lines.json")) == Measured(THEIRS, 540_672, 1.17, "lines.json")
    home = lines_file(tmp_path / "home.json", asked={"rates": [2.5e6, 12.5e6], "delay_seconds": 0.03})
    assert read_measured(home).line == HOMES


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"asked": {"rates": [2.5e6, 2.5e6], "delay_seconds": 0.03}}, "another line"),
        ({"asked": {"rates": [2.5e6]}}, "no lines.json"),
        ({"ratio": "fast"}, "no lines.json"),
        ({"tensor_bytes": {}}, "no lines.json"),
    ],
)
def test_another_file_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read_measured(lines_file(tmp_path / "lines.json", **changes))
    assert caught.value.exit_code == 65


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read") as caught:
        read_measured(tmp_path / "none.json")
    assert caught.value.exit_code == 66
