"""Text from a whole model: the window that it sees, chance that can be repeated, files that are no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ftnode.models.generation import WholeModel, continuation, draw, load
from ftnode.models.huggingface import NoModel, read_config
from tests.models.tiny import CONFIG

PLAIN: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 12, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": "float32",
}  # fmt: skip


def rough_model() -> WholeModel:
    model = WholeModel(CONFIG, "cpu")
    generator = torch.Generator().manual_seed(2)
    for place in model.parameters().values():
        place.copy_(torch.randn(place.shape, generator=generator) * 0.5)
    return model


def test_without_temperature_the_most_probable_token_is_taken() -> None:
    model = rough_model()
    tokens = [3, 1, 4]
    for _ in range(4):
        tokens.append(int(model.logits(torch.tensor([tokens]))[0, -1].argmax()))
    assert list(continuation(model, [3, 1, 4], 4, 0.0, None)) == tokens[3:]


def test_a_seed_repeats_what_was_drawn() -> None:
    model = rough_model()
    drawn = [tuple(continuation(model, [1], 12, 1.0, seed)) for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_beyond_the_context_the_oldest_tokens_are_forgotten() -> None:
    model = rough_model()
    long = [n % CONFIG.vocabulary for n in range(30)]
    seen = list(continuation(model, long, 3, 0.0, None))
    assert seen == list(continuation(model, long[-CONFIG.context :], 3, 0.0, None))


def test_temperature_flattens() -> None:
    logits_v = torch.tensor([0.0, 1.0, 8.0], dtype=torch.float64)

    def share(temperature: float) -> float:
        chance = torch.Generator().manual_seed(1)
        return sum(draw(logits_v, temperature, chance) == 2 for _ in range(400)) / 400

    assert share(0.1) == 1.0
    assert 0.25 < share(100.0) < 0.45


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gpt2"}, "is of a gpt2; taken are llama, mistral, qwen2"),
        ({"hidden_size": "16"}, "no hidden_size"),
        ({"hidden_size": 15}, "dim"),
        ({"rms_norm_eps": None}, "no rms_norm_eps"),
        ({"rope_parameters": {"rope_theta": "big"}}, "no rope_theta"),
        ({"dtype": "int4"}, "numbers of type int4"),
    ],
)
def test_another_model_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN | change))
    with pytest.raises(NoModel, match=says):
        load(tmp_path)


def test_both_places_of_ropes_base_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    assert read_config(tmp_path).model == CONFIG
    earlier = {name: value for name, value in PLAIN.items() if name not in ("rope_parameters", "dtype")}
    (tmp_path / "config.json").write_text(json.dumps(earlier | {"rope_theta": 10000, "torch_dtype": "float32"}))
    assert read_config(tmp_path).model == CONFIG


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 10_000])
def test_spoiled_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(NoModel, match="JSON"):
        load(tmp_path)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    names = list(rough_model().parameters())

    def index(file: str, without: int = 0) -> None:
        table = dict.fromkeys(names[without:], file)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))

    def refused(says: str) -> None:
        with pytest.raises(NoModel, match=says):
            load(tmp_path)

    index("model.safetensors", without=1)
    refused("does not name the parameters")
    index("../elsewhere.safetensors")
    refused("names files elsewhere")
    index("model.safetensors")
    refused("there is no")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    refused("is spoiled")
    weights: dict[str, Tensor] = {name: place.clone() for name, place in rough_model().parameters().items()}
    save_file(weights | {names[0]: torch.zeros(3)}, tmp_path / "model.safetensors")
    refused("not of the shape")
    save_file(weights, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path).parameters()[names[3]], weights[names[3]])
