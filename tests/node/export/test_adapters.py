"""What leaves a run that trains a part of a model: adapters as PEFT reads them, or the whole model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ftnode.models.stage import Stage
from ftnode.models.tensors import as_bytes
from ftnode.node.export.adapters import ADAPTERS, ADAPTERS_CONFIG, PREFIX
from ftnode.node.export.checkpoint import checkpoint_bytes, creating, stage_sizes
from ftnode.node.export.continuing import described_model, opened_base, with_weights
from ftnode.node.export.tokenizer_files import byte_tokenizer, find_tokenizer, tokenizer_files
from ftnode.node.home.files import json_bytes
from ftnode.protocol.manifest.parse import Manifest, parse, render
from ftnode.protocol.words.errors import UserError
from tests.models.families import saved
from tests.models.test_families import CONTEXT, STAGES, tokens
from tests.models.test_frozen import begun, disturb, merged, rows

PARTS: list[dict[str, Any]] = [{"lora": 3}, {"train": "norms+mlp"}, {"train": "last 1 layer"}]


def written(folder: Path, name: str, part: dict[str, Any], dtype: torch.dtype = torch.float32) -> tuple[Any, Manifest]:
    """A model in its folder, and a run that goes on from it."""
    model = saved(name, folder, dtype)
    (folder / "tokenizer.json").write_bytes(json_bytes(byte_tokenizer()))
    made = with_weights(described_model(folder, CONTEXT, STAGES, **part), folder)
    assert parse(render(made)) == made
    return model, made


def trained(folder: Path, made: Manifest) -> list[Stage]:
    model = made.model
    stages = begun(folder, train=model.train, lora=model.lora, lora_alpha=model.lora_alpha)
    disturb(stages)
    return stages


def export(out: Path, made: Manifest, stages: list[Stage], base: Path | None, dtype: str = "") -> None:
    with creating(out, made, dtype, opened_base(made, base)) as checkpoint:
        for stage in reversed(stages):
            assert stage.weights.nbytes == stage_sizes(made)[stage.index]
            checkpoint.open_stage(stage.index).write(as_bytes(stage.weights))
        files = tokenizer_files(find_tokenizer(made, None, out))
        checkpoint.finish(files.contents, files.end)
        checkpoint.publish()


def logits(model: Any, parameters: dict[str, Tensor] | None = None) -> Tensor:
    with torch.no_grad():
        found: Tensor = torch.func.functional_call(model, parameters or {}, (tokens()[:, :-1],)).logits
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama-3", "qwen-2"])
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_the_whole_model_is_what_transformers_loads(
    part: dict[str, Any], name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    _, made = written(tmp_path / "model", name, part, dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    stages = trained(tmp_path / "model", made)
    adapters = rows(stages, "weights")
    changed = merged(model, adapters, made.model.lora_alpha / max(1, made.model.lora))
    expected = logits(model, changed if made.model.lora else adapters)
    assert (expected - logits(model)).abs().max() > 1e-2
    export(tmp_path / "out", made, stages, tmp_path / "model")
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert found.dtype == torch.float32
    torch.testing.assert_close(logits(found), expected, rtol=1e-4, atol=1e-4)
    total = sum(
        tensor.nbytes for file in (tmp_path / "out").glob("*.safetensors") for tensor in load_file(file).values()
    )
    assert total == checkpoint_bytes(made)


@pytest.mark.parametrize("dtype", ["", "bfloat16"])
def test_adapters_are_written_as_peft_reads_them(dtype: str, tmp_path: Path) -> None:
    _, made = written(tmp_path / "model", "llama-3", {"lora": 3})
    stages = trained(tmp_path / "model", made)
    export(tmp_path / "out", made, stages, None, dtype)
    number = getattr(torch, dtype or "float32")
    found = load_file(tmp_path / "out" / ADAPTERS)
    assert {name.removeprefix(PREFIX): row.dtype for name, row in found.items()} == dict.fromkeys(
        rows(stages, "weights"), number
    )
    assert all(torch.equal(found[PREFIX + name], row.to(number)) for name, row in rows(stages, "weights").items())
    config = json.loads((tmp_path / "out" / ADAPTERS_CONFIG).read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"], config["bias"]) == (3, 6, "LORA", "none")
    assert config["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert f"{PREFIX}model.layers.3.mlp.down_proj.lora_B.weight" in found and not list(tmp_path.glob("out/model-*"))
    assert sum(row.nbytes for row in found.values()) == checkpoint_bytes(made, dtype, adapters=True)


@pytest.mark.parametrize("name", ["llama-2", "qwen-2"])
def test_peft_loads_them(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, made = written(tmp_path / "model", name, {"lora": 3})
    stages = trained(tmp_path / "model", made)
    expected = logits(model, merged(model, rows(stages, "weights")))
    export(tmp_path / "out", made, stages, None)
    found = peft.PeftModel.from_pretrained(model, tmp_path / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(found(tokens()[:, :-1]).logits, expected, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_exported_is_said_before_anything_comes(tmp_path: Path) -> None:
    _, made = written(tmp_path / "model", "llama-2", {"train": "norms+mlp"})
    with pytest.raises(UserError, match="only what it trains, norms\\+mlp; pass --from") as failed:
        opened_base(made, None)
    assert failed.value.exit_code == 64
    with pytest.raises(UserError, match="leave --from out"):
        opened_base(replace(made, model=replace(made.model, train="all")), tmp_path / "model")
    written(tmp_path / "other", "llama-3", {})
    with pytest.raises(UserError) as failed:
        opened_base(made, tmp_path / "other")
    assert failed.value.exit_code == 65
    with pytest.raises(UserError) as failed:
        opened_base(made, tmp_path / "nothing")
    assert failed.value.exit_code == 65
    begin = replace(made, start=replace(made.start, weights="0" * 64))
    with pytest.raises(UserError, match="and the run began with 000000000000"):
        opened_base(begin, tmp_path / "model")


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"train": "last 5 layers"}, "a model of 4 layers has no last 5 layers"),
        (
            {"train": "norms+mlp", "lora": 2},
            "adapters are trained in place of the model's own weights; set train = all",
        ),
    ],
)
def test_a_part_that_the_model_does_not_have_is_refused(part: dict[str, Any], why: str, tmp_path: Path) -> None:
    written(tmp_path / "model", "llama-2", {})
    with pytest.raises(UserError, match=why) as failed:
        described_model(tmp_path / "model", CONTEXT, STAGES, **part)
    assert failed.value.exit_code == 64


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_model_is_not_exported_without_a_stage(part: dict[str, Any], tmp_path: Path) -> None:
    _, made = written(tmp_path / "base", "llama-2", part)
    with creating(tmp_path / "out", made) as checkpoint:
        checkpoint.leave_out(())
        with pytest.raises(UserError, match="wait until it is rebuilt") as caught:
            checkpoint.leave_out((1,))
    assert caught.value.exit_code == 69
