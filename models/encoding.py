"""How a stage's numbers are packed for a peer shadow: a copy in a peer's memory, so its size is its price.

`raw` keeps all bits, `bfloat16` rounds to the nearest even, `int8` takes blocks of 256 numbers with one float32 scale
each (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021; linear here, for weights rather than
moments: an Adam's second moment that rounds to zero would make its next update enormous). All little-endian. The last
two make the same bytes of float64 numbers as of their nearest float32 ones.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ftnode.models.encoded_size import BLOCK_NUMBERS, blocks, encoded_bytes
from ftnode.models.tensors import as_bytes, is_finite

LEVELS: Final = 127


def encode(flat: Tensor, encoding: str) -> bytes:
    """The flat float32 or float64 tensor [n], on any device, as `encoded_bytes(n, encoding, itemsize)` bytes.

    int8: the scales of all blocks, then the numbers. Raises ValueError for another shape or dtype, an unknown encoding,
    or a number that is not finite, which no scale could hold.
    """
    if flat.dim() != 1 or flat.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"only a flat float32 or float64 tensor is encoded, not {flat.dtype} of shape {[*flat.shape]}")
    encoded_bytes(flat.numel(), encoding, flat.itemsize)
    flat = flat.detach().to("cpu", flat.dtype if encoding == "raw" else torch.float32).contiguous()
    if not is_finite(flat):
        raise ValueError("a number that is not finite cannot be encoded")
    if encoding == "raw":
        return bytes(as_bytes(flat))
    if encoding == "bfloat16":
        return bytes(as_bytes(flat.to(torch.bfloat16)))
    rows = _padded(flat)
    scales = rows.abs().amax(1) / LEVELS
    # The numbers of a block that is all zero, or whose scale rounds to zero, are zero whatever they are divided by.
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales))
    levels = (rows / divisors[:, None]).round_().clamp_(-LEVELS, LEVELS).to(torch.int8)
    return bytes(as_bytes(scales)) + bytes(as_bytes(levels.view(-1)[: flat.numel()]))


def decode(
    content: bytes | bytearray | memoryview, encoding: str, n: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The tensor [n] of `dtype`, which it had when it was encoded, in memory of its own.

    Raises ValueError unless the size is exactly that of n numbers.
    """
    expected = encoded_bytes(n, encoding, dtype.itemsize)
    if len(content) != expected:
        raise ValueError(f"{n} numbers as {encoding} are {expected} bytes, not {len(content)}")
    if n == 0:
        return torch.zeros(0, dtype=dtype)
    own = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    if encoding == "raw":
        return own.view(dtype)
    if encoding == "bfloat16":
        return own.view(torch.bfloat16).to(dtype)
    count = blocks(n)
    scales = own[: 4 * count].view(torch.float32)
    rows = _padded(own[4 * count :].view(torch.int8).float())
    return (rows * scales[:, None]).view(-1)[:n].to(dtype).contiguous()


def _padded(flat: Tensor) -> Tensor:
    """[n] as [blocks, 256], the last filled up with zeroes."""
    short = -flat.numel() % BLOCK_NUMBERS
    return torch.nn.functional.pad(flat, (0, short)).view(-1, BLOCK_NUMBERS)
