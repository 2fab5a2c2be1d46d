"""What the books of a home have in common that keep what others have signed (signed_words.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import trio

from ftnode.node.links.seals import Seals
from ftnode.node.snapshots.signed_words import logged
from ftnode.protocol.words.events import Event
from ftnode.protocol.words.settings import Settings

Given = TypeVar("Given")
Written = TypeVar("Written")


class SignedBook:
    """Of one run. `seals`: ours, which fill in what we have signed, and check what is read. `say`: to the owner."""

    KIND: ClassVar[str]
    """Of what is said to the owner."""

    def __init__(
        self, home: Path, run: str, settings: Settings, seals: Seals, deliver: Callable[[Event], None],
        say: Callable[..., None] = lambda kind, text: logged(text),
    ) -> None:  # fmt: skip
        self._home, self._run = home, run
        self._settings, self._seals, self._deliver = settings, seals, deliver
        self._say: Callable[[str], None] = partial(say, self.KIND)
        self._writing = trio.CapacityLimiter(1)

    async def _in_thread(self, write: Callable[[Given], Written], given: Given) -> Written:
        """One after the other. Raises as `write` does."""
        in_thread: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        written: Written = await in_thread(write, given, limiter=self._writing)
        return written
