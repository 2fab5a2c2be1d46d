"""Manifests between peers: who follows a link asks for one, an author or a newcomer shows a newer one.

A frame of at most 1 MiB and 4 bytes of length each way, msgpack maps:

    {"format": 1, "run": id}                 →  {"format": 1, "manifest": the text}
    {"format": 1, "run": id, "show": text}   →  {"format": 1, "refusal": why it is not taken, or ""}
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgpack
import trio

from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import STREAM_ERRORS, StreamHandler, at_most
from ftnode.node.manifests.book import MANIFEST_BYTES_MAX, ManifestBook, read_signed
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.words.codec import shown
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

MANIFEST_PROTOCOL: Final = "/ftnode/manifest/1"
FORMAT: Final = 1
FRAME_BYTES_MAX: Final = MANIFEST_BYTES_MAX + 4096
EXCHANGE_SECONDS: Final = 20.0
FRAME_LIMITS: Final = Limits(size=FRAME_BYTES_MAX, depth=2, items=8, entries=8, text=FRAME_BYTES_MAX)
ASKERS_MAX: Final = 16
"""At a time; those beyond are hung up on and ask again."""


def manifest_handler(book: ManifestBook) -> StreamHandler:
    """What to give to `P2pd.serve(MANIFEST_PROTOCOL, ...)`."""

    async def handle(peer: str, stream: trio.SocketStream) -> None:
        try:
            with trio.fail_after(EXCHANGE_SECONDS):
                await write_frame(stream, answer(book, await read_frame(stream.receive_some, FRAME_BYTES_MAX)))
        except (PeerError, *STREAM_ERRORS) as error:
            log.info("%s asked about the manifest, without an answer: %s", peer, error)
        finally:
            await trio.aclose_forcefully(stream)

    return at_most(ASKERS_MAX, handle)


def answer(book: ManifestBook, request: bytes) -> bytes:
    """Raises PeerError for a request that is none."""
    asked = unpack(request)
    if asked.get("run") != book.manifest.run_id:
        return _pack(refusal="another run")
    shown = asked.get("show")
    if shown is None:
        return _pack(manifest=book.text.encode())
    if not isinstance(shown, bytes):
        raise PeerError("a manifest that is no bytes")
    try:
        return _pack(refusal=book.offer(shown))
    except PeerError as error:
        return _pack(refusal=str(error))


def request_for(run_id: str, show: str | None = None) -> bytes:
    """Asks for the run's manifest, or shows one."""
    return _pack(run=run_id) if show is None else _pack(run=run_id, show=show.encode())


def read_manifest_reply(reply: bytes) -> bytes:
    """The manifest in an answer. Raises PeerError."""
    found = unpack(reply)
    if not isinstance(found.get("manifest"), bytes):
        raise PeerError(f"no manifest: {shown(found.get('refusal'))}")
    return bytes(found["manifest"])


def read_signed_reply(reply: bytes, run_id: str) -> Manifest:
    """The manifest that a peer sent. Raises PeerError for another one, or one that is not signed by its author."""
    return read_signed(read_manifest_reply(reply), run_id)[0]


def announcement_of(manifest: Manifest) -> str:
    """What the author says to everybody; nothing where the run has no author."""
    return manifest.membership.message if manifest.run.author else ""


def read_refusal(reply: bytes) -> str:
    """Why a manifest that was shown was not taken; "" when it was. Raises PeerError."""
    found = unpack(reply)
    if not isinstance(found.get("refusal"), str):
        raise PeerError("an answer that says nothing")
    return str(found["refusal"])[:300]


def unpack(data: bytes) -> dict[Any, Any]:
    """Raises PeerError."""
    found = decode(data, FRAME_LIMITS)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise PeerError(f"not format {FORMAT} of {MANIFEST_PROTOCOL}")
    return found


def _pack(**fields: Any) -> bytes:
    packed: bytes = msgpack.packb({"format": FORMAT} | fields)
    return packed
