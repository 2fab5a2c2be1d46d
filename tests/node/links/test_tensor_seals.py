"""Real signatures of boundary tensors: made as they leave, and checked as they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.home.identity import Verify, peer_id_of, verify
from ftnode.node.links.seals import Seals
from ftnode.node.links.signatures import Signatures
from ftnode.node.links.tensor_seals import AT_ONCE_BYTES, TensorSeals
from ftnode.protocol.leader.convictions import is_proof
from ftnode.protocol.words.codec import from_tagged, tagged
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Received
from ftnode.protocol.words.messages import (
    MESSAGES,
    Boundary,
    Convicted,
    Poisoned,
    Seal,
    SealedTensor,
    WasGiven,
    path_digest,
)
from ftnode.protocol.words.types import Attempt, Direction, Peer
from tests.node.links.linked_node import BOUNDARY_BYTES, limited, node

KEYS = [Ed25519PrivateKey.generate() for _ in range(2)]
MAKER, OTHER = (Peer(peer_id_of(key.public_key().public_bytes_raw()), 1) for key in KEYS)
HANDLE = 7
CONTENT = memoryview(bytearray(range(200)))


def seals(which: int = 0, verify: Verify = verify) -> TensorSeals:
    me = (MAKER, OTHER)[which]
    return TensorSeals(me, Signatures(me, KEYS[which].sign, verify))


def boundary(visit: int = 1, maker: Peer = MAKER) -> Boundary:
    """For the peer after its maker."""
    return Boundary("l", 3, 5, Attempt(3, 1), 0, visit, Direction.FORWARD, (maker, OTHER, maker))


def sealed(content: memoryview = CONTENT, made: Boundary | None = None, which: int = 0) -> Boundary:
    one = seals(which)
    assert one.ready(made or boundary(), content, HANDLE)
    return one.sealed(made or boundary(), HANDLE)


def heard(came: Boundary, content: memoryview = CONTENT) -> Boundary:
    return trio.run(seals(1).checked, came, content)


def test_what_its_maker_signed_is_heard_with_its_seal() -> None:
    came = sealed()
    assert came.seal is not None and heard(came) == came


def test_what_another_shows_has_its_makers_seal() -> None:
    came = sealed()
    assert seals(1).ready(came, CONTENT, HANDLE) and seals(1).sealed(came, HANDLE) == came


@pytest.mark.parametrize(
    "change",
    [
        lambda came: replace(came, seal=None),
        lambda came: replace(came, seal=Seal(came.seal.digest, "")),
        lambda came: replace(came, seal=Seal(came.seal.digest, "not base64")),
        lambda came: replace(came, seal=Seal("0" * 64, came.seal.signature)),
        lambda came: replace(came, microbatch=1),
        lambda came: replace(came, attempt=Attempt(3, 2)),
        lambda came: replace(came, view=4),
        lambda came: replace(came, lineage="m"),
        lambda came: replace(came, direction=Direction.BACKWARD),
        lambda came: replace(came, path=(OTHER, OTHER, MAKER)),
        lambda came: replace(came, path=(Peer(MAKER.id, 2), OTHER, MAKER)),
        lambda came: replace(came, path=()),
        lambda came: replace(came, visit=-3),
    ],
)  # fmt: skip
def test_no_other_place_and_no_other_signature_counts(change: Callable[[Boundary], Boundary]) -> None:
    assert heard(change(sealed())).seal is None


def test_other_bytes_have_no_seal() -> None:
    assert heard(sealed(), memoryview(bytes(200))).seal is None


PATH = (MAKER, OTHER, MAKER)
OTHER_PATH = (MAKER, MAKER, MAKER)


def admitted(path: tuple[Peer, ...] = PATH, view: int = 3) -> Boundary:
    """As the core gives it away whose peer admitted it."""
    return replace(boundary(), path=path, view=view, admitted=Seal(path_digest(path), ""))


def test_who_admits_a_microbatch_signs_its_path_for_the_whole_attempt() -> None:
    came = sealed(made=admitted())
    assert came.admitted is not None and heard(came) == came
    later = replace(came, view=5, seal=None)
    assert heard(later).admitted == came.admitted
    passed_on = replace(boundary(2, OTHER), path=PATH, admitted=came.admitted)
    assert heard(sealed(made=passed_on, which=1)).admitted == came.admitted


def test_a_path_is_verified_once_for_all_tensors_of_its_microbatch() -> None:
    verified: list[str] = []

    def count(peer_id: str, data: bytes, signature: bytes) -> bool:
        verified.append(peer_id)
        return verify(peer_id, data, signature)

    here, came = seals(1, count), sealed(made=admitted())
    back = sealed(made=replace(came, direction=Direction.BACKWARD, seal=None))
    for tensor in (came, back, came):
        assert trio.run(here.checked, tensor, CONTENT) == tensor
    assert len(verified) == 3, "a path and two tensors"
    other = replace(came, path=OTHER_PATH, admitted=replace(came.admitted, digest=path_digest(OTHER_PATH)))
    assert trio.run(here.checked, other, CONTENT).admitted is None


@pytest.mark.parametrize(
    "change",
    [
        lambda came: replace(came, admitted=None),
        lambda came: replace(came, admitted=replace(came.admitted, signature="")),
        lambda came: replace(came, admitted=Seal("0" * 64, came.admitted.signature)),
        lambda came: replace(came, path=OTHER_PATH),
        lambda came: replace(came, path=OTHER_PATH, admitted=replace(came.admitted, digest=path_digest(OTHER_PATH))),
        lambda came: replace(came, path=()),
        lambda came: replace(came, microbatch=1),
        lambda came: replace(came, step=6),
        lambda came: replace(came, attempt=Attempt(3, 2)),
        lambda came: replace(came, lineage="m"),
    ],
)
def test_no_other_path_has_its_word(change: Callable[[Boundary], Boundary]) -> None:
    assert heard(change(sealed(made=admitted()))).admitted is None


def test_nobody_signs_for_another_and_no_second_path() -> None:
    """A core that has lost its compute may admit a microbatch anew."""
    ours = seals()
    assert ours.ready(admitted(), CONTENT, HANDLE)
    first, again, second = (ours.sealed(made, HANDLE) for made in (admitted(), admitted(view=4), admitted(OTHER_PATH)))
    assert first.admitted is not None and again.admitted == first.admitted and second.admitted is None
    assert ours.sealed(replace(admitted(OTHER_PATH), microbatch=1), HANDLE).admitted is not None
    assert heard(sealed(made=admitted(), which=1)).admitted is None


def test_two_paths_of_one_microbatch_are_a_proof_that_everybody_can_check() -> None:
    words = []
    for path in (PATH, OTHER_PATH):
        seal = sealed(made=admitted(path)).admitted
        assert seal is not None
        words.append(SealedTensor(0, 0, Direction.FORWARD, MAKER, seal))
    assert is_proof((words[0], words[1])) and not is_proof((words[0], words[0]))
    said = Poisoned("l", 5, 5, Attempt(3, 1), 0, 0, "two", MAKER, 1.0)  # found in a later view of the attempt
    ours = Seals(OTHER, KEYS[1].sign)
    told = ours.sealed(Convicted(OTHER, said, (), (words[0], words[1])))
    ours.check(OTHER, told)
    ours.check(OTHER, WasGiven("l", 5, 5, Attempt(3, 1), (words[1],)))
    with pytest.raises(PeerError):
        ours.check(OTHER, WasGiven("l", 5, 5, Attempt(4, 1), (words[1],)))
    with pytest.raises(PeerError):
        ours.check(OTHER, WasGiven("l", 5, 5, Attempt(3, 1), (replace(words[1], visit=1),)))


def test_without_a_seal_nothing_of_it_travels() -> None:
    """Runs without checks have the bytes that they always had."""
    plain, signed = tagged(boundary()), tagged(sealed())
    assert len(signed) == len(plain) + 1
    assert from_tagged(MESSAGES, plain) == boundary() and from_tagged(MESSAGES, signed) == sealed()
    both = tagged(sealed(made=admitted()))
    assert len(both) == len(plain) + 2 and from_tagged(MESSAGES, both) == sealed(made=admitted())
    assert from_tagged(MESSAGES, tagged(admitted())) == admitted()
    with pytest.raises(PeerError):
        from_tagged(MESSAGES, plain[:-1])


def both() -> tuple[SealedTensor, SealedTensor]:
    """Two tensors of one place, signed by one peer."""
    found = []
    for content in (CONTENT, memoryview(bytes(200))):
        made = sealed(content)
        assert made.seal is not None
        found.append(SealedTensor(made.microbatch, made.visit, made.direction, MAKER, made.seal))
    return found[0], found[1]


def test_two_for_one_place_are_a_proof_that_everybody_can_check() -> None:
    one, other = both()
    assert is_proof((one, other)) and not is_proof((one, one)) and not is_proof((one,))
    assert not is_proof((one, replace(other, visit=2))) and not is_proof((one, replace(other, maker=OTHER)))
    said = Poisoned("l", 3, 5, Attempt(3, 1), 1, 0, "two", MAKER, 1.0)
    ours = Seals(OTHER, KEYS[1].sign)
    told = ours.sealed(Convicted(OTHER, said, (), (one, other)))
    assert isinstance(told, Convicted)
    ours.check(OTHER, told)
    forged = replace(other, seal=Seal(one.seal.digest, other.seal.signature))
    for false in (replace(told, proof=(one, forged)), replace(told, proof=(one, replace(other, microbatch=1)))):
        with pytest.raises(PeerError):
            ours.check(OTHER, false)


def test_what_somebody_says_that_it_was_given_is_signed() -> None:
    one, _ = both()
    said = WasGiven("l", 3, 5, Attempt(3, 1), (one,))
    Seals(OTHER).check(OTHER, said)
    for false in (replace(said, step=6), replace(said, other=(replace(one, maker=OTHER),))):
        with pytest.raises(PeerError):
            Seals(OTHER).check(OTHER, false)


@pytest.mark.parametrize("spoilt", [False, True])
def test_between_two_nodes_large_tensors_are_hashed_apart_and_checked(tmp_path: Path, spoilt: bool) -> None:
    assert BOUNDARY_BYTES > AT_ONCE_BYTES

    async def main() -> None:
        for name in "ab":
            (tmp_path / name).mkdir()
        async with node(tmp_path / "a", signs=True) as a, node(tmp_path / "b", signs=True) as b:
            await a.meet(b)
            handle = a.arena.take()
            a.arena.view(handle)[:] = bytes(BOUNDARY_BYTES)
            made = Boundary("l", 0, 1, Attempt(0, 0), 0, 1, Direction.FORWARD, (a.peer, b.peer))
            a.transport.send(b.peer, replace(made, seal=Seal("0" * 64, "")) if spoilt else made, handle)
            event = await b.next(Received)
            assert isinstance(event.message, Boundary) and (event.message.seal is None) is spoilt
            assert event.handle is not None and bytes(b.arena.view(event.handle)) == bytes(BOUNDARY_BYTES)
            if spoilt:
                return
            a.arena.release(handle)  # what it was is known
            again = a.arena.take()
            a.transport.send(b.peer, made, again)
            a.arena.release(again)  # before it could be hashed: nobody needs it
            with trio.move_on_after(0.5):
                await b.next(Received)
                raise AssertionError("a released tensor was sent")

    limited(main)
