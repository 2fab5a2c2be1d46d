"""How commands of this machine reach a running node: a Unix socket in the home, for the same user alone.

One JSON line is asked, one is answered, and the connection ends. Who may ask: a process of the user who runs the node
(or root), by SO_PEERCRED; the socket has mode 0600 in a folder of 0700 besides. No peer protocol leads here.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import trio

from ftnode.protocol.words.errors import FtnodeError

log = logging.getLogger(__name__)

QUESTION_BYTES_MAX: Final = 4096
ANSWER_BYTES_MAX: Final = 64 * 1024
SECONDS: Final = 5.0
"""For a question, and for its answer."""
CONNECTIONS_MAX: Final = 8
PATH_BYTES_MAX: Final = 100
"""A socket's path has 107 bytes at most; longer ones go through a descriptor of their folder."""
CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: process, user, group."""
Handler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class ControlError(FtnodeError):
    """Nobody answered, or what was asked was refused; the text says which."""


def socket_path(home: Path, peer: str) -> Path:
    """Where the node `peer` of this home listens."""
    return home / "running" / f"{peer[-12:]}.sock"


class NoAnswerYet(ControlError):
    """The node has the question, and does what is asked as soon as it comes to it."""


class ControlServer:
    """Answers {"do": name, ...} by the handler of that name; what raises OSError or ValueError is answered with
    {"error": text}. `close` removes the socket."""

    def __init__(self, path: Path, handlers: Mapping[str, Handler]) -> None:
        """Binds at once. Raises OSError. Whoever has the identity's lock owns the path: what is left there is of a dead
        node."""
        self._path, self._handlers = path, handlers
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            before = os.umask(0o177)  # nobody else between bind and chmod
            try:
                with _short(path) as short:
                    self._listener.bind(short)
            finally:
                os.umask(before)
            self._listener.listen(CONNECTIONS_MAX)
            self._listener.setblocking(False)
        except OSError:
            self._listener.close()
            raise
        self._busy = 0

    async def run(self) -> None:
        """Serve until cancelled; not at all when it was closed before, so that the cause of that is what is seen."""
        if self._listener.fileno() < 0:
            return
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._listener))
        await trio.serve_listeners(self._serve, [listener])

    def close(self) -> None:
        self._listener.close()
        with suppress(OSError):
            self._path.unlink()

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            if self._busy < CONNECTIONS_MAX and _same_user(stream):
                self._busy += 1
                try:
                    with trio.fail_after(SECONDS):
                        await stream.send_all(await self._answer(await _line(stream)))
                finally:
                    self._busy -= 1
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, ValueError) as error:
            log.info("control: %s", error or type(error).__name__)
        except Exception:
            log.exception("control: a question failed")
        finally:
            await trio.aclose_forcefully(stream)

    async def _answer(self, line: bytes) -> bytes:
        try:
            question = json.loads(line)
        except (ValueError, RecursionError):
            question = None
        if not isinstance(question, dict):
            answer: Mapping[str, Any] = {"error": "a question is one JSON object on a line"}
        elif (handler := self._handlers.get(str(question.get("do")))) is None:
            answer = {"error": f"nothing is known as {str(question.get('do'))[:40]!r}"}
        else:
            try:
                answer = await handler(question)
            except (OSError, ValueError) as error:
                log.info("control: %s: %s", question["do"], error)
                answer = {"error": f"{question['do']} failed: {error}"}
        return json.dumps(answer).encode() + b"\n"


def ask(path: Path, do: str, *, within: float = SECONDS, **fields: Any) -> dict[str, Any]:
    """Ask a running node, from an ordinary command. Raises ControlError, NoAnswerYet when it was heard."""
    question, sent = json.dumps({"do": do, **fields}).encode() + b"\n", False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short(path) as short:
            connection.settimeout(within)
            connection.connect(short)
            connection.sendall(question)
            sent = True
            data = bytearray()
            while not data.endswith(b"\n") and len(data) <= ANSWER_BYTES_MAX:
                part = connection.recv(ANSWER_BYTES_MAX)
                if not part:
                    break
                data += part
        answer = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        late = sent and isinstance(error, TimeoutError)
        kind = NoAnswerYet if late else ControlError
        raise kind(f"the node does not answer at {path}: {error}") from None
    if not isinstance(answer, dict) or "error" in answer:
        raise ControlError(str(answer.get("error") if isinstance(answer, dict) else "that is no answer")[:300])
    return answer


async def _line(stream: trio.SocketStream) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        part = await stream.receive_some(QUESTION_BYTES_MAX)
        data += part
        if not part or len(data) > QUESTION_BYTES_MAX:
            raise ValueError("a question that is too long, or has no end")
    return bytes(data)


def _same_user(stream: trio.SocketStream) -> bool:
    """Raises OSError where the system does not say who asks: then nobody may."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError("this system does not say who asks")
    found = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return may_ask(CREDENTIALS.unpack(found)[1], os.getuid())


def may_ask(user: int, owner: int) -> bool:
    return user in (owner, 0)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path in a form that fits into a socket's address."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
