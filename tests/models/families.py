"""Models of the LLaMA family, tiny and with random weights, as transformers makes and saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

SIZES = {
    "vocab_size": 256, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("Llama", {"num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "llama-3": ("Llama", {"head_dim": 8, "rope_parameters": LLAMA3}),
    "smollm": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 1,
                         "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "yarn": ("Llama", {"head_dim": 16, "rope_parameters": YARN}),
    "mistral": ("Mistral", {"head_dim": 10, "sliding_window": None}),
    "qwen-2": ("Qwen2", {"tie_word_embeddings": True, "use_sliding_window": False,
                         "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
}  # fmt: skip


def made(name: str, dtype: torch.dtype = torch.float32, seed: int = 1) -> Any:
    """The model, whose biases and norms are random as well."""
    transformers = pytest.importorskip("transformers")
    family, more = FAMILIES[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**SIZES | more, attn_implementation="eager")
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model.to(dtype).eval()


def saved(name: str, folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """The model, written into `folder` by transformers. `options`: of save_pretrained."""
    model = made(name, dtype)
    model.save_pretrained(folder, **options)
    return model
