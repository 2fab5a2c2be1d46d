"""Manifests between peers: who follows a link asks for one, an author or a newcomer shows a newer one.

A frame of at most 1 MiB and 4 bytes of length each way, msgpack maps:

    {"format": 1, "run": id}                 →  {"format": 1, "manifest": the text}
    {"format": 1, "run": id, "show": text}   →  {"format": 1, "refusal": why it is not taken, or ""}

Where volunteers vouch for others (voucher.py), whoever shows may show vouchers as well, or instead, and is told those
that are known; and the leader of our view tells who was let go as a liar:

    {…, "vouchers": text}                    →  {…, "vouchers": text}
    {…, "liars": PeerIds with spaces}         →  {…}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
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
LIARS_MAX: Final = 8
"""Told at a time."""
ASKERS_MAX: Final = 16
"""At a time; those beyond are hung up on and ask again."""


def manifest_handler(book: ManifestBook, leads: Callable[[str], bool] = lambda peer_id: False) -> StreamHandler:
    """What to give to `P2pd.serve(MANIFEST_PROTOCOL, ...)`. `leads`: whether this peer leads our view."""

    async def handle(peer: str, stream: trio.SocketStream) -> None:
        try:
            with trio.fail_after(EXCHANGE_SECONDS):
                request = await read_frame(stream.receive_some, FRAME_BYTES_MAX)
                await write_frame(stream, answer(book, request, peer, leads(peer)))
        except (PeerError, *STREAM_ERRORS) as error:
            log.info("%s asked about the manifest, without an answer: %s", peer, error)
        finally:
            await trio.aclose_forcefully(stream)

    return at_most(ASKERS_MAX, handle)


def answer(book: ManifestBook, request: bytes, sender: str = "", leads: bool = False) -> bytes:
    """Raises PeerError for a request that is none."""
    asked = unpack(request)
    if asked.get("run") != book.manifest.run_id:
        return _pack(refusal="another run")
    shown, vouchers, liars = asked.get("show"), asked.get("vouchers"), asked.get("liars")
    if shown is None and vouchers is None and liars is None:
        return _pack(manifest=book.text.encode())
    if not isinstance(shown, bytes | None) or not isinstance(vouchers, bytes | None):
        raise PeerError("a manifest or vouchers that are no bytes")
    if leads and isinstance(liars, str):
        for liar in liars.split()[:LIARS_MAX]:
            book.has_lied(liar)
    refusals, more = [], {}
    try:
        refusals += [book.offer(shown)] if shown is not None else []
        refusals += [book.take_vouchers(vouchers, sender)] if vouchers is not None else []
    except PeerError as error:
        refusals.append(str(error))
    if vouchers is not None and book.admits(sender):
        more["vouchers"] = book.vouchers()
    return _pack(refusal="; ".join(filter(None, refusals)), **more)


def request_for(
    run_id: str, show: str | None = None, vouchers: bytes | None = None, liars: Sequence[str] = ()
) -> bytes:
    """Asks for the run's manifest, or shows one, or vouchers; `liars`: PeerIds of those who were let go."""
    more: dict[str, Any] = {"show": show.encode()} if show is not None else {}
    more |= {"vouchers": vouchers} if vouchers is not None else {}
    more |= {"liars": " ".join(liars[:LIARS_MAX])} if liars else {}
    return _pack(run=run_id, **more)


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


def read_told_vouchers(reply: bytes) -> bytes:
    """The vouchers in an answer; b"" for none. Raises PeerError."""
    found = unpack(reply).get("vouchers", b"")
    if not isinstance(found, bytes):
        raise PeerError("vouchers that are no bytes")
    return found


def unpack(data: bytes) -> dict[Any, Any]:
    """Raises PeerError."""
    found = decode(data, FRAME_LIMITS)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise PeerError(f"not format {FORMAT} of {MANIFEST_PROTOCOL}")
    return found


def _pack(**fields: Any) -> bytes:
    packed: bytes = msgpack.packb({"format": FORMAT} | fields)
    return packed
