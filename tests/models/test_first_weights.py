"""First weights out of a checkpoint: one file or several, and files that somebody made to do harm."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftnode.models import initial
from ftnode.models.config import ModelConfig
from ftnode.models.faults import Misuse, StageFault
from ftnode.models.first_weights import (
    SHARDED,
    SINGLE,
    Checkpoint,
    layer_names,
    open_checkpoint,
    parse_index,
)
from ftnode.models.huggingface import NoModel, read_config
from ftnode.models.initial import Layer, stage_layers
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion
from tests.models.families import saved
from tests.models.test_families import STAGES, config_of, staged

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def opened(folder: Path) -> Checkpoint:
    return open_checkpoint(folder, read_config(folder).model)


def layers_of(checkpoint: Checkpoint, stage: int) -> list[Layer]:
    hashes = {file.name: file.sha256 for file in checkpoint.index().files}
    names = layer_names(checkpoint.config, STAGES, stage)
    rows = [[hashes[name], [list(span) for span in checkpoint.spans(name)]] for name in names]
    return stage_layers(checkpoint.config, STAGES, stage, {"dtype": checkpoint.dtype, "layers": rows})


def begun(config: ModelConfig, index: int, layers: list[Layer]) -> Stage:
    stage = Stage(config, STAGES, index, OptimiserConfig(1e-3, 10), 1, "cpu")
    stage.begin_with(layers, StageVersion(0, "lineage", (-1, 0)))
    return stage


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["llama-3", "smollm", "qwen-2"])
def test_a_stage_begins_with_the_numbers_of_the_checkpoint(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = saved(name, tmp_path, dtype, max_shard_size="20KB")
    assert (tmp_path / SHARDED).exists() and len(list(tmp_path.glob("*.safetensors"))) > 2
    checkpoint = opened(tmp_path)
    for wanted in staged(model, config_of(model)):
        stage = begun(wanted.config, wanted.index, layers_of(checkpoint, wanted.index))
        assert torch.equal(stage.weights, wanted.weights) and stage.version is not None and not stage.version.step


def test_however_the_files_are_cut_the_index_is_the_same(tmp_path: Path) -> None:
    saved("llama-3", tmp_path / "one")
    saved("llama-3", tmp_path / "many", max_shard_size="20KB")
    one, many = opened(tmp_path / "one").index(), opened(tmp_path / "many").index()
    assert (tmp_path / "one" / SINGLE).exists() and one == many
    assert parse_index(one.encode(), read_config(tmp_path / "one").model) == one


def spoil_header(folder: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    """Write another header before the same numbers."""
    path = folder / SINGLE
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


NORM = "model.norm.weight"
HOSTILE: list[tuple[Callable[[dict[str, dict[str, object]]], object], str]] = [
    (lambda header: header.pop(NORM), f"{NORM} is missing"),
    (lambda header: header.update({"model.layers.0.self_attn.o_proj.bias": header[NORM]}), "o_proj.bias"),
    (lambda header: header[NORM].update(shape=[4, 6]), "has shape"),
    (lambda header: header[NORM].update(shape=[1 << 40]), "a header that cannot be"),
    (lambda header: header[NORM].update(data_offsets=[0, 1 << 60]), "a header that cannot be"),
    (lambda header: header[NORM].update(data_offsets=[-96, 0]), "a header that cannot be"),
    (lambda header: header[NORM].update(shape=[24] + [1] * 40), "a header that cannot be"),
    (lambda header: header[NORM].update(dtype="I32"), "F32 and I32"),
    (lambda header: header.update({NORM: []}), "a header that cannot be"),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(("change", "says"), HOSTILE)
def test_a_header_that_lies_is_refused(change: Callable[..., object], says: str, tmp_path: Path) -> None:
    saved("llama-3", tmp_path)
    spoil_header(tmp_path, change)  # type: ignore[arg-type]
    with pytest.raises(NoModel, match=says):
        opened(tmp_path)


NO_FILES = (
    b"", b"\xff" * 8, (1 << 62).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]",
    (100_000).to_bytes(8, "little") + b"[" * 100_000,
)  # fmt: skip


@pytest.mark.parametrize("data", NO_FILES)
def test_a_file_that_is_none_is_refused_without_reading_much(data: bytes, tmp_path: Path) -> None:
    saved("llama-3", tmp_path)
    (tmp_path / SINGLE).write_bytes(data)
    with pytest.raises(NoModel, match=r"no file of safetensors|a header that cannot be"):
        opened(tmp_path)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    saved("llama-3", tmp_path)
    (tmp_path / SINGLE).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(NoModel, match="has pickles"):
        opened(tmp_path)


def test_files_elsewhere_are_not_read(tmp_path: Path) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    saved("llama-3", folder)
    other.mkdir()
    (folder / SINGLE).rename(other / SINGLE)
    os.symlink(other / SINGLE, folder / SINGLE)
    with pytest.raises(NoModel, match="leads out of the folder"):
        opened(folder)
    (folder / SINGLE).unlink()
    (folder / SHARDED).write_text(json.dumps({"weight_map": {NORM: f"../other/{SINGLE}"}}))
    with pytest.raises(NoModel, match="names files elsewhere"):
        opened(folder)


def test_the_hubs_cache_of_links_is_a_folder_like_others(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "snapshots" / "0123", tmp_path / "blobs"
    saved("llama-3", folder)
    blobs.mkdir()
    (folder / SINGLE).rename(blobs / "ab")
    os.symlink("../../blobs/ab", folder / SINGLE)
    assert opened(folder).index().files


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_name(dtype: torch.dtype, value: float, tmp_path: Path) -> None:
    model = saved("llama-3", tmp_path, dtype)
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[3, 4] = value
    model.save_pretrained(tmp_path)
    with pytest.raises(NoModel, match=r"model\.layers\.2\.mlp\.up_proj\.weight has a number that is not finite"):
        opened(tmp_path).index()


def flipped(folder: Path) -> None:
    """One bit of the last tensor."""
    data = bytearray((folder / SINGLE).read_bytes())
    data[-2] ^= 1
    (folder / SINGLE).write_bytes(data)


@pytest.mark.parametrize("size", [-1, -2])
def test_a_file_that_is_cut_off_while_it_is_hashed_is_named(size: int, tmp_path: Path) -> None:
    saved("llama-3", tmp_path, torch.bfloat16)
    checkpoint = opened(tmp_path)
    os.truncate(tmp_path / SINGLE, (tmp_path / SINGLE).stat().st_size + size)
    with pytest.raises(EOFError, match="is shorter than it was"):
        checkpoint.index()


def test_layers_that_changed_since_are_refused(tmp_path: Path) -> None:
    saved("llama-3", tmp_path)
    checkpoint = opened(tmp_path)
    layers = [layers_of(checkpoint, stage) for stage in range(STAGES + 1)]
    flipped(tmp_path)
    refused = []
    for stage in range(STAGES + 1):
        try:
            begun(checkpoint.config, stage, layers[stage])
        except Misuse as error:
            refused.append(str(error))
    assert refused == ["a layer of the first weights does not have its hash"]
    (tmp_path / SINGLE).write_bytes(b"")
    with pytest.raises(Misuse, match="cannot be read"):
        begun(checkpoint.config, 1, layers[1])


def test_a_hash_that_nobody_checks_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: whatever the bytes are, they have the hash that was promised."""
    saved("llama-3", tmp_path)
    checkpoint = opened(tmp_path)
    layers = [replace(layer, sha256="0" * 64) for layer in layers_of(checkpoint, 1)]
    with pytest.raises(Misuse, match="does not have its hash"):
        begun(checkpoint.config, 1, layers)

    class Blind:
        def update(self, data: bytes) -> None: ...

        def hexdigest(self) -> str:
            return "0" * 64

    monkeypatch.setattr(initial.hashlib, "sha256", Blind)
    begun(checkpoint.config, 1, layers)


def test_numbers_that_are_not_finite_begin_no_stage(tmp_path: Path) -> None:
    model = saved("llama-3", tmp_path)
    checkpoint = opened(tmp_path)
    layers = layers_of(checkpoint, 1)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.fill_(float("nan"))
    model.save_pretrained(tmp_path)
    with pytest.raises(StageFault, match="not finite"):
        begun(checkpoint.config, 1, layers)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [(b"bfloat16", b"float64", "is none"), (b"ftnode-weights-1", b"other", "is none"),
     (b'"size": ', b'"size": 1', "of another model"), (b"layer-00001", b"layer-00009", "of another model")],
)  # fmt: skip
def test_an_index_of_something_else_is_refused(old: bytes, new: bytes, says: str, tmp_path: Path) -> None:
    saved("llama-3", tmp_path, torch.bfloat16)
    data = opened(tmp_path).index().encode()
    assert old in data
    with pytest.raises(NoModel, match=says):
        parse_index(data.replace(old, new, 1), read_config(tmp_path).model)
