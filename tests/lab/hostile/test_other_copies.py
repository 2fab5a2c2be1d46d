"""A liar's copy of the head is another one, and says nothing that does not fit itself: only what was told of the copy
when it was lent gives it away."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

from ftnode.lab.hostile.liar import lending_other_copies
from ftnode.node.weights.copies import Copy, CopyStore, copy_digest
from ftnode.node.weights.donor import StateDonor
from ftnode.protocol.wire.frames import StateHeader, StateRequest
from ftnode.protocol.words.types import HEAD, Attempt, Version

VERSION = Version(7, "c7", Attempt(1, 7))
NUMBERS = np.arange(1.0, 13.0, dtype=np.float32)


@pytest.fixture
def honest() -> Iterator[Copy]:
    before = StateDonor._kept
    chunks = tuple(bytearray(part.tobytes()) for part in np.split(NUMBERS, 3))
    hashes = tuple(hashlib.blake2b(chunk, digest_size=16).digest() for chunk in chunks)
    digest = hashlib.blake2b(NUMBERS[:4].tobytes(), digest_size=16).hexdigest()
    yield Copy(StateHeader(VERSION, 1.0, 3, NUMBERS.nbytes, digest, 7, 1.0, "raw"), "all", chunks, hashes)
    StateDonor._kept = before  # type: ignore[method-assign]


@pytest.mark.parametrize("due", [True, False])
def test_it_lends_another_one_once_it_is_due(honest: Copy, due: bool) -> None:
    donor = StateDonor.__new__(StateDonor)
    donor._copies = CopyStore()
    donor._copies.held[HEAD] = honest
    lending_other_copies(lambda: due)
    lent = donor._kept(StateRequest("run", HEAD, 7, "c7", "all", "raw", False, True, -1))
    assert (np.frombuffer(b"".join(lent.chunks), np.float32) == (-NUMBERS if due else NUMBERS)).all()
    assert lent.hashes == tuple(hashlib.blake2b(chunk, digest_size=16).digest() for chunk in lent.chunks)
    assert lent.header.digest == hashlib.blake2b(lent.chunks[0], digest_size=16).hexdigest()
    told = [copy_digest(HEAD, "all", each.header, each.hashes) for each in (honest, lent)]
    assert (told[0] != told[1]) is due
