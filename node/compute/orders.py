"""What a node orders of its compute process, and what it may do with what that can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.owner.join_options import JoinConfig, shards_folder
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.effects import Apply


def devices_text(names: Sequence[str]) -> str:
    """`2 x H200` for two of a kind."""
    counted = {name: names.count(name) for name in names}
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items())


def may_hold_head(manifest: Manifest, ready: dict[str, Any]) -> tuple[bool, str]:
    """The head draws the batches, so its holder must have the run's corpus."""
    corpus = str(ready["corpus"])
    if str(ready["device"]).startswith("paced") or (corpus and corpus == manifest.data.sha256):
        return True, ""
    return False, str(ready["corpus_reason"] or f"this corpus is {corpus[:8]}, the run's is {manifest.data.sha256[:8]}")


def compute_configs(config: JoinConfig) -> tuple[ComputeConfig, ...]:
    """What the compute process of each device is told. Processes of a node share its threads, and those that compute
    on the processor its memory."""
    whole, devices = compute_config(config), config.devices
    number = len(devices)
    threads = max(1, whole.threads // number)
    if config.on_card:
        return tuple(replace(whole, device=device, threads=threads) for device in devices)
    share, amount = whole.memory_share / number, whole.memory_bytes // number
    return tuple(
        replace(whole, device=device, threads=threads, memory_share=share, memory_bytes=amount) for device in devices
    )


def compute_config(config: JoinConfig) -> ComputeConfig:
    """What a compute process is told, from the manifest and this node's options, if it is the only one."""
    manifest = config.manifest
    model, optimiser, pipeline = manifest.model, manifest.optimiser, manifest.pipeline
    forward, backward = manifest.boundary_encodings
    return ComputeConfig(
        optimiser=optimiser.kind, matrix_learning_rate=optimiser.matrix_learning_rate, momentum=optimiser.momentum,
        dim=model.dim, heads=model.heads, layers=model.layers, context=model.context, hidden=model.hidden,
        stages=pipeline.stages, microbatches=manifest.batch.microbatches, sequences=manifest.batch.sequences,
        steps=manifest.run.steps, learning_rate=optimiser.learning_rate, slot_bytes=manifest.boundary_bytes.largest,
        slots=manifest.slots(config.hold), vocabulary=model.vocabulary, rope_theta=model.rope_theta,
        norm_eps=model.norm_eps, subspace=model.subspace, kv_heads=model.kv_heads, head_dim=model.head_dim,
        tied=model.tied, qkv_bias=model.qkv_bias, rope_scaling=model.rope_scaling, rope_factor=model.rope_factor,
        rope_original=model.rope_original, rope_low=model.rope_low, rope_high=model.rope_high,
        train=model.train, lora=model.lora, lora_alpha=model.lora_alpha, seed=manifest.run.seed,
        beta1=optimiser.betas[0], beta2=optimiser.betas[1],
        eps=optimiser.epsilon, weight_decay=optimiser.weight_decay, warmup_steps=optimiser.warmup_steps,
        decay=optimiser.decay, minimum_factor=optimiser.minimum_factor, clip=optimiser.clip,
        precision=model.precision, boundary=forward, boundary_gradients=backward, data=data_place(config),
        data_kind=manifest.data.kind, corpus=manifest.data.sha256, device=config.devices[0], threads=config.threads,
        live_activations=pipeline.live_activations, digest_every=config.hash_every, backend=config.compute_backend,
        forward_seconds=config.forward_seconds, backward_seconds=config.backward_seconds,
        memory_share=config.limits.memory.share, memory_bytes=config.limits.memory.amount, nice=config.limits.nice,
        checks=manifest.trust.checks > 0, compiled=config.compiled,
    )  # fmt: skip


def data_place(config: JoinConfig) -> str:
    """Where the compute process finds the corpus; empty: Python's standard library."""
    data = config.manifest.data
    return str(shards_folder(config.home, data.sha256) if data.kind == "shards" else config.data or "")


def apply_fields(effect: Apply) -> dict[str, Any]:
    """Of the command that carries out an update."""
    version = effect.version
    return {
        "stage": effect.stage, "step": version.step, "commit": version.commit, "attempt": list(effect.attempt),
        "skipped": effect.skipped,
    }  # fmt: skip
