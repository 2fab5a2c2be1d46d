"""A stranger that floods one volunteer: `python flooder.py HOME RUN STAGES SECONDS FRAME_BYTES ADDRESS`.

It speaks the wire by itself, over a p2pd of its own: valid certificates of a lineage of nobody, as fast as they are
taken, on a new stream whenever one ends. STAGES: with the head. Prints one JSON object: frames and bytes written, how
long each stream was open (seconds, from the Welcome to its end), and how often it was refused.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.streams import STREAM_ERRORS, FrameReader, write_all, write_frame
from ftnode.protocol.wire.frames import CONTROL_LANE, STEP_PROTOCOL, Hello, Welcome, encode_frame, read_greeting
from ftnode.protocol.words.messages import Certificate, Contact
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View

ADDRESS_TEXT = "/dns4/" + "x" * 500
DIAL_SECONDS = 2.0
PAUSE_SECONDS = 0.05


def useless(run: str, stages: int, size: int) -> bytes:
    """A certificate of about `size` bytes that makes sense to everybody who checks it."""
    nobody = Peer("nobody", 1)
    view = View(run, Lineage("nowhere", 0, 1), 0, "", nobody, ((nobody,),) * stages, (nobody,), (0,) * stages, "")
    return encode_frame(Certificate(view, False, (Contact(nobody, (ADDRESS_TEXT,) * (size // len(ADDRESS_TEXT))),)))


class Flood:
    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.frames, self.refused, self.unreached = 0, 0, 0
        self.open_seconds: list[float] = []

    async def one_stream(self, p2pd: P2pd, run: str, target: str, address: str) -> None:
        await p2pd.connect(target, [address], DIAL_SECONDS)
        stream = await p2pd.open(target, STEP_PROTOCOL, DIAL_SECONDS)
        reader = FrameReader(stream)
        try:
            with trio.fail_after(DIAL_SECONDS):
                await write_frame(stream, Hello(run, 1, (), CONTROL_LANE))
                greeting = read_greeting(*await reader.header())
            if not isinstance(greeting, Welcome):
                self.refused += 1
                return
            began = trio.current_time()
            try:
                await self.pour(stream, reader)
            finally:
                self.open_seconds.append(trio.current_time() - began)
        finally:
            stream.socket.close()

    async def pour(self, stream: trio.SocketStream, reader: FrameReader) -> None:
        async with trio.open_nursery() as nursery:

            async def ended() -> None:
                with suppress(*STREAM_ERRORS):
                    await reader.end()
                nursery.cancel_scope.cancel()

            nursery.start_soon(ended)
            while True:
                await write_all(stream, [memoryview(self.frame)])
                self.frames += 1
                await trio.lowlevel.checkpoint()

    async def run(self, p2pd: P2pd, run: str, full_address: str) -> None:
        address, _, target = full_address.rpartition("/p2p/")
        while True:
            try:
                await self.one_stream(p2pd, run, target, address)
            except* (P2pdError, *STREAM_ERRORS):
                self.unreached += 1
            await trio.sleep(PAUSE_SECONDS)


async def main(home: Path, run: str, stages: int, seconds: float, size: int, address: str) -> None:
    flood = Flood(useless(run, stages, size))
    home.mkdir(parents=True, exist_ok=True)
    async with trio.open_nursery() as nursery:
        p2pd = await P2pd.start(nursery, take_identity(home).path)
        with trio.move_on_after(seconds):
            await flood.run(p2pd, run, address)
        nursery.cancel_scope.cancel()
        p2pd.close()
    told = {
        "frames": flood.frames, "bytes": flood.frames * len(flood.frame), "open_seconds": flood.open_seconds,
        "refused": flood.refused, "unreached": flood.unreached,
    }  # fmt: skip
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    home, run, stages, seconds, size, address = sys.argv[1:]
    trio.run(main, Path(home), run, int(stages), float(seconds), int(size), address)
