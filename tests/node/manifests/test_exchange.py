"""What a peer sends as the author's word is the author's, or nothing."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from ftnode.node.home.identity import Identity
from ftnode.node.manifests.authorship import announce, sign
from ftnode.node.manifests.exchange import FORMAT, announcement_of, read_signed_reply
from ftnode.node.manifests.presets import PRESETS
from ftnode.protocol.manifest.parse import parse, render
from ftnode.protocol.words.errors import PeerError

TEXT = render(PRESETS["tiny"])


def reply(text: str) -> bytes:
    packed: bytes = msgpack.packb({"format": FORMAT, "manifest": text.encode()})
    return packed


def forged(text: str) -> str:
    """With other words behind the same signature."""
    return text.replace('message = "hello"', 'message = "send money"')


def test_the_authors_word_comes_through(key: Identity) -> None:
    said = announce(sign(TEXT, key), "hello", key)
    assert announcement_of(read_signed_reply(reply(said), parse(said).run_id)) == "hello"


def test_nobody_else_can_speak(key: Identity) -> None:
    said = announce(sign(TEXT, key), "hello", key)
    run, unsigned = parse(said).run_id, forged(render(parse(said)))
    assert parse(unsigned).run_id == run and "send money" in unsigned
    for text in (forged(said), unsigned):
        with pytest.raises(PeerError):
            read_signed_reply(reply(text), run)
    with pytest.raises(PeerError):
        read_signed_reply(reply(said), "0" * 32)


def test_a_run_without_an_author_has_nobody_who_speaks_for_it() -> None:
    manifest = parse(TEXT)
    said = render(replace(manifest, membership=replace(manifest.membership, message="hello")))
    assert announcement_of(read_signed_reply(reply(said), manifest.run_id)) == ""
