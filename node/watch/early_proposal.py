"""Names a protocol together with the greeting of multistream-select, as who dials may, and not after its answer.

That spares a way there and back for each stream, and two for each connection: through a relay whose line is full, some
tenths of a second each (https://github.com/multiformats/multistream-select).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from ftnode.protocol.words.errors import PeerError

GREETING: Final = "/multistream/1.0.0"


class Lines(Protocol):
    """What both sides say, in lines; libp2p's `IMultiselectCommunicator`."""

    async def write(self, msg_str: str) -> None: ...

    async def read(self) -> str: ...


class Early:
    """Says that the greeting has been answered before it has, and hears the answer with what comes next."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._believed = self._heard = False

    async def write(self, msg_str: str) -> None:
        await self._lines.write(msg_str)

    async def read(self) -> str:
        """Raises PeerError when the greeting was answered with something else."""
        if not self._believed:
            self._believed = True
            return GREETING
        if not self._heard:
            self._heard = True
            answer = await self._lines.read()
            if answer != GREETING:
                raise PeerError(f"it speaks no multistream-select but {answer[:40]!r}")
        return await self._lines.read()


def early(select: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """libp2p's `select_one_of` that proposes at once."""

    async def proposed(protocols: Sequence[Any], lines: Lines, *more: Any) -> Any:
        return await select(protocols, Early(lines), *more)

    return proposed
