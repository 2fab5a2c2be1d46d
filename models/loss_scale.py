"""The factor by which float16 gradients are larger, so that small ones are not rounded to zero.

Micikevicius et al. 2017, "Mixed Precision Training". It is a matter of one stage: what comes in is multiplied, and
what goes out or is added up is divided again, so that peers and codecs see true numbers, whatever each computes in. It
changes with a commit only, so that all microbatches of a step, and those that are computed again, have the same
(docs/explanation/decisions/0037-products-in-few-bits.md).
"""

from __future__ import annotations

from typing import Final

import torch

FIRST: Final = 2.0**10
"""Below what large stages bear. Two skipped steps in a row are blamed on a peer (rule 25), so it comes from below."""
LARGEST: Final = 2.0**24
GOOD_STEPS: Final = 1000
"""After so many it is tried whether twice as much fits; if not, one step is skipped."""


class LossScale:
    """A power of two, at least 1; always 1 for anything but float16."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._changes = dtype == torch.float16
        self.value = FIRST if self._changes else 1.0
        self._good = 0

    def committed(self, skipped: bool) -> None:
        """A step is over. A skipped one may have been too large for float16."""
        if not self._changes:
            return
        self._good = 0 if skipped else self._good + 1
        if skipped:
            self.value = max(1.0, self.value / 2)
        elif self._good == GOOD_STEPS:
            self.value, self._good = min(LARGEST, 2 * self.value), 0
