"""A whole model out of a Hugging Face checkpoint of ours, and text from it, token by token. One process, no swarm.

B sequences, T positions, V vocabulary, as in llama.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ftnode.models import llama
from ftnode.models.config import ModelConfig
from ftnode.models.huggingface import NoModel, read_config, read_json

INDEX_NAME: Final = "model.safetensors.index.json"


class WholeModel:
    """All blocks and the head in one place."""

    def __init__(self, config: ModelConfig, device: str) -> None:
        self.config = config
        self._head_layout = llama.head_layout(config)
        self._block_layout = llama.block_layout(config, 0, config.layers)
        dtype = llama.dtype_of(config)
        self._head = torch.zeros(self._head_layout.size, dtype=dtype, device=device)
        self._blocks = torch.zeros(self._block_layout.size, dtype=dtype, device=device)
        self._rope = llama.rotary(config, torch.device(device))

    def parameters(self) -> dict[str, Tensor]:
        """Name → the tensor's place, to be filled."""
        pairs = ((self._head_layout, self._head), (self._block_layout, self._blocks))
        return {name: layout.view(flat, name) for layout, flat in pairs for name in layout.entries}

    def logits(self, tokens_bt: Tensor) -> Tensor:
        """[B, T, V] for at most `context` tokens."""
        config, take = self.config, self._block_layout.of(self._blocks)
        head = llama.head_weights(config, self._head_layout.of(self._head))
        x = llama.embed(tokens_bt, head)
        for layer in range(config.layers):
            x = llama.block(x, llama.block_weights(config, layer, take), self._rope, config)
        return llama.logits(x, head, config)


def load(folder: Path, device: str = "cpu") -> WholeModel:
    """Raises NoModel, OSError."""
    model = WholeModel(read_config(folder).model, device)
    places = model.parameters()
    index = read_json(folder / INDEX_NAME).get("weight_map")
    if not isinstance(index, dict) or index.keys() != places.keys():
        raise NoModel(f"{folder / INDEX_NAME} does not name the parameters of config.json's model")
    for name in sorted({str(file) for file in index.values()}):
        if Path(name).name != name:
            raise NoModel(f"{folder / INDEX_NAME} names files elsewhere")
        _fill(folder / name, {key: places[key] for key, file in index.items() if file == name})
    return model


def _fill(path: Path, places: dict[str, Tensor]) -> None:
    if not path.is_file():
        raise NoModel(f"there is no {path}; export the model again")
    try:
        with safe_open(path, framework="pt") as file:
            for name, place in places.items():
                tensor = file.get_tensor(name)
                if tensor.shape != place.shape or not tensor.is_floating_point():
                    raise NoModel(f"{name} in {path} is not of the shape that config.json says")
                place.copy_(tensor)
    except SafetensorError as error:
        raise NoModel(f"{path} is spoiled ({error}); export the model again") from None


def continuation(
    model: WholeModel, prompt: Sequence[int], count: int, temperature: float, seed: int | None
) -> Iterator[int]:
    """`count` tokens that follow `prompt` (not empty), each drawn by the model from the `context` before it.

    `temperature` 0: the most probable one. `seed` None: other tokens each time.
    """
    device = next(iter(model.parameters().values())).device
    chance = torch.Generator()
    if seed is None:
        chance.seed()
    else:
        chance.manual_seed(seed)
    tokens = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            window_bt = torch.tensor([tokens[-model.config.context :]], device=device)
            logits_v = model.logits(window_bt)[0, -1].double().cpu()
        tokens.append(draw(logits_v, temperature, chance))
        yield tokens[-1]


def draw(logits_v: Tensor, temperature: float, chance: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_v.argmax())
    probabilities_v = torch.softmax((logits_v - logits_v.max()) / temperature, dim=0)
    return int(torch.multinomial(probabilities_v, 1, generator=chance))
