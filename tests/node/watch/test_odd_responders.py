"""Peers that answer a watcher with garbage or never: one clear line each, within the time-out, and nothing left behind.

The responders are real p2pds; the watchers are the commands that a person types, in processes of their own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import CompletedProcess

import msgpack
import pytest
import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import full_addresses
from ftnode.node.links.p2pd import P2pd
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import StreamHandler
from ftnode.node.watch.status import (
    REPLY_BYTES_MAX,
    STATUS_PROTOCOL,
    Speaker,
    SwarmStatus,
    encode_status,
    status_handler,
)
from tests.node.watch.watching import COMMAND, finished

TIMEOUT = 4.0
START_SECONDS = 45.0
"""Of a Python process that loads py-libp2p on a busy machine; 1 s on an idle one."""
GOOD = SwarmStatus(Speaker("good", "0.1.0", "cpu", "volunteer"), run="run1", name="tiny", step=3, steps=9)


def answering(data: bytes, *, framed: bool = True) -> StreamHandler:
    async def handle(_peer: str, stream: trio.SocketStream) -> None:
        await read_frame(stream.receive_some, 256)
        await (write_frame(stream, data) if framed else stream.send_all(data))
        await stream.send_eof()

    return handle


async def never(_peer: str, stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def hang_up(_peer: str, stream: trio.SocketStream) -> None:
    await stream.aclose()


async def drip(_peer: str, stream: trio.SocketStream) -> None:
    """A byte now and then, so that something always arrives."""
    await stream.send_all((1000).to_bytes(4, "big"))
    pacer = trio.Event()
    for _ in range(1000):
        await stream.send_all(b"\x80")
        with trio.move_on_after(0.2):
            await pacer.wait()


ODD: dict[str, tuple[StreamHandler, str]] = {
    "garbage": (answering(b"\xc1garbage"), "not msgpack"),
    "another format": (answering(msgpack.packb({"format": 99})), "of format 99"),
    "a wrong field": (answering(msgpack.packb({"format": 1, "speaker": 7})), "is no mapping"),
    "a huge frame": (answering((REPLY_BYTES_MAX + 1).to_bytes(4, "big"), framed=False), "it announces a frame of"),
    "half a frame": (answering(b"\x00\x00\xff\xffhalf", framed=False), "hung up"),
    "nothing": (never, "no answer"),
    "a hang-up": (hang_up, "hung up"),
    "a byte now and then": (drip, "no answer"),
}
DOCTOR = f"""
from ftnode.node.cli import doctor
doctor._probe = lambda: {{"torch": "2", "cuda": None, "devices": []}}
{COMMAND}
"""
"""`ftnode`, whose doctor does not ask torch; tests/node/cli/test_doctor_checkup.py does."""
Ask = Callable[..., Awaitable[tuple["CompletedProcess[bytes]", float]]]


def with_responders(folder: Path, test: Callable[[list[str], Ask], Awaitable[None]], *handlers: StreamHandler) -> None:
    """`test(addresses, ask)`; `ask` runs `ftnode` and gives back what it did and the seconds that it took."""

    async def ask(*arguments: str) -> tuple[CompletedProcess[bytes], float]:
        began = time.monotonic()
        with trio.fail_after(TIMEOUT + START_SECONDS):
            done = await finished(
                DOCTOR if arguments[0] == "doctor" else COMMAND, *arguments, "--home", str(folder / "watcher")
            )
        return done, time.monotonic() - began

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            p2pds = []
            try:
                for number, handler in enumerate(handlers):
                    p2pds.append(await P2pd.start(nursery, take_identity(folder, f"peer-{number}").path))
                    await p2pds[-1].serve(STATUS_PROTOCOL, handler)
                addresses = [full_addresses(p2pd.peer_id, await p2pd.addresses())[0] for p2pd in p2pds]
                await test(addresses, ask)
            finally:
                for p2pd in p2pds:
                    p2pd.close()
            nursery.cancel_scope.cancel()

    trio.run(main)


def one_line(done: CompletedProcess[bytes], *says: str) -> None:
    text = done.stderr.decode()
    assert (done.returncode, done.stdout) == (69, b""), done
    assert text.startswith("ftnode: ") and text.count("\n") == 1 and all(part in text for part in says), text


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_answer_is_one_clear_line(kind: str, tmp_path: Path) -> None:
    handler, says = ODD[kind]

    async def test(addresses: list[str], ask: Ask) -> None:
        done, took = await ask("status", "--peer", addresses[0], "--timeout", str(TIMEOUT))
        one_line(done, says, addresses[0].rpartition("/")[2])
        assert took < TIMEOUT + START_SECONDS / 2
        assert not (tmp_path / "watcher" / "peers.json").exists(), "who did not answer is not remembered"

    with_responders(tmp_path, test, handler)


@pytest.mark.parametrize("command", [("peers",), ("status", "--watch"), ("status", "-v", "--json")])
def test_no_command_waits_longer(command: tuple[str, ...], tmp_path: Path) -> None:
    async def test(addresses: list[str], ask: Ask) -> None:
        done, _ = await ask(*command, "--timeout", "1", "--peer", addresses[0])
        one_line(done, "no answer")

    with_responders(tmp_path, test, never)


@pytest.mark.fresh
def test_a_good_peer_beside_odd_ones_is_enough(tmp_path: Path) -> None:
    async def test(addresses: list[str], ask: Ask) -> None:
        asked = [part for address in addresses for part in ("--peer", address)]
        done, _ = await ask("status", *asked, "--timeout", "30")
        assert done.returncode == 0 and b"step 3 of 9" in done.stdout, done

    with_responders(tmp_path, test, never, answering(b"\xc1"), status_handler(lambda: GOOD))


def test_the_doctor_names_who_is_odd(tmp_path: Path) -> None:
    async def test(addresses: list[str], ask: Ask) -> None:
        asked = [part for address in addresses for part in ("--peer", address)]
        done, _ = await ask("doctor", *asked, "--timeout", "3")
        lines = {line.split()[1]: line for line in done.stdout.decode().splitlines()}
        assert done.returncode == 1 and done.stderr == b"", done
        assert lines["peers"].startswith("failed") and "no answer" in lines["peers"], done
        assert "not msgpack" in lines["peers"] and "check the address" in lines["peers"]
        assert "clock" not in lines and "reachability" not in lines, "nobody could tell"

    with_responders(tmp_path, test, never, answering(b"\xc1"))


def test_a_clock_that_is_off_and_another_version_are_told(tmp_path: Path) -> None:
    ahead = SwarmStatus(Speaker("good", "9.9.9", "cpu", "volunteer"), run="run1", clock=time.time() + 100)

    async def test(addresses: list[str], ask: Ask) -> None:
        done, _ = await ask("doctor", "--peer", addresses[0], "--timeout", "30")
        lines = done.stdout.decode().splitlines()
        (clock,) = [line for line in lines if " clock " in line]
        (versions,) = [line for line in lines if " peer versions " in line]
        assert done.returncode == 1 and clock.startswith("failed") and "behind the peers'" in clock, done
        assert versions.startswith("warning") and "9.9.9" in versions

    with_responders(tmp_path, test, answering(encode_status(ahead)))
