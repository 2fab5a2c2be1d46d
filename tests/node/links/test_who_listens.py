"""Whether a peer listens somewhere, where what answers shows a certificate of its own making."""

from __future__ import annotations

import datetime
import ssl
from functools import partial
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ftnode.node.links.streams import read_exactly
from ftnode.node.links.who_listens import PROPOSALS, listens

PEER = "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
THIRD = bytes.fromhex("a003020102")
"""DER: the version of a certificate, 3."""


def certificate(key: EllipticCurvePrivateKey) -> bytes:
    """In DER, signed by itself."""
    name, now = x509.Name([]), datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
    return built.sign(key, SHA256()).public_bytes(Encoding.DER)


def answering(folder: Path, key: EllipticCurvePrivateKey, der: bytes) -> ssl.SSLContext:
    """TLS with this certificate."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    (folder / "both.pem").write_text(pem + ssl.DER_cert_to_PEM_cert(der))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    context.set_alpn_protocols(["libp2p"])
    return context


@pytest.mark.parametrize("version", [3, 5, 255])
def test_a_certificate_that_cannot_be_is_nobodys_and_raises_nothing(version: int, tmp_path: Path) -> None:
    """OpenSSL shakes hands over one of a version that there is not, and who reads it would end with its error."""
    key = generate_private_key(SECP256R1())
    context = answering(tmp_path, key, certificate(key).replace(THIRD, THIRD[:-1] + bytes([version - 1])))
    shaken = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        await read_exactly(stream, sum(map(len, PROPOSALS)))
        await stream.send_all(b"".join(PROPOSALS))
        secure = trio.SSLStream(stream, context, server_side=True)
        await secure.do_handshake()
        shaken.set()
        await trio.aclose_forcefully(secure)

    async def main() -> bool:
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            with trio.fail_after(10):
                found = await listens(PEER, "127.0.0.1", listener.socket.getsockname()[1])
                await shaken.wait()
            nursery.cancel_scope.cancel()
        return found

    assert not trio.run(main)
