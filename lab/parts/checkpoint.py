"""What it takes to begin a run with a model that exists: `ftnode run init --from` a checkpoint of 135 million
parameters with random weights, written here in bfloat16, with the shape of SmolLM-135M."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from ftnode.lab.swarms.processes import memory_of
from ftnode.models.config import ModelConfig
from ftnode.models.first_weights import SINGLE
from ftnode.models.huggingface import CONFIG_NAME, huggingface_config
from ftnode.models.parameters import Shape, block_shapes, head_shapes, places
from ftnode.models.rounding import EXPORT_DTYPES, Rounded
from ftnode.models.safetensors_header import safetensors_header
from ftnode.node.export.tokenizer_files import TOKENIZER_NAME, byte_tokenizer
from ftnode.node.home.files import json_bytes
from ftnode.protocol.words.errors import LocalError

SMOL: Final = ModelConfig(
    dim=576, heads=9, layers=30, context=2048, hidden=1536, vocabulary=49152, kv_heads=3, tied=True
)
DTYPE: Final = "bfloat16"
DEVIATION: Final = 0.02
INIT_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Begun:
    """`seconds`, `peak_bytes`: of `ftnode run init`, from its start to its end, resident."""

    parameters: int
    seconds: float
    peak_bytes: int


def write_checkpoint(folder: Path, model: ModelConfig) -> None:
    """config.json, tokenizer.json and one file of safetensors."""
    shapes: dict[str, Shape] = {}
    for part in (*head_shapes(model), *block_shapes(model, 0, model.layers)):
        shapes |= part
    name, size = EXPORT_DTYPES[DTYPE]
    chance = np.random.default_rng(1)
    folder.mkdir()
    with (folder / SINGLE).open("wb") as file:
        file.write(safetensors_header(places(shapes, {})[0], size, dtype=name))
        rounded = Rounded(file, 4, DTYPE)
        for shape in shapes.values():
            rounded.write((chance.standard_normal(prod(shape), dtype=np.float32) * np.float32(DEVIATION)).tobytes())
    (folder / CONFIG_NAME).write_bytes(json_bytes(huggingface_config(model, 0, DTYPE)))
    (folder / TOKENIZER_NAME).write_bytes(json_bytes(byte_tokenizer()))


def begin(model: ModelConfig = SMOL) -> Begun:
    """Write it, and have a manifest made of it, in a folder that is gone afterwards. Raises LocalError."""
    with tempfile.TemporaryDirectory(prefix="ftnode-checkpoint-") as name:
        folder = Path(name)
        write_checkpoint(folder / "model", model)
        (folder / "text.txt").write_text("A text for a run that is never joined. " * 4000)
        command = [
            sys.executable, "-P", "-m", "ftnode.node.cli", "run", "init", str(folder / "run.toml"), "--from",
            str(folder / "model"), "--data", str(folder / "text.txt"), "--home", str(folder / "home"),
        ]  # fmt: skip
        began, output = time.perf_counter(), folder / "output.txt"
        with output.open("wb") as file:
            child = subprocess.Popen(command, stdout=file, stderr=file)
        peak_bytes = _ended(child, began + INIT_SECONDS)
        seconds = time.perf_counter() - began
        if child.returncode:
            said = output.read_text(errors="replace")[-300:].strip()
            raise LocalError(f"ftnode run init ended with {child.returncode}: {said}")
    return Begun(model.total_parameters(), seconds, peak_bytes)


def _ended(child: subprocess.Popen[bytes], until: float) -> int:
    """The most memory that it had, in bytes, as looked at until it ends. It is killed when it takes too long."""
    peak = 0
    while child.poll() is None:
        peak = max(peak, memory_of(child.pid, "VmHWM"))
        if time.perf_counter() > until:
            child.kill()
        time.sleep(LOOK_SECONDS)
    return peak
