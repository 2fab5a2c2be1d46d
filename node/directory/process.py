"""The directory process: answers its node's requests from a DHT node that it runs.

Run as `python -m ftnode.node.directory.process SOCKET_FD CONTROL_MADDR`. It answers msgpack frames (a map behind a
4-byte big-endian length) on the inherited socket, several at a time:

| op | fields | answer |
|---|---|---|
| `meet` | peer (PeerId that p2pd is connected to) | met: it answered and is in the routing table |
| `store` | key, subkey, record, expiration (Unix seconds), also (PeerIds) | stored: somebody near the key has it |
| `get` | key | items [[subkey, record, expiration]...], from all near the key; heard: how many of them answered |
| `status` | | peers: size of the routing table, records: in our store |

`also` are peers to which p2pd is connected, and which are to have the record as well, however far from its key. What
was read is kept until it expires, so that this node can tell whoever asks it.

Each request has an `id`, each answer the same one, and `error` when it failed. The first frame is
`{"ready": true, "lean": loaded without torch}`. The process ends when the socket does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from typing import Any

import msgpack

from ftnode.node.directory import dht_without_torch
from ftnode.protocol.wire.length_prefix import LENGTH_BYTES, body_length, framed

log = logging.getLogger(__name__)

FRAME_BYTES_MAX = 1 << 22
REQUESTS_AT_ONCE = 16
REQUEST_SECONDS = 8.0
"""A request of our node is given up after this: a few unanswered neighbours in a row."""


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next frame, or None at the end."""
    try:
        size = body_length(await reader.readexactly(LENGTH_BYTES), FRAME_BYTES_MAX)
        frame = msgpack.unpackb(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return frame if isinstance(frame, dict) else None


async def serve(control: str, descriptor: int) -> None:
    lean = dht_without_torch.load(["hivemind.dht.node", "hivemind.dht.protocol"])
    from ftnode.node.directory import dht

    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))
    node = await dht.create_node(control)
    free = asyncio.Semaphore(REQUESTS_AT_ONCE)

    def reply(frame: dict[str, Any]) -> None:
        data = msgpack.packb(frame)
        writer.write(framed(data))

    async def handle(request: dict[str, Any]) -> None:
        try:
            result = await asyncio.wait_for(dht.answer(node, request), REQUEST_SECONDS)
        except Exception as error:  # whatever the library raises is this request's answer
            log.info("request failed", exc_info=True)
            result = {"error": f"{type(error).__name__}: {error}"[:300]}
        finally:
            free.release()
        reply({"id": request.get("id"), **result})

    reply({"ready": True, "lean": lean})
    while (request := await read_frame(reader)) is not None:
        await free.acquire()
        dht.keep(handle(request))
    await dht.close_node(node)


def main() -> None:
    level = logging.getLevelNamesMapping().get(os.environ.get("FTNODE_LOG", "").upper(), logging.WARNING)
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(serve(sys.argv[2], int(sys.argv[1])))


if __name__ == "__main__":
    main()
