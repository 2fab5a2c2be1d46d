"""In which precision a device computes best: what the matrix units of a card multiply, with sums in float32.

Weights, gradients and moments stay in the model's precision whatever is answered here.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import torch

BFLOAT16_SINCE: Final = (8, 0)
"""CUDA's compute capability: Ampere multiplies bfloat16 (CUDA C++ Programming Guide, arithmetic throughput)."""
FLOAT16_SINCE: Final = (7, 0)
"""Volta and Turing multiply float16 in tensor cores. Before them, most cards are slower in it than in float32."""


class CudaRuntime(Protocol):
    """What we ask of `torch.cuda`. ROCm builds of torch answer by the same names."""

    def get_device_capability(self, device: Any) -> tuple[int, int]: ...
    def is_bf16_supported(self, including_emulation: bool) -> bool: ...


def precision_of(device: str | torch.device, runtime: CudaRuntime | None = None, rocm: bool | None = None) -> str:
    """bfloat16, float16 (its gradients want a loss scale) or float32. The CPU always has float32.

    `runtime`, `rocm`: torch's own by default; `rocm` says that the build is for AMD's cards, whose numbers of
    generations mean something else. Raises RuntimeError or AssertionError, as torch, for a card that is not there.
    """
    where = torch.device(device)
    if where.type != "cuda":
        return "float32"
    cuda: CudaRuntime = torch.cuda if runtime is None else runtime
    if torch.version.hip is not None if rocm is None else rocm:
        return "bfloat16" if cuda.is_bf16_supported(including_emulation=False) else "float16"
    capability = cuda.get_device_capability(where)
    if capability >= BFLOAT16_SINCE:
        return "bfloat16"
    return "float16" if capability >= FLOAT16_SINCE else "float32"
