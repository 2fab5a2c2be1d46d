"""Names, shapes and places of the model's parameters. No torch here: who writes a checkpoint needs them without it.

A stage's weights are one flat buffer; the parameters lie in it one behind the other, matrices first. Names and
conventions are those of Hugging Face's `LlamaForCausalLM`, and of PEFT for adapters. With a subspace, what writes into
the residual stream has `stream` rows only, and the embedding as many columns: the others are zero, or fixed.

A run that goes on from a model may train a part of it only. What is trained is the state of a stage, which travels and
is saved; what is frozen stays as it was when the run began, and everybody reads it from there.
"""

from __future__ import annotations

from math import prod

from ftnode.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LAYERS = "model.layers."
LM_HEAD = "lm_head.weight"
TABLES = (EMBEDDING, LM_HEAD)
"""A row for each token."""
NARROWING, WIDENING = "lora_A", "lora_B"
"""An adapter's matrices: y = W·x + lora_alpha / lora · B·(A·x)."""
READ_TOGETHER = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""The matrices of a block, those together that read the same."""

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
Entries = dict[str, tuple[int, Shape]]
"""Tensor → (offset in numbers, shape)."""


def head_shapes(config: ModelConfig) -> tuple[Shapes, Shapes]:
    """Matrices and norms of the head. A tied embedding is one parameter, which is used twice."""
    embedding, table = (config.vocabulary, config.stream), (config.vocabulary, config.dim)
    tables: Shapes = {EMBEDDING: embedding} if config.tied else {EMBEDDING: embedding, LM_HEAD: table}
    return tables, {FINAL_NORM: (config.dim,)}


def block_shapes(config: ModelConfig, first: int, count: int) -> tuple[Shapes, Shapes]:
    """Of the layers first..first+count-1; biases are among the norms. Only the names depend on `first`. q, k, v are
    neighbours, and so are gate and up, and the biases."""
    d, s, f = config.dim, config.stream, config.hidden
    outputs = {"q_proj": config.mixed, "k_proj": config.keys, "v_proj": config.keys}
    matrices: Shapes = {}
    norms: Shapes = {}
    for layer in range(first, first + count):
        prefix = f"model.layers.{layer}"
        for name, numbers in outputs.items():
            matrices[f"{prefix}.self_attn.{name}.weight"] = (numbers, d)
        matrices[f"{prefix}.self_attn.o_proj.weight"] = (s, config.mixed)
        matrices[f"{prefix}.mlp.gate_proj.weight"] = (f, d)
        matrices[f"{prefix}.mlp.up_proj.weight"] = (f, d)
        matrices[f"{prefix}.mlp.down_proj.weight"] = (s, f)
        norms[f"{prefix}.input_layernorm.weight"] = (d,)
        norms[f"{prefix}.post_attention_layernorm.weight"] = (d,)
        if config.qkv_bias:
            norms |= {f"{prefix}.self_attn.{name}.bias": (numbers,) for name, numbers in outputs.items()}
    return matrices, norms


def adapter_shapes(config: ModelConfig, first: int, count: int) -> Shapes:
    """Of the layers first..first+count-1: an adapter for each matrix. The first halves of those of q, k and v are
    neighbours, since they read the same; so are those of gate and up."""
    matrices, _ = block_shapes(config, first, count)
    found: Shapes = {}
    for layer in range(first, first + count):
        for group in READ_TOGETHER:
            prefixes = [f"model.layers.{layer}.{name}" for name in group]
            shapes = {prefix: matrices[f"{prefix}.weight"] for prefix in prefixes}
            found |= {f"{prefix}.{NARROWING}.weight": (config.lora, reads) for prefix, (_, reads) in shapes.items()}
            found |= {f"{prefix}.{WIDENING}.weight": (gives, config.lora) for prefix, (gives, _) in shapes.items()}
    return found


def stage_shapes(config: ModelConfig, stages: int, stage: int) -> tuple[Shapes, Shapes]:
    """Matrices and norms of one of the stages 0..`stages`, trained or not. Raises ValueError."""
    layers = stage_layers(config, stages, stage)
    return block_shapes(config, layers.start, len(layers)) if layers else head_shapes(config)


def trained_shapes(config: ModelConfig, stages: int, stage: int) -> tuple[Shapes, Shapes]:
    """Matrices and norms of a stage that are trained, which may be none: its state. Raises ValueError."""
    if config.lora:
        layers = stage_layers(config, stages, stage)
        return adapter_shapes(config, layers.start, len(layers)) if layers else {}, {}
    matrices, norms = stage_shapes(config, stages, stage)
    return _those(matrices, config, trained=True), _those(norms, config, trained=True)


def frozen_shapes(config: ModelConfig, stages: int, stage: int) -> tuple[Shapes, Shapes]:
    """Matrices and norms of a stage that stay as they were when the run began. Raises ValueError."""
    matrices, norms = stage_shapes(config, stages, stage)
    return _those(matrices, config, trained=False), _those(norms, config, trained=False)


def stage_layers(config: ModelConfig, stages: int, stage: int) -> range:
    """The layers of one of the stages 0..`stages`; the head has none. Raises ValueError."""
    per_stage = config.layers_per_stage(stages)
    if not 0 <= stage <= stages:
        raise ValueError(f"there is no stage {stage}; stages are 0 to {stages}")
    return range((stage - 1) * per_stage, stage * per_stage) if stage else range(0)


def _those(shapes: Shapes, config: ModelConfig, trained: bool) -> Shapes:
    return {name: shape for name, shape in shapes.items() if is_trained(config, name) is trained}


def is_trained(config: ModelConfig, name: str) -> bool:
    """Whether this parameter of the model changes. Of the head only the norm does, unless all is trained."""
    if config.lora:
        return False
    if config.last_layers:
        first = config.layers - config.last_layers
        return name == FINAL_NORM or (name.startswith(LAYERS) and int(name.split(".")[2]) >= first)
    return config.train == "all" or "norm" in name or ".mlp." in name


def places(matrices: Shapes, norms: Shapes) -> tuple[Entries, int]:
    """Without gaps, in the order given, norms last; and how many numbers it is."""
    entries: Entries = {}
    offset = 0
    for name, shape in {**matrices, **norms}.items():
        entries[name] = (offset, shape)
        offset += prod(shape)
    return entries, offset
