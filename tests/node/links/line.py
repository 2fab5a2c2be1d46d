"""A line to a port of this machine that can be cut so that nobody is told, as when an address changes."""

from __future__ import annotations

from contextlib import suppress

import trio


class Line:
    """Carries connections to a port of ::1. Those that there are when it is cut stay open and carry nothing."""

    def __init__(self, port: int, listener: trio.SocketListener) -> None:
        self._port, self._scopes = port, list[trio.CancelScope]()
        self.address = f"/ip6/::1/tcp/{listener.socket.getsockname()[1]}"

    @classmethod
    async def open(cls, nursery: trio.Nursery, port: int) -> Line:
        (listener,) = await trio.open_tcp_listeners(0, host="::1")
        line = cls(port, listener)
        nursery.start_soon(trio.serve_listeners, line._carry, [listener])
        return line

    def cut(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    async def _carry(self, stream: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream("::1", self._port)
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._copy, stream, far)
                nursery.start_soon(self._copy, far, stream)
        await trio.sleep_forever()

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for piece in source:
                await target.send_all(piece)
