"""One torch process that trains the whole model on the same microbatches: what a swarm's throughput is held against.

Run as `python -m ftnode.lab.parts.single_process JSON`, with preset, threads and steps; prints one JSON line. `model`
and `batch` change keys of the preset's sections, `device` and `products` say where and in what it multiplies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    import torch

    from ftnode.models.llama import BlockWeights, HeadWeights
    from ftnode.protocol.manifest.parse import Manifest

WARM_UP_STEPS = 1


def measure(
    manifest: Manifest, threads: int, steps: int, device: str = "cpu", products: str = "float32"
) -> dict[str, Any]:
    """Tokens and core-seconds per time and step, over `steps` steps of the manifest's batch after a warm-up."""
    import torch

    from ftnode.models import llama
    from ftnode.models.config import ModelConfig
    from ftnode.models.data import load_corpus, training_batch
    from ftnode.models.initial import DEVIATION
    from ftnode.models.low_copy import PRODUCTS

    torch.set_num_threads(threads)
    where, low = torch.device(device), PRODUCTS[products]
    config, corpus = ModelConfig.of(manifest.model), load_corpus("")
    head_layout, body_layout = llama.head_layout(config), llama.block_layout(config, 0, config.layers)
    # Drawn where they are used: of a large model the host would draw for a minute.
    head_flat, body_flat = (
        torch.empty(layout.size, device=where).normal_(std=DEVIATION) for layout in (head_layout, body_layout)
    )
    head, take = own_leaves(llama.head_weights(config, head_layout.of(head_flat))), body_layout.of(body_flat)
    blocks = [own_leaves(llama.block_weights(config, layer, take)) for layer in range(config.layers)]
    groups: list[Any] = [head, *blocks]
    found = (getattr(group, field.name) for group in groups for field in fields(group))
    parameters = [leaf for leaf in found if isinstance(leaf, torch.Tensor)]
    rope = llama.rotary(config, where)
    optimiser = torch.optim.Adam(parameters, lr=1e-3, fused=where.type == "cuda")
    microbatches, sequences = manifest.batch.microbatches, manifest.batch.sequences

    def step(number: int) -> None:
        for microbatch in range(microbatches):
            batch = training_batch(corpus, 1, number, microbatch, sequences, config.context)
            tokens = torch.from_numpy(batch).long().to(where)
            with torch.autocast(where.type, low or torch.bfloat16, enabled=low is not None):
                x_btd = llama.embed(tokens[:, :-1], head)
                for block in blocks:
                    x_btd = llama.block(x_btd, block, rope, config)
                loss = llama.mean_loss(llama.logits(x_btd, head, config), tokens[:, 1:])
            (loss / microbatches).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=False)

    for number in range(WARM_UP_STEPS):
        step(number)
    _wait_for(where)
    started, spent = time.perf_counter(), time.process_time()
    for number in range(WARM_UP_STEPS, WARM_UP_STEPS + steps):
        step(number)
    _wait_for(where)
    seconds, spent = time.perf_counter() - started, time.process_time() - spent
    tokens = steps * microbatches * sequences * config.context
    return {"threads": threads, "tokens_per_second": tokens / seconds, "core_seconds_per_step": spent / steps}


def _wait_for(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


Weights = TypeVar("Weights", "HeadWeights", "BlockWeights")


def own_leaves(weights: Weights) -> Weights:
    """The same weights, each a leaf with memory of its own, as a module would have them. What the model does not have
    stays None."""
    for field in fields(weights):
        if hasattr(own := getattr(weights, field.name), "clone"):
            object.__setattr__(weights, field.name, own.clone().requires_grad_())
    return weights


def in_a_process(asked: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What `main` prints. Raises UserError: 70 when it fails, 75 when it takes too long."""
    argv = [sys.executable, "-m", "ftnode.lab.parts.single_process", json.dumps(asked)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the single process took longer than {seconds:.0f} s; measure on a quieter machine", 75
        ) from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise UserError(f"the single process failed; it said: {said}", 70)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    from ftnode.node.manifests.presets import preset

    asked = json.loads(sys.argv[1])
    start = preset(asked["preset"])
    model, batch = replace(start.model, **asked.get("model", {})), replace(start.batch, **asked.get("batch", {}))
    where = {name: asked[name] for name in ("device", "products") if name in asked}
    print(json.dumps(measure(replace(start, model=model, batch=batch), asked["threads"], asked["steps"], **where)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
