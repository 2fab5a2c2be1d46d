"""Names, shapes and places of the model's parameters. No torch here: who writes a checkpoint needs them without it.

A stage's weights are one flat buffer; the parameters lie in it one behind the other, matrices first. Names and
conventions are those of Hugging Face's `LlamaForCausalLM`. With a subspace, what writes into the residual stream has
`stream` rows only, and the embedding as many columns: the others are zero, or fixed.
"""

from __future__ import annotations

from math import prod

from ftnode.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
TABLES = (EMBEDDING, LM_HEAD)
"""A row for each token."""

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


def stage_shapes(config: ModelConfig, stages: int, stage: int) -> tuple[Shapes, Shapes]:
    """Matrices and norms of one of the stages 0..`stages`. Raises ValueError."""
    per_stage = config.layers_per_stage(stages)
    if not 0 <= stage <= stages:
        raise ValueError(f"there is no stage {stage}; stages are 0 to {stages}")
    return block_shapes(config, (stage - 1) * per_stage, per_stage) if stage else head_shapes(config)


def places(matrices: Shapes, norms: Shapes) -> tuple[Entries, int]:
    """Without gaps, in the order given, norms last; and how many numbers it is."""
    entries: Entries = {}
    offset = 0
    for name, shape in {**matrices, **norms}.items():
        entries[name] = (offset, shape)
        offset += prod(shape)
    return entries, offset
