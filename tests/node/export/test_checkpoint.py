"""What is written loads in transformers and in our own model, with the swarm's logits; and nothing is half-written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from ftnode.models import llama
from ftnode.models.config import ModelConfig
from ftnode.models.generation import load
from ftnode.models.number_check import NumberCheck
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage
from ftnode.models.tensors import as_bytes
from ftnode.node.export import checkpoint as checkpoint_module
from ftnode.node.export.checkpoint import creating, stage_sizes
from ftnode.node.export.client import TakenModel, TakenStage
from ftnode.node.export.model_card import left_out_text, model_card, provenance
from ftnode.node.export.tokenizer_files import find_tokenizer, tokenizer_files
from ftnode.node.manifests.presets import preset
from ftnode.node.watch.status import CreditRow, RecoveryRow, Speaker, SwarmStatus
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError

STAGES = 2


def manifest(precision: str = "float32", subspace: int = 0) -> Manifest:
    """Of odd sizes, so that a wrong shape shows; RoPE and norms are not the defaults."""
    tiny = preset("tiny")
    return replace(
        tiny,
        model=replace(
            tiny.model, vocabulary=300, dim=48, heads=3, layers=4, context=40, hidden=88, rope_theta=777.0,
            norm_eps=1e-4, precision=precision, subspace=subspace,
        ),
        pipeline=replace(tiny.pipeline, stages=STAGES),
    )  # fmt: skip


def rough_stages(made: Manifest) -> list[Stage]:
    """Weights far from their small initial values, so that a wrong convention shows."""
    generator = torch.Generator().manual_seed(3)
    stages = []
    for index in range(STAGES + 1):
        stage = Stage(ModelConfig.of(made.model), STAGES, index, OptimiserConfig(1e-3, 10), 1, "cpu")
        stage.initialise(5, "lineage")
        noise = torch.randn(stage.layout.size, generator=generator, dtype=stage.dtype)
        stage.weights.add_(noise, alpha=0.15)
        stages.append(stage)
    return stages


def swarm_logits(stages: list[Stage], made: Manifest, tokens_bt: Tensor) -> Tensor:
    """What the swarm computes at its boundaries."""
    x = stages[0].forward(((0, 0), 0, 0), tokens_bt, save=False)
    for stage in stages[1:]:
        x = stage.forward(((0, 0), 0, stage.index), x, False, tokens_bt)
    config, head = (
        ModelConfig.of(made.model),
        llama.head_weights(stages[0].config, stages[0].layout.of(stages[0].weights)),
    )
    return llama.logits(x, head, config, stages[0]._fixed(tokens_bt, NumberCheck(0)))


def write(out: Path, made: Manifest, stages: list[Stage], pieces: int = 5) -> None:
    with creating(out, made) as checkpoint:
        for stage in reversed(stages):
            file = checkpoint.open_stage(stage.index)
            data = as_bytes(stage.weights)
            for start in range(0, len(data), len(data) // pieces + 1):
                file.write(data[start : start + len(data) // pieces + 1])
        files = tokenizer_files(find_tokenizer(made, None, out))
        checkpoint.finish(files.contents, files.end)
        checkpoint.publish()


@pytest.mark.parametrize("subspace", [0, 20])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_transformers_and_our_own_model_give_the_logits_of_the_swarm(
    precision: str, subspace: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    made = manifest(precision, subspace)
    stages, out = rough_stages(made), tmp_path / "out"
    write(out, made, stages)
    tokens_bt = torch.randint(256, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = swarm_logits(stages, made, tokens_bt)
    assert expected.std() > 0.5
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert type(model).__name__ == "LlamaForCausalLM" and model.dtype == getattr(torch, precision)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens_bt).logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(load(out).logits(tokens_bt), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("subspace", [0, 20])
@pytest.mark.parametrize("lost", [1, 2])
def test_a_model_without_a_stage_is_the_one_that_is_trained_without_it(
    lost: int, subspace: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    made = manifest(subspace=subspace)
    stages, out = rough_stages(made), tmp_path / "out"
    kept = [stage for stage in stages if stage.index != lost]
    with creating(out, made) as checkpoint:
        checkpoint.open_stage(lost).write(b"of an attempt before")
        checkpoint.leave_out((lost,))
        for stage in kept:
            checkpoint.open_stage(stage.index).write(as_bytes(stage.weights))
        files = tokenizer_files(find_tokenizer(made, None, out))
        checkpoint.finish(files.contents, files.end)
        checkpoint.publish()
    tokens_bt = torch.randint(256, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = swarm_logits(kept, made, tokens_bt)
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert model.config.num_hidden_layers == 2
    with torch.no_grad():
        torch.testing.assert_close(model(tokens_bt).logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(load(out).logits(tokens_bt), expected, rtol=1e-5, atol=1e-5)
    tensors = sorted(path.name for path in out.glob("*.safetensors*"))
    assert tensors == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]


def test_the_card_says_which_stage_is_left_out() -> None:
    made, taken = manifest(), replace(model(), left_out=(2,))
    assert "stage 2" in left_out_text(made, (2,)) and "2 of 4 layers" in left_out_text(made, (2,))
    assert not left_out_text(made, ())
    card, told = model_card(made, taken, "out"), provenance(made, taken)
    assert "\nStage 2 has no holder" in card and "| model | 2 layers of 48" in card
    assert told["left_out"] == [2] and told["bytes"] < provenance(made, model())["bytes"]


def test_files_are_what_the_libraries_expect(tmp_path: Path) -> None:
    made = manifest()
    stages, out = rough_stages(made), tmp_path / "deep" / "out"
    write(out, made, stages)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(stage_sizes(made))
    found = {}
    for name in sorted(set(index["weight_map"].values())):
        with safe_open(out / name, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
            found |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    for stage in stages:
        for name in stage.layout.entries:
            assert torch.equal(found.pop(name), stage.layout.view(stage.weights, name))
    assert not found
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json", "generation_config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_the_tokens_are_the_bytes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for name, content in tokenizer_files(find_tokenizer(manifest(), None, tmp_path)).contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    everything = "".join(map(chr, range(0x250))) + "日本語 🙂\n\t  def f():\r\n  don't  <s></s>"
    for text in ("a", " a", "  two  spaces ", everything):
        assert tokenizer(text)["input_ids"] == list(text.encode()), text[:20]
        assert tokenizer.decode(list(text.encode())) == text, text[:20]
    assert len(tokenizer) == 256
    assert tokenizer.eos_token_id == 0 and tokenizer.decode([97, 0], skip_special_tokens=True) == "a"


def test_generation_goes_through_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    made, out = manifest(), tmp_path / "out"
    made = replace(made, model=replace(made.model, vocabulary=256))
    write(out, made, rough_stages(made))
    generate = transformers.pipeline("text-generation", model=str(out))
    assert generate("To be", max_new_tokens=5)[0]["generated_text"].startswith("To be")
    assert generate.model.config.eos_token_id == generate.model.generation_config.eos_token_id == 0


# -- where it may be written


def refused(out: Path, made: Manifest, *says: str) -> None:
    with pytest.raises(UserError) as caught, creating(out, made):
        raise AssertionError("it begins")
    assert caught.value.exit_code == 73
    assert all(part in str(caught.value) for part in says), caught.value


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    refused(out, manifest(), "is there and not empty")
    refused(out / "thesis.txt", manifest(), "is there and not empty")
    refused(out / "thesis.txt" / "below", manifest(), "cannot create")
    assert (out / "thesis.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", manifest(), rough_stages(manifest()))
    assert (tmp_path / "out" / "config.json").exists()


def test_a_folder_that_is_filled_meanwhile_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match="not empty"), creating(out, manifest()) as checkpoint:
        checkpoint.finish({}, 0)
        out.mkdir()
        (out / "thesis.txt").write_text("mine")
        checkpoint.publish()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "thesis.txt"]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), creating(tmp_path / "out", manifest()) as checkpoint:
        checkpoint.open_stage(0).write(b"half")
        assert [path.name.endswith(".partial") for path in tmp_path.iterdir()] == [True], "not under the final name"
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_was_published_stays_whatever_comes_after(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), creating(tmp_path / "out", manifest()) as checkpoint:
        checkpoint.finish({}, 0)
        checkpoint.publish()
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (tmp_path / "out" / "config.json").exists()


def test_what_is_killed_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from ftnode.node.export.checkpoint import creating\nfrom ftnode.node.manifests.presets import preset\n"
        f"with creating(Path({str(tmp_path / 'out')!r}), preset('tiny')) as checkpoint:\n"
        "    checkpoint.open_stage(0).write(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.") and left.name.endswith(".partial")
    write(tmp_path / "out", manifest(), rough_stages(manifest()))


def test_a_disk_without_room_is_noticed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(checkpoint_module.shutil, "disk_usage", lambda path: Usage)
    refused(tmp_path / "out", manifest(), "the model has ", "has room for 1.0 kB; choose another disk")
    assert list(tmp_path.iterdir()) == []


def test_what_a_full_disk_did_not_take_is_gone(tmp_path: Path) -> None:
    """Closing a file of which a part is still in memory fails once more."""
    with pytest.raises(UserError, match="full"), creating(tmp_path / "out", manifest()) as checkpoint:
        (draft,) = tmp_path.iterdir()
        (draft / "model-00001-of-00003.safetensors").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            checkpoint.open_stage(0).write(bytes(1 << 20))
        again = checkpoint.open_stage(0)  # another attempt
        with pytest.raises(OSError, match="No space left"):
            again.write(bytes(1 << 20))
        raise UserError("the disk is full", 74)
    assert list(tmp_path.iterdir()) == []


def test_where_something_is_mounted_a_folder_in_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole model would come before it is known that no folder can get this name."""
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(checkpoint_module.os.path, "ismount", lambda path: path == tmp_path / "out")
    refused(tmp_path / "out", manifest(), "another disk is mounted there", "choose a folder in it")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# -- what comes beside


def model(reason: str = "silent") -> TakenModel:
    rows = (RecoveryRow(1, 6, "blend", 3, "lost", "new", reason, 2.5, 10, 2.6, 2.7),)
    speaker = Speaker("p", "0", "cpu", "volunteer")
    gave = (
        CreditRow("peer0", 90, 7200.0, 0, "O'Brien", relayed_bytes=2_500_000_000),
        CreditRow(reason, 9, 1.0, 2, reason),
        CreditRow("", 1, 1.0, 0),
    )
    status = SwarmStatus(
        speaker, run="r", loss=2.5, validation=2.25, validation_step=5, recoveries=rows, credits=gave, credits_step=7
    )
    return TakenModel(7, "abc", tuple(TakenStage(n, n + 4, f"peer{n}", f"{n}" * 32) for n in range(3)), status, "peer0")


def test_the_card_tells_where_the_model_comes_from() -> None:
    made = manifest()
    card = model_card(made, model(), "out")
    assert card.startswith("---\nlibrary_name: transformers\n")
    for part in (
        made.run_id,
        "7 of",
        "`abc`",
        "2.5000",
        "2.2500, of step 5",
        "| head | 4 | `peer0` |",
        "| 2 | 6 | `peer2` |",
    ):
        assert part in card, part
    assert "| 1 | 6 | a blend of both neighbours' weights | 3 | 2.6000 | 2.7000 | silent |" in card
    assert "| peer0 | 90 | 90.0% | 2.00 |  | 2.5 GB | O'Brien |\n" in card
    assert "\n| others | 1 | 1.0% | 0.00 |  |  |  |" in card
    told = provenance(made, model())
    assert (told["run"], told["step"], told["commit"]) == (made.run_id, 7, "abc")
    assert [stage["epoch"] for stage in told["stages"]] == [4, 5, 6]
    assert (told["validation"], told["validation_step"]) == (2.25, 5), "older than the model, and says so"
    assert told["recoveries"][0]["rung"] == "blend"
    given = {"peer": "peer0", "visits": 90, "seconds": 7200.0, "rebuilt": 0, "name": "O'Brien"}
    assert told["credits"][0] == given | {"relayed_bytes": 2_500_000_000} and told["credits_step"] == 7
    json.dumps(told)


def test_a_peers_words_are_shown_as_they_are() -> None:
    evil = "<script>x</script> [a](http://b) | `c`\n# heading \x1b[31m"
    card = model_card(manifest(), model(evil), "out")
    assert "<script>" not in card and "[a](" not in card and "\x1b" not in card and "\n# heading" not in card
    assert r"\<script\>" in card and r"\|" in card
