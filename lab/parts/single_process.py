"""One torch process that trains the whole model on the same microbatches: what a swarm's throughput is held against.

Run as `python -m ftnode.lab.parts.single_process JSON`, with preset, threads and steps; prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ftnode.models.llama import BlockWeights, HeadWeights

WARM_UP_STEPS = 1


def measure(preset_name: str, threads: int, steps: int) -> dict[str, Any]:
    """Tokens and core-seconds per time and step, over `steps` steps of the preset's own batch after a warm-up."""
    import torch

    from ftnode.models import llama
    from ftnode.models.config import ModelConfig
    from ftnode.models.data import load_corpus, training_batch
    from ftnode.models.initial import initialise
    from ftnode.node.manifests.presets import preset

    torch.set_num_threads(threads)
    manifest = preset(preset_name)
    config, corpus = ModelConfig.of(manifest.model), load_corpus("")
    head_layout, body_layout = llama.head_layout(config), llama.block_layout(config, 0, config.layers)
    head_flat, body_flat = torch.empty(head_layout.size), torch.empty(body_layout.size)
    initialise(head_flat, head_layout, config, 1, 0)
    initialise(body_flat, body_layout, config, 1, 1)
    head = own_leaves(llama.head_weights(config, head_layout.of(head_flat)))
    blocks = [
        own_leaves(llama.block_weights(config, layer, body_layout.of(body_flat))) for layer in range(config.layers)
    ]
    groups: list[Any] = [head, *blocks]
    found = [getattr(group, field.name) for group in groups for field in fields(group)]
    parameters = [one for one in found if isinstance(one, torch.Tensor)]
    rope = llama.rotary(config, torch.device("cpu"))
    optimiser = torch.optim.Adam(parameters, lr=1e-3)
    microbatches, sequences = manifest.batch.microbatches, manifest.batch.sequences

    def step(number: int) -> None:
        for microbatch in range(microbatches):
            batch = training_batch(corpus, 1, number, microbatch, sequences, config.context)
            tokens = torch.from_numpy(batch).long()
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
    started, spent = time.perf_counter(), time.process_time()
    for number in range(WARM_UP_STEPS, WARM_UP_STEPS + steps):
        step(number)
    seconds, spent = time.perf_counter() - started, time.process_time() - spent
    tokens = steps * microbatches * sequences * config.context
    return {"threads": threads, "tokens_per_second": tokens / seconds, "core_seconds_per_step": spent / steps}


Weights = TypeVar("Weights", "HeadWeights", "BlockWeights")


def own_leaves(weights: Weights) -> Weights:
    """The same weights, each a leaf with memory of its own, as a module would have them."""
    for field in fields(weights):
        if hasattr(own := getattr(weights, field.name), "clone"):
            object.__setattr__(weights, field.name, own.clone().requires_grad_())
    return weights


def main() -> int:
    asked = json.loads(sys.argv[1])
    print(json.dumps(measure(asked["preset"], asked["threads"], asked["steps"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
