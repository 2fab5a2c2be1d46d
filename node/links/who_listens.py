"""Does this very peer listen at an address? Asked by libp2p's own handshake, on a connection of ours.

p2pd cannot be asked: it is connected to who asks us to try, and dials nobody twice. So we shake hands as far as the
listener proves who it is (libp2p's specs connections and tls), and go. A listener of another kind, or another peer, is
told nothing that it would not tell anybody.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final, cast

import trio
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ftnode.node.home.identity import PEER_ID_PREFIX, peer_id_bytes, verify
from ftnode.node.links.streams import STREAM_ERRORS, read_exactly
from ftnode.node.links.undigested import asking
from ftnode.protocol.words.errors import PeerError

PROPOSALS: Final = tuple(
    bytes([len(line)]) + line for line in (b"/multistream/1.0.0\n", b"/tls/1.0.0\n")
)  # p2pd speaks TLS alone (p2pd.py)
PROOF: Final = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
"""The certificate's extension with the peer's key, and its signature over the key of the certificate."""
SIGNED_PREFIX: Final = b"libp2p-tls-handshake:"
KEY_HEAD: Final = bytes.fromhex("30680424")
SIGNATURE_HEAD: Final = bytes.fromhex("0440")
"""DER: a sequence of two octet strings, of 36 and 64 bytes."""
KEY_BYTES: Final = 36
UNREADABLE: Final = (
    ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.ExtensionNotFound, x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)  # fmt: skip
"""What a certificate is whose handshake OpenSSL has taken, and that is none of a peer."""


async def listens(peer_id: str, host: str, port: int) -> bool:
    """Whether the owner of `peer_id` answers a TCP connection there. Who calls it has the deadline."""
    with suppress(OSError):
        async with await trio.open_tcp_stream(host, port) as stream:
            expected = ValueError, ssl.SSLError
            with suppress(PeerError, *expected, *STREAM_ERRORS), asking(peer_id, "TLS", expected):
                return proves(peer_id, await _certificate(stream))
    return False


async def _certificate(stream: trio.SocketStream) -> bytes:
    await stream.send_all(b"".join(PROPOSALS))
    for proposal in PROPOSALS:
        if await read_exactly(stream, len(proposal)) != proposal:
            raise ValueError("it does not speak libp2p over TLS")
    secure = trio.SSLStream(stream, _context(), https_compatible=True)
    await secure.do_handshake()
    return cast(bytes | None, secure.getpeercert(binary_form=True)) or b""


def proves(peer_id: str, certificate: bytes) -> bool:
    """Whether a TLS certificate, in DER, is one that the peer made for itself."""
    try:
        read = x509.load_der_x509_certificate(certificate)
        found = read.extensions.get_extension_for_oid(PROOF).value
        public = read.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        key = peer_id_bytes(peer_id)[len(PEER_ID_PREFIX) - 4 :]
    except UNREADABLE:
        return False
    data = found.public_bytes() if isinstance(found, x509.UnrecognizedExtension) else b""
    head, tail = KEY_HEAD + key + SIGNATURE_HEAD, data[len(KEY_HEAD) + KEY_BYTES + len(SIGNATURE_HEAD) :]
    return bool(data == head + tail) and verify(peer_id, SIGNED_PREFIX + public, tail)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is its own; `proves` looks at what is in it
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["libp2p"])
    return context
