"""What is fixed of a token in a model with a subspace: the coordinates that no block writes to.

Every stage makes the same table by itself, so that these coordinates never travel. It is a pure function of the
model's sizes: raw Philox counters, exact sums, one multiplication, the same bits on every machine.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ftnode.models.config import ModelConfig

DEVIATION: Final = 0.1
"""Five times that of the trained part at the start: norms divide by both together."""
_TERMS, _LEVELS = 4, 1 << 16
_UNIT: Final = (12 / (_TERMS * (_LEVELS**2 - 1))) ** 0.5
"""Makes a sum of four integers below 65536 have deviation 1 (Irwin-Hall, cut at 3.5 deviations)."""
_PASS: Final = 1 << 20
"""Numbers made at a time."""


@lru_cache(maxsize=2)
def fixed_table(config: ModelConfig) -> NDArray[Any]:
    """[vocabulary, fixed], of the model's precision; not to be written to."""
    shape = config.vocabulary, config.fixed
    dtype = {4: np.float32, 8: np.float64}[config.number_bytes]
    table = np.empty(shape[0] * shape[1], dtype)
    bits = np.random.Philox(key=[0, 0])
    for start in range(0, len(table), _PASS):
        part = table[start : start + _PASS]
        draws = bits.random_raw(len(part)).astype("<u8").view("<u2").reshape(-1, _TERMS).astype(np.int32)
        part[:] = (2 * draws.sum(1) - _TERMS * (_LEVELS - 1)).astype(dtype) * dtype(DEVIATION * _UNIT / 2)
    table = table.reshape(shape)
    table.setflags(write=False)
    return table
