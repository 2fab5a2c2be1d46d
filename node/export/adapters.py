"""Adapters as PEFT reads them (Hugging Face's library of adapters): one file of tensors, and one of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from ftnode.models.config import ModelConfig
from ftnode.models.parameters import READ_TOGETHER, Entries, places, trained_shapes
from ftnode.models.rounding import EXPORT_DTYPES, Rounded
from ftnode.models.safetensors_header import safetensors_header
from ftnode.node.export.pieces import pass_on

ADAPTERS: Final = "adapter_model.safetensors"
ADAPTERS_CONFIG: Final = "adapter_config.json"
PREFIX: Final = "base_model.model."


def adapters_config(model: ModelConfig) -> dict[str, Any]:
    """What PEFT has to know. Which model they belong to it is told by whoever loads them."""
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": None, "r": model.lora,
        "lora_alpha": model.lora_alpha, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False,
        "inference_mode": True, "init_lora_weights": True, "modules_to_save": None, "use_rslora": False,
        "use_dora": False, "target_modules": [name.split(".")[1] for group in READ_TOGETHER for name in group],
    }  # fmt: skip


def write_adapters(
    stages: Mapping[int, BinaryIO], into: BinaryIO, model: ModelConfig, count: int, dtype: str = ""
) -> None:
    """All stages' in one file of safetensors, out of their flat weights. Raises OverflowError for a number that `dtype`
    does not hold."""
    dtype = dtype or model.precision
    entries: Entries = {}
    end = 0
    for stage in range(1, count + 1):
        found, size = places(*trained_shapes(model, count, stage))
        entries |= {f"{PREFIX}{name}": (end + offset, shape) for name, (offset, shape) in found.items()}
        end += size
    name_there, bytes_there = EXPORT_DTYPES[dtype]
    into.write(safetensors_header(entries, bytes_there, dtype=name_there))
    writes = into if dtype == model.precision else Rounded(into, model.number_bytes, dtype)
    for stage in range(1, count + 1):
        stages[stage].seek(0)
        _, size = places(*trained_shapes(model, count, stage))
        pass_on(stages[stage], writes, model.number_bytes * size)
