"""A model leaves a run in the numbers that were asked for, and another run goes on from exactly these."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftnode.models.llama import mean_loss
from ftnode.models.stage import Stage
from ftnode.models.tensors import as_bytes
from ftnode.node.export.checkpoint import creating
from ftnode.node.export.continuing import described_model, with_weights
from ftnode.node.export.tokenizer_files import find_tokenizer, tokenizer_files
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError
from tests.models.test_first_weights import begun, layers_of, opened
from tests.node.export.test_checkpoint import STAGES, manifest, rough_stages, swarm_logits

TOLERANCE = {"float32": 0.0, "bfloat16": 2e-2, "float16": 2e-3}
"""Of a loss, in nats, where weights are rounded to 8 or 11 bits."""


def write(out: Path, made: Manifest, stages: list[Stage], dtype: str) -> None:
    with creating(out, made, dtype) as checkpoint:
        for stage in stages:
            checkpoint.open_stage(stage.index).write(as_bytes(stage.weights))
        files = tokenizer_files(find_tokenizer(made, None, out))
        checkpoint.finish(files.contents, files.end)
        checkpoint.publish()


def loss(stages: list[Stage], made: Manifest) -> float:
    windows = torch.randint(256, (4, 41), generator=torch.Generator().manual_seed(2))
    return mean_loss(swarm_logits(stages, made, windows[:, :-1]), windows[:, 1:]).item()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_run_goes_on_from_an_export_with_its_loss(dtype: str, tmp_path: Path) -> None:
    made, out = manifest(), tmp_path / "out"
    stages = rough_stages(made)
    write(out, made, stages, dtype)
    again = with_weights(described_model(out, made.model.context, STAGES), out)
    assert again.model == made.model
    checkpoint = opened(out)
    assert checkpoint.dtype == dtype
    begin = [begun(stages[0].config, index, layers_of(checkpoint, index)) for index in range(STAGES + 1)]
    number = getattr(torch, dtype)
    for stage, new in zip(stages, begin):
        assert torch.equal(new.weights, stage.weights.to(number).float()), "rounded to the nearest, ties to even"
    assert loss(begin, again) == pytest.approx(loss(stages, made), abs=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_transformers_loads_it_in_these_numbers(dtype: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    made, out = manifest(), tmp_path / "out"
    stages = rough_stages(made)
    write(out, made, stages, dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert model.dtype == getattr(torch, dtype)
    tokens_bt = torch.randint(256, (2, 40), generator=torch.Generator().manual_seed(1))
    begin = [begun(stages[0].config, index, layers_of(opened(out), index)) for index in range(STAGES + 1)]
    with torch.no_grad():
        found = model.float()(tokens_bt).logits
    torch.testing.assert_close(found, swarm_logits(begin, made, tokens_bt), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "weight"), [("float16", 70_000.0), ("bfloat16", 3.4e38)])
def test_a_weight_that_the_numbers_do_not_hold_is_said_and_nothing_is_left(
    dtype: str, weight: float, tmp_path: Path
) -> None:
    made = manifest()
    stages = rough_stages(made)
    stages[1].weights[7] = weight
    with pytest.raises(UserError, match=f"no number of {dtype}; export with --dtype") as failed:
        write(tmp_path / "out", made, stages, dtype)
    assert failed.value.exit_code == 65 and not list(tmp_path.iterdir())
