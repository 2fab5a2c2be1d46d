"""The transformer: a block, an embedding, a language-model head, as functions of weights.

B sequences, T positions, D dim, H heads, G heads of keys and of values, K numbers per head, M = H·K (D, unless heads
have a size of their own), F hidden, V vocabulary, E = (H + 2·G)·K (q, k and v), S the coordinates of the residual
stream that blocks write to: D, or those of the subspace. `fixed_bty` are the other D - S. `x_btd` has shape [B, T, D].
Names and conventions of the weights are those of Hugging Face's `LlamaForCausalLM`, with which
tests/models/test_llama.py and test_families.py compare the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ftnode.models.config import ModelConfig
from ftnode.models.fixed_embedding import fixed_table
from ftnode.models.parameters import (
    EMBEDDING,
    FINAL_NORM,
    LM_HEAD,
    NARROWING,
    READ_TOGETHER,
    WIDENING,
    Shape,
    adapter_shapes,
    block_shapes,
    head_shapes,
    places,
)
from ftnode.models.rope import frequencies, stretch
from ftnode.models.tensors import Layout

RESIDUAL_OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What writes into the residual stream; initialised smaller by √(2·layers), as GPT-2 does."""


def dtype_of(config: ModelConfig) -> torch.dtype:
    """Of weights, gradients, moments and activations. Products may be of another: that of the matrices in them."""
    return {"float32": torch.float32, "float64": torch.float64}[config.precision]


def head_layout(config: ModelConfig) -> Layout:
    return Layout(*places(*head_shapes(config)))


def block_layout(config: ModelConfig, first: int, count: int) -> Layout:
    """Of the layers first..first+count-1."""
    return Layout(*places(*block_shapes(config, first, count)))


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """`lm_head_vd` is `embedding_vs` itself where they are tied, so that one gradient adds up both uses."""

    embedding_vs: Tensor
    norm_d: Tensor
    lm_head_vd: Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is added to one product with n matrices that read the same: `scale` · B·(A·x) of each (Hu et al. 2021).

    r is the rank; [n·r, reads], and of each matrix [gives, r].
    """

    narrow: Tensor
    wide: tuple[Tensor, ...]
    scale: float


@dataclass(frozen=True, slots=True)
class BlockWeights:
    attention_norm_d: Tensor
    qkv_ed: Tensor
    output_sm: Tensor
    mlp_norm_d: Tensor
    gate_up_2fd: Tensor
    down_sf: Tensor
    qkv_bias_e: Tensor | None = None
    adapters: tuple[Adapter | None, ...] = (None, None, None, None)
    """Of the four products, in the order of READ_TOGETHER."""


Take = Callable[[str, Shape], Tensor]
"""A tensor by name; with a larger shape, together with the neighbours that it needs."""


def head_weights(config: ModelConfig, take: Take) -> HeadWeights:
    matrices, norms = head_shapes(config)
    named = {name: take(name, shape) for name, shape in {**matrices, **norms}.items()}
    return HeadWeights(named[EMBEDDING], named[FINAL_NORM], named.get(LM_HEAD, named[EMBEDDING]))


def block_weights(config: ModelConfig, layer: int, take: Take) -> BlockWeights:
    prefix, d, e = f"model.layers.{layer}", config.dim, config.mixed + 2 * config.keys
    return BlockWeights(
        attention_norm_d=take(f"{prefix}.input_layernorm.weight", (d,)),
        qkv_ed=take(f"{prefix}.self_attn.q_proj.weight", (e, d)),
        output_sm=take(f"{prefix}.self_attn.o_proj.weight", (config.stream, config.mixed)),
        mlp_norm_d=take(f"{prefix}.post_attention_layernorm.weight", (d,)),
        gate_up_2fd=take(f"{prefix}.mlp.gate_proj.weight", (2 * config.hidden, d)),
        down_sf=take(f"{prefix}.mlp.down_proj.weight", (config.stream, config.hidden)),
        qkv_bias_e=take(f"{prefix}.self_attn.q_proj.bias", (e,)) if config.qkv_bias else None,
        adapters=_adapters(config, layer, take) if config.lora else (None, None, None, None),
    )


def _adapters(config: ModelConfig, layer: int, take: Take) -> tuple[Adapter, ...]:
    shapes, found = adapter_shapes(config, layer, 1), []
    for group in READ_TOGETHER:
        names = [f"model.layers.{layer}.{name}" for name in group]
        first = f"{names[0]}.{NARROWING}.weight"
        narrow = take(first, (len(names) * config.lora, shapes[first][1]))
        wide = tuple(take(name, shapes[name]) for name in (f"{name}.{WIDENING}.weight" for name in names))
        found.append(Adapter(narrow, wide, config.lora_alpha / config.lora))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Rotary:
    """RoPE (Su et al. 2021) in the half-split convention: number i of a head turns with number i + K/2."""

    cos_t1k: Tensor
    sin_t1k: Tensor
    """Its first half negated, so that a roll replaces `rotate_half`."""


def rotary(config: ModelConfig, device: torch.device) -> Rotary:
    dtype = dtype_of(config)
    angle_tk = torch.arange(config.context, dtype=dtype)[:, None] * frequencies(config, dtype)
    cos, sin = (turn * stretch(config) for turn in (angle_tk.cos(), angle_tk.sin()))
    cos_tk, sin_tk = torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)
    return Rotary(cos_tk[:, None].to(device), sin_tk[:, None].to(device))


def rms_norm(x_btd: Tensor, weight_d: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x_btd.to(weight_d.dtype), weight_d.shape, weight_d, eps)


def product(x: Tensor, weights: Tensor, adapter: Adapter | None, bias: Tensor | None = None) -> Tensor:
    """[…, reads] → […, gives]."""
    y = F.linear(x, weights, bias)
    if adapter is None:
        return y
    parts = F.linear(x, adapter.narrow).chunk(len(adapter.wide), dim=-1)
    return y + adapter.scale * torch.cat([F.linear(part, wide) for part, wide in zip(parts, adapter.wide)], dim=-1)


def attention(x_btd: Tensor, weights: BlockWeights, rope: Rotary, config: ModelConfig) -> Tensor:
    """Causal self-attention over all T positions, [B, T, S]; RoPE on q and k together. Query heads that share keys and
    values are neighbours: head h reads those of h // (H / G)."""
    b, t, _ = x_btd.shape
    heads, groups, size = config.heads, config.key_heads, config.head_size
    of_qkv, of_output, _, _ = weights.adapters
    qkv_bte = product(x_btd, weights.qkv_ed, of_qkv, weights.qkv_bias_e)
    qkv_btek = qkv_bte.view(b, t, heads + 2 * groups, size)
    # Of parts that are split the gradient is put together in one pass; slices would add up one full of zeros each.
    qk_btnk, v_btgk = torch.split(qkv_btek, [heads + groups, groups], dim=2)
    turned_btnk = qk_btnk * rope.cos_t1k[:t] + qk_btnk.roll(size // 2, dims=-1) * rope.sin_t1k[:t]
    q_bhtk, k_bgtk = torch.split(turned_btnk.to(v_btgk.dtype).transpose(1, 2), [heads, groups], dim=1)
    mixed_bhtk = F.scaled_dot_product_attention(
        q_bhtk,
        k_bgtk,
        v_btgk.transpose(1, 2),
        is_causal=True,
        enable_gqa=groups != heads,
    )
    return product(mixed_bhtk.transpose(1, 2).reshape(b, t, config.mixed), weights.output_sm, of_output)


def swiglu(x_btd: Tensor, weights: BlockWeights) -> Tensor:
    _, _, of_gate_up, of_down = weights.adapters
    gate_btf, up_btf = product(x_btd, weights.gate_up_2fd, of_gate_up).chunk(2, dim=-1)
    return product(F.silu(gate_btf) * up_btf, weights.down_sf, of_down)


@lru_cache(maxsize=2)
def fixed_on(config: ModelConfig, device: torch.device) -> Tensor:
    """What is fixed of each token, [V, D - S], once for all stages on a device."""
    return torch.from_numpy(fixed_table(config).copy()).to(device)


def whole(x_bts: Tensor, fixed_bty: Tensor | None) -> Tensor:
    """The residual stream [B, T, D] as it is read."""
    return x_bts if fixed_bty is None else torch.cat((x_bts, fixed_bty), dim=-1)


def block(
    x_bts: Tensor, weights: BlockWeights, rope: Rotary, config: ModelConfig, fixed_bty: Tensor | None = None
) -> Tensor:
    x_btd = rms_norm(whole(x_bts, fixed_bty), weights.attention_norm_d, config.norm_eps)
    x_bts = x_bts + attention(x_btd.to(weights.qkv_ed.dtype), weights, rope, config)
    x_btd = rms_norm(whole(x_bts, fixed_bty), weights.mlp_norm_d, config.norm_eps)
    return x_bts + swiglu(x_btd.to(weights.gate_up_2fd.dtype), weights)


def embed(tokens_bt: Tensor, weights: HeadWeights) -> Tensor:
    """[B, T, S]."""
    return F.embedding(tokens_bt, weights.embedding_vs)


def add_embedding_gradient(into_vs: Tensor, tokens_bt: Tensor, gradient_bts: Tensor) -> None:
    """into += the gradient of `embed`, in memory for the tokens at hand, not for the vocabulary.

    Equal tokens are added up first, in their order, so that the sum is the same each time on a card too.
    """
    tokens_n, gradient_ns = tokens_bt.flatten(), gradient_bts.flatten(0, 1)
    ordered_n, order_n = tokens_n.sort(stable=True)
    first_n = torch.cat((ordered_n.new_zeros(1), ordered_n[1:] != ordered_n[:-1]))
    place_n = torch.empty_like(tokens_n).scatter_(0, order_n, first_n.cumsum(0))
    summed_ns = torch.ops.aten.embedding_dense_backward(gradient_ns, place_n, len(tokens_n), -1, False)
    # Places beyond the last token are added to row 0, as zeros.
    token_of_n = torch.zeros_like(tokens_n).scatter_(0, place_n, tokens_n)
    into_vs.index_add_(0, token_of_n, summed_ns)


def hidden(x_bts: Tensor, weights: HeadWeights, config: ModelConfig, fixed_bty: Tensor | None = None) -> Tensor:
    """What the language-model head reads, [B, T, D]."""
    return rms_norm(whole(x_bts, fixed_bty), weights.norm_d, config.norm_eps)


def logits(x_bts: Tensor, weights: HeadWeights, config: ModelConfig, fixed_bty: Tensor | None = None) -> Tensor:
    """[B, T, V]. Of a large vocabulary, for few positions only; training takes chunked_loss.py."""
    return F.linear(hidden(x_bts, weights, config, fixed_bty), weights.lm_head_vd)


def mean_loss(logits_btv: Tensor, targets_bt: Tensor) -> Tensor:
    """Cross-entropy in nats per token."""
    return F.cross_entropy(logits_btv.flatten(0, 1), targets_bt.flatten())
