"""TLS records that are written whole, whoever gave up waiting meanwhile.

A watcher asks many peers side by side, and gives up on the others when one has answered. Their streams share the
connection to a relay. TLS counts its records: one that was made and not sent, since its writer was cancelled, makes the
other end close the connection, and with it the circuit to the peer that did answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

RECORD_SECONDS: Final = 3.0
"""For what is written at once, on a line that carries hardly anything; who is cancelled waits so long at most."""


def whole(secure: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """libp2p's `secure_outbound` whose connections write what they have begun."""

    async def secured(*what: Any) -> Any:
        connection = await secure(*what)
        connection.write = uncut(connection.write, connection.close)
        return connection

    return secured


def uncut(
    write: Callable[[bytes], Awaitable[None]], close: Callable[[], Awaitable[None]]
) -> Callable[[bytes], Awaitable[None]]:
    """`write` that nobody's cancelling ends. One that takes too long closes the connection, and raises TimeoutError."""

    async def written(data: bytes) -> None:
        with uncut_scope() as scope:
            await write(data)
        if scope.cancelled_caught:
            with uncut_scope():
                await close()
            raise TimeoutError(f"nothing was written within {RECORD_SECONDS:g} s")

    return written


def uncut_scope() -> trio.CancelScope:
    return trio.CancelScope(deadline=trio.current_time() + RECORD_SECONDS, shield=True)
