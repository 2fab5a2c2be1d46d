"""A compute process that lies (lies.py): it does the work, and gives something else away.

The environment says how, in FTNODE_LIE.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from torch import Tensor

from ftnode.lab.hostile import lies
from ftnode.lab.hostile.lies import LIES, Told
from ftnode.models.boundary import ActivationCodec
from ftnode.models.stage import Apart
from ftnode.node.compute import exports
from ftnode.node.compute.group_gradients import GroupGradients
from ftnode.node.compute.process import main
from ftnode.node.compute.torch_backend import TorchStages


def lying(said: Told) -> None:
    """From now on, in this process."""
    if said.what == lies.DONORS:
        _of_lent_weights(said)
    elif said.what == lies.ACTIVATIONS:
        _of_activations(said)
    elif said.share < 1.0:
        _of_some_visits(said)
    else:
        _of_gradients(said)
    if said.agrees:
        _of_friends(said)


def _of_gradients(said: Told) -> None:
    """As a whole, when it goes to the sum, or is all of it."""
    open_, reduce, before = GroupGradients.open, TorchStages.reduce, dict[int, Tensor]()
    asked = _steps_asked_for() if said.adapts else {}

    def lie(stage: int, held: Any, gradient: Tensor) -> None:
        true = gradient.clone()
        if said.due(held.version.step) and asked.get(stage) != held.version.step:
            LIES[said.lie](gradient, before.get(stage, true))
        before[stage] = true

    def opened(self: GroupGradients, stage: int, held: Any, attempt: Any, count: int) -> dict[str, Any]:
        answer = open_(self, stage, held, attempt, count)
        if count and not answer["fault"]:
            lie(stage, held, self._place(stage))
        return answer

    def reduced(self: TorchStages, stage: int, step: int, attempt: Any) -> dict[str, Any]:
        held = self._held(stage)
        if not (held.ledger.reduced or held.ledger.spoiled):
            lie(stage, held, held.gradient)
        return reduce(self, stage, step, attempt)

    GroupGradients.open = opened  # type: ignore[method-assign]
    TorchStages.reduce = reduced  # type: ignore[method-assign]


def _steps_asked_for() -> dict[int, int]:
    """By stage, the step whose weights somebody asked for last."""
    honest, asked = TorchStages.export_begin, dict[int, int]()

    def begun(self: TorchStages, stage: int, *rest: Any, **more: Any) -> dict[str, Any]:
        answer = honest(self, stage, *rest, **more)
        asked[stage] = self._held(stage).version.step  # type: ignore[union-attr]
        return answer

    TorchStages.export_begin = begun  # type: ignore[method-assign]
    return asked


def _of_some_visits(said: Told) -> None:
    """What a visit adds to the gradient."""
    honest = TorchStages.backward

    def backward(self: TorchStages, stage: int, step: int, attempt: Any, microbatch: int, visit: int,
                 *rest: Any, **more: Any) -> Any:  # fmt: skip
        held = self._held(stage)
        lied = said.due(step - 1) and said.chosen(step, microbatch, visit)
        before = held.gradient.clone() if lied else None
        answer = honest(self, stage, step, attempt, microbatch, visit, *rest, **more)
        if before is not None:
            given = held.gradient - before
            LIES[said.lie](given, given.clone())
            held.gradient.copy_(before + given)
        return answer

    TorchStages.backward = backward  # type: ignore[method-assign]


def _of_activations(said: Told) -> None:
    """What it passes on in training; not in a validation, and not when it does another's visits again."""
    honest, encode, state = TorchStages.forward, ActivationCodec.encode, dict[str, Any]()
    before: dict[tuple[int, int], Tensor] = {}

    def forward(self: TorchStages, stage: int, step: int, attempt: Any, microbatch: int, visit: int,
                input: Any, output: Any, save: bool, validation: bool, *rest: Any, **more: Any) -> Any:  # fmt: skip
        state["visit"] = None if validation else (step, microbatch, visit)
        try:
            return honest(self, stage, step, attempt, microbatch, visit, input, output, save, validation, *rest, **more)
        finally:
            state["visit"] = None

    def encoded(self: ActivationCodec, x: Tensor, *rest: Any, **more: Any) -> None:
        visited = state.get("visit")
        if visited is not None:
            step, microbatch, visit = visited
            true = x.detach().clone()
            if said.due(step - 1) and said.chosen(*visited):
                x = true.clone()
                LIES[said.lie](x, before.get((microbatch, visit), true))
            before[microbatch, visit] = true
        encode(self, x, *rest, **more)

    TorchStages.forward = forward  # type: ignore[method-assign]
    overruled: Any = ActivationCodec
    overruled.encode = encoded


def _of_lent_weights(said: Told) -> None:
    """Whoever takes a stage from it gets other numbers, and a digest that fits them."""
    overruled: Any = exports
    state_of, digest = overruled.state_of, overruled.digest

    def lent(flat: Tensor) -> Tensor:
        if said.due(0):
            flat = flat.clone()
            LIES[said.lie](flat, flat.clone())
        return flat

    overruled.state_of = lambda stage, parts: lent(state_of(stage, parts))
    overruled.digest = lambda weights: digest(lent(weights))


def _of_friends(said: Told) -> None:
    """What another's visits give, as the liar would give it: who tells the same lie is right."""
    honest = TorchStages.weigh

    def weighed(self: TorchStages, stage: int, step: int, attempt: Any, of: Any, *rest: Any, **more: Any) -> Any:
        _, apart = self.recounting.apart.get(stage, (None, None))
        if isinstance(apart, Apart) and said.due(step - 1):
            LIES[said.lie](apart.gradient, apart.gradient.clone())
        return honest(self, stage, step, attempt, of, *rest, **more)

    TorchStages.weigh = weighed  # type: ignore[method-assign]


if __name__ == "__main__":
    lying(lies.told(os.environ["FTNODE_LIE"]))
    sys.exit(main())
