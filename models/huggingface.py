"""`config.json` of a checkpoint in Hugging Face's format: what our model makes of it, and how we write it.

Only what we compute as transformers does is taken. Everything else is refused with its name, for a model that runs on
with another activation or with a window that is left out would learn from wrong numbers. No torch here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

from ftnode.models.config import ModelConfig

JSON_BYTES_MAX: Final = 64 << 20
CONFIG_NAME: Final = "config.json"
FAMILIES: Final = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
"""model_type → architecture, of those that are taken."""
MISTRAL_WINDOW: Final = 4096
"""That transformers takes where a Mistral's config.json says nothing."""
NUMBERS: Final = ("float32", "bfloat16", "float16", "float64")
ROPE_KEYS: Final[dict[str, frozenset[str]]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset({"factor", "beta_fast", "beta_slow", "original_max_position_embeddings"}),
}
"""What each kind of RoPE scaling is made of, beside its base."""
ABOUT_ROPE: Final = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


class NoModel(ValueError):
    """Files that are not those of a model that we can run; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Described:
    """What config.json says. `model.context` is the longest sequence that it was made for."""

    architecture: str
    model: ModelConfig
    dtype: str
    """As the file has it; the tensors themselves may have another."""
    ends: tuple[int, ...]
    """Tokens that end a text."""


def read_config(folder: Path) -> Described:
    """Raises NoModel, OSError."""
    path = folder / CONFIG_NAME
    return described(read_json(path), str(path))


def described(found: dict[str, Any], source: str = CONFIG_NAME) -> Described:
    """What a parsed config.json says. Raises NoModel."""
    try:
        return _described(found, source)
    except (TypeError, OverflowError, AttributeError) as error:
        raise NoModel(f"{source} has a value that cannot be: {error}") from None


def _described(found: dict[str, Any], source: str) -> Described:
    """Raises NoModel; TypeError, OverflowError and AttributeError for values of another type or size."""
    kind = found.get("model_type")
    if kind not in FAMILIES:
        raise NoModel(f"{source} is of a {_shown(kind)}; taken are {', '.join(FAMILIES)}")
    if objection := _objection(found, str(kind)):
        raise NoModel(f"{source} has {objection}, which ftnode does not compute")
    heads = _whole(found, "num_attention_heads", source)
    alike = kind == "llama" and not found.get("num_key_value_heads")
    kv_heads = heads if alike else _whole(found, "num_key_value_heads", source)
    dim = _whole(found, "hidden_size", source)
    size = _whole(found, "head_dim", source) if found.get("head_dim") else 0
    ends = found.get("eos_token_id")
    try:
        model = ModelConfig(
            dim, heads, _whole(found, "num_hidden_layers", source),
            _whole(found, "max_position_embeddings", source), _whole(found, "intermediate_size", source),
            _whole(found, "vocab_size", source), norm_eps=_number(found.get("rms_norm_eps"), "rms_norm_eps", source),
            kv_heads=0 if kv_heads == heads else kv_heads, head_dim=0 if size * heads == dim else size,
            tied=found.get("tie_word_embeddings") is True, qkv_bias=kind == "qwen2",
            precision="float64" if dtype_name(found) == "float64" else "float32", **_rope(found, source),
        )  # fmt: skip
    except NoModel:
        raise
    except ValueError as error:
        raise NoModel(f"{source}: {error}") from None
    named = tuple(end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int)
    return Described(FAMILIES[str(kind)], model, dtype_name(found), named)


def dtype_name(found: dict[str, Any]) -> str:
    """Of the numbers, by either name; float32 where none is said."""
    return str(found.get("dtype") or found.get("torch_dtype") or "float32")


def _objection(found: dict[str, Any], kind: str) -> str:
    """The first thing that we do not compute, by its name, or nothing."""
    named = found.get("architectures")
    if named not in (None, [], [FAMILIES[kind]]):
        return f"architectures {_shown(named)}"
    if found.get("quantization_config"):
        return "a quantization_config"
    if dtype_name(found) not in NUMBERS:
        return f"numbers of type {_shown(dtype_name(found))}"
    if found.get("hidden_act", "silu") not in ("silu", "swish"):
        return f"hidden_act {_shown(found['hidden_act'])}"
    for name in ("attention_bias", "mlp_bias"):
        if found.get(name):
            return name
    window = found.get("sliding_window", MISTRAL_WINDOW)
    if kind == "mistral" and window is not None:
        return f"a sliding_window of {_shown(window)}"
    if kind == "qwen2" and (found.get("use_sliding_window") or "sliding_attention" in (found.get("layer_types") or ())):
        return "a sliding window in use"
    if found.get("pretraining_tp", 1) != 1:
        return "pretraining_tp"
    return next((name for name in ("num_local_experts", "num_experts") if found.get(name)), "")


def _rope(found: dict[str, Any], source: str) -> dict[str, Any]:
    """Fields of ModelConfig. transformers 5 writes `rope_parameters`, earlier ones `rope_theta` and `rope_scaling`."""
    said = found.get("rope_parameters") or found.get("rope_scaling") or {}
    if not isinstance(said, dict):
        raise NoModel(f"{source} has a rope_scaling that is none")
    theta = said.get("rope_theta", found.get("rope_theta", 10000.0))
    kind = said.get("rope_type", said.get("type", "default"))
    if kind not in ROPE_KEYS:
        raise NoModel(f"{source} has RoPE scaling {_shown(kind)}; taken are {', '.join(ROPE_KEYS)}")
    if said.get("partial_rotary_factor", found.get("partial_rotary_factor", 1.0)) != 1.0:
        raise NoModel(f"{source} has a partial_rotary_factor, which ftnode does not compute")
    more = {name for name, value in said.items() if value is not None} - ROPE_KEYS[kind] - ABOUT_ROPE
    if kind != "default" and more:
        raise NoModel(f"{source} has RoPE scaling {kind} with {min(map(str, more))}, which ftnode does not compute")
    fields: dict[str, Any] = {"rope_theta": _number(theta, "rope_theta", source)}
    if kind == "default":
        return fields
    fields |= {"rope_scaling": kind, "rope_factor": _number(said.get("factor"), "factor", source)}
    if kind == "linear":
        return fields
    original = said.get("original_max_position_embeddings", found.get("original_max_position_embeddings"))
    if type(original) is not int:
        raise NoModel(f"{source} has no original_max_position_embeddings")
    low, high = ("low_freq_factor", "high_freq_factor") if kind == "llama3" else ("beta_slow", "beta_fast")
    usual = (None, None) if kind == "llama3" else (1.0, 32.0)
    for ours, name, value in (("rope_low", low, usual[0]), ("rope_high", high, usual[1])):
        fields[ours] = _number(said.get(name) or value, name, source)
    return fields | {"rope_original": original}


def huggingface_config(
    model: ModelConfig, end: int, dtype: str, architecture: str = "", positions: int = 0
) -> dict[str, Any]:
    """`config.json` of our model. `end`: the token behind every document. `architecture`: of FAMILIES; without one that
    which fits. `positions`: the longest sequence that the model was made for; 0: its context.

    RoPE's base stands in it twice: transformers 5 reads `rope_parameters`, earlier ones `rope_theta` and
    `rope_scaling`; the same with the numbers' type.
    """
    architecture = architecture or ("Qwen2ForCausalLM" if model.qkv_bias else "LlamaForCausalLM")
    scaling = _rope_written(model)
    config = {
        "architectures": [architecture],
        "model_type": next(kind for kind, name in FAMILIES.items() if name == architecture),
        "vocab_size": model.vocabulary,
        "hidden_size": model.dim,
        "intermediate_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_heads,
        "head_dim": model.head_size,
        "max_position_embeddings": positions or model.context,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": scaling | {"rope_theta": model.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": model.tied,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": None,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if model.rope_scaling != "none":
        config["rope_scaling"] = scaling
    if architecture != "LlamaForCausalLM":
        config |= {"sliding_window": None, "use_sliding_window": False}
        del config["attention_bias"], config["mlp_bias"]
    return config


def _rope_written(model: ModelConfig) -> dict[str, Any]:
    if model.rope_scaling == "none":
        return {"rope_type": "default"}
    found: dict[str, Any] = {"rope_type": model.rope_scaling, "factor": model.rope_factor}
    if model.rope_scaling != "linear":
        low, high = (
            ("low_freq_factor", "high_freq_factor") if model.rope_scaling == "llama3" else ("beta_slow", "beta_fast")
        )
        found |= {low: model.rope_low, high: model.rope_high, "original_max_position_embeddings": model.rope_original}
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Raises NoModel, OSError."""
    with path.open("rb") as file:
        data = file.read(JSON_BYTES_MAX)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise NoModel(f"{path} is no JSON") from None
    if not isinstance(found, dict):
        raise NoModel(f"{path} is no JSON object")
    return found


def _whole(found: dict[str, Any], name: str, source: str) -> int:
    value = found.get(name)
    if type(value) is not int:
        raise NoModel(f"{source} has no {name}")
    return value


def _number(value: object, name: str, source: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise NoModel(f"{source} has no {name}")
    return float(value)


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
