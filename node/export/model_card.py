"""Where an exported model comes from: `README.md` for people, `provenance.json` for programs.

What one peer says is said to be its word; its texts appear without anything that Markdown would obey.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any, Final

from ftnode.models.config import ModelConfig
from ftnode.node.export.checkpoint import checkpoint_bytes, without
from ftnode.node.export.client import TakenModel
from ftnode.node.home.size import size_text
from ftnode.node.watch.credit_table import OTHERS, shares
from ftnode.node.watch.status import RecoveryRow, SwarmStatus
from ftnode.node.watch.status_table import spoken_rung
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.wire.frames import clean_reason
from ftnode.protocol.words.types import names_of

RECOVERIES_SHOWN: Final = 100
MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$])")

CARD: Final = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- ftnode
---

# {name}

A LLaMA-style language model of {parameters:,} parameters, trained by volunteers with ftnode {version}: peers held the
stages of a pipeline, and rebuilt those that were lost.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{folder}")
tokenizer = AutoTokenizer.from_pretrained("{folder}")
```

| | |
|---|---|
| run | `{run}` ({name}) |
| step | {step} of {steps} |
| commit | `{commit}` |
| tokens of these steps | {tokens:,} |
| training loss | {loss} |
| validation loss | {validation} |
| model | {layers} layers of {dim}, {heads} heads, feed-forward {hidden}, context {context}, vocabulary {vocabulary} |
| numbers | {precision} |
| data | {data}, sha256 `{corpus}` |
{left_out}
Run, step and commit are equal at all holders that gave their weights. Losses (nats per token), the list of rebuilt
stages and that of who trained it are as peer `{told_by}` told them.

## Stages

The change is the number of the one, of who holds what, since which a stage is with its holders; the hash is BLAKE2b of
its weights.

| stage | change | given by | hash |
|---|---|---|---|
{stages}

## Rebuilt stages

{recoveries}

## Who trained it

{credits}
"""


def model_card(manifest: Manifest, model: TakenModel, folder: str) -> str:
    """`folder`: the name under which the card's example loads the model."""
    shape, status = without(manifest, model.left_out).model, model.status
    left_out = left_out_text(manifest, model.left_out)
    return CARD.format(
        name=manifest.run.name,
        left_out=f"\n{left_out[0].upper()}{left_out[1:]}.\n" if left_out else "",
        parameters=ModelConfig.of(shape).total_parameters(),
        version=version("ftnode"),
        folder=folder,
        run=manifest.run_id,
        step=model.step,
        steps=manifest.run.steps,
        commit=model.commit,
        tokens=model.step * manifest.tokens_per_step,
        loss=figure(status.loss),
        validation=validated(status),
        dim=shape.dim,
        layers=shape.layers,
        heads=shape.heads,
        hidden=shape.hidden,
        context=shape.context,
        vocabulary=shape.vocabulary,
        precision=shape.precision,
        data=manifest.data.kind,
        corpus=manifest.data.sha256,
        told_by=model.told_by,
        stages="\n".join(
            f"| {taken.stage or 'head'} | {taken.epoch} | `{taken.peer}` | `{taken.digest}` |" for taken in model.stages
        ),
        recoveries=recoveries(status.recoveries),
        credits=givers(status),
    )


def left_out_text(manifest: Manifest, stages: tuple[int, ...]) -> str:
    """One line for people; empty when the model has all stages."""
    if not stages:
        return ""
    have, they = ("has", "it") if len(stages) == 1 else ("have", "them")
    layers = without(manifest, stages).model.layers
    return (
        f"{names_of(stages)} {have} no holder, and the run trains without {they}: the model has {layers} of "
        f"{manifest.model.layers} layers"
    )


def recoveries(rows: tuple[RecoveryRow, ...]) -> str:
    if not rows:
        return "None that the peer knew of.\n"
    lines = [
        "| stage | step | how | change | validation loss before | after | reason |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.stage} | {row.step} | {plain(spoken_rung(row.rung))} | {row.epoch} | "
        f"{figure(row.validation_before)} | {figure(row.validation_after)} | {plain(row.reason)} |"
        for row in rows[-RECOVERIES_SHOWN:]
    ]
    if len(rows) > RECOVERIES_SHOWN:
        lines.append(f"\n{len(rows) - RECOVERIES_SHOWN} earlier ones are in `provenance.json`.")
    return "\n".join(lines)


def givers(status: SwarmStatus) -> str:
    """What each volunteer gave, as the run counted it; a name only where its own key signed it."""
    if not status.credits:
        return "Not known to the peer.\n"
    lines = [
        "Visits are passes of a microbatch through a stage, forward and backward, "
        f"in steps 1 to {status.credits_step:,}.",
        "Hours are those of steps in which the volunteer held a stage.",
        "Relayed are tensors that it carried between others who could not reach each other.",
        "",
        "| peer | visits | share | hours | stages brought back | relayed | name |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {plain(row.peer) or OTHERS} | {row.visits:,} | {share:.1%} | {row.seconds / 3600:,.2f} | "
        f"{row.rebuilt or ''} | {size_text(row.relayed_bytes) if row.relayed_bytes else ''} | {plain(row.name)} |"
        for row, share in zip(status.credits, shares(status.credits))
    ]
    return "\n".join(lines)


def provenance(manifest: Manifest, model: TakenModel) -> dict[str, Any]:
    """The same for programs."""
    status, kept = model.status, without(manifest, model.left_out)
    return {
        "format": 1,
        "ftnode": version("ftnode"),
        "run": manifest.run_id,
        "name": manifest.run.name,
        "step": model.step,
        "steps": manifest.run.steps,
        "commit": model.commit,
        "parameters": ModelConfig.of(kept.model).total_parameters(),
        "bytes": checkpoint_bytes(kept),
        "left_out": list(model.left_out),
        "stages": [
            {"stage": taken.stage, "epoch": taken.epoch, "peer": taken.peer, "digest": taken.digest}
            for taken in model.stages
        ],
        "told_by": model.told_by,
        "told_at_step": status.step,
        "loss": status.loss,
        "validation": status.validation,
        "validation_step": status.validation_step,
        "recoveries": [
            {
                "stage": row.stage, "step": row.step, "rung": row.rung, "epoch": row.epoch, "lost": row.lost,
                "newcomer": row.newcomer, "reason": row.reason, "validation_before": row.validation_before,
                "validation_after": row.validation_after,
            }
            for row in status.recoveries
        ],
        "credits_step": status.credits_step,
        "credits": [
            {
                "peer": row.peer, "visits": row.visits, "seconds": row.seconds, "rebuilt": row.rebuilt,
                "relayed_bytes": row.relayed_bytes, "name": row.name,
            }
            for row in status.credits
        ],
    }  # fmt: skip


def plain(text: str) -> str:
    """A peer's words in one line, that Markdown shows as they are."""
    return MARKDOWN.sub(r"\\\1", clean_reason(" ".join(text[:400].split())))


def validated(status: SwarmStatus) -> str:
    """The newest validation that is known, and the step of its weights, which may be older than those of the model."""
    step = status.validation_step
    return figure(status.validation) if step is None else f"{figure(status.validation)}, of step {step}"


def figure(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"
