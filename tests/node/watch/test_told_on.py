"""A member's words that a meeting point tells on: nobody but the member can make them, and they have an age."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgpack
import pytest

from ftnode.bootstrap.server import WORDS_PER_RUN, members_of
from ftnode.node.directory.records import RunNotice, Statement
from ftnode.node.home.identity import Identity, take_identity
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.watch import told_on
from ftnode.node.watch.status import Member, Speaker, SwarmStatus, decode_status, encode_status
from ftnode.node.watch.status_table import plain_lines, run_table
from ftnode.node.watch.told_on import Words, read_words, signed_words, status_of
from ftnode.protocol.words.codec import encode_canonical
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.types import Peer
from tests.sim.planted import patched

MADE = 1_800_000_000_000
NOW = MADE / 1000 + 12.0
RUN = "f" * 64
POINT = PeerAddress("12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf", ("/ip4/192.0.2.1/tcp/1",))


@pytest.fixture(name="member", scope="module")
def a_member(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return take_identity(tmp_path_factory.mktemp("member"))


@pytest.fixture(name="other", scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return take_identity(tmp_path_factory.mktemp("other"))


def status_by(who: Identity, run: str = RUN, step: int = 7) -> SwarmStatus:
    return SwarmStatus(
        Speaker(who.peer_id, "1", "cpu", "volunteer"), run=run, name="tiny", step=step, steps=9, loss=2.5,
        validation=2.0, tokens_per_second=1000.0, eta_seconds=60.0, volunteers=3, state="training",
        alarms=("stage 1 is in danger", "x"),
    )  # fmt: skip


def words_by(who: Identity, run: str = RUN, step: int = 7, made_ms: int = MADE) -> str:
    return signed_words(status_by(who, run, step), made_ms, who.sign)


def heard(*members: Member, wanted: str = "") -> list[SwarmStatus]:
    """What a watcher makes of a meeting point's answer that names these members."""
    point = decode_status(encode_status(SwarmStatus(Speaker(POINT.peer_id, "1", "", "bootstrap"), members=members)))
    return [status for _, status in told_on.told_on([(POINT, point)], wanted, NOW)]


def test_what_a_member_said_is_told_with_its_age(member: Identity) -> None:
    (found,) = heard(Member(RUN, "tiny", member.peer_id, (), words_by(member)))
    said = status_by(member)
    for name in ("run", "name", "step", "steps", "loss", "validation", "tokens_per_second", "eta_seconds", "state"):
        assert getattr(found, name) == getattr(said, name), name
    assert (found.speaker.peer, found.told_by, found.told_age) == (member.peer_id, POINT.peer_id, 12.0)
    assert found.alarms == ("stage 1 is in danger",) and found.perplexity == pytest.approx(7.389, abs=0.001)
    text = "\n".join(plain_lines(found))
    assert f"{member.peer_id} signed this 12 s ago, and the meeting point {POINT.peer_id} tells it on" in text
    assert "led by" not in text and "step 7 of 9" in text
    assert "said 12.0 s ago" in run_table([found]).lines()[1]


def test_the_newest_words_of_each_run_that_is_meant_count(member: Identity, other: Identity) -> None:
    members = (
        Member(RUN, "tiny", member.peer_id, (), words_by(member)),
        Member(RUN, "tiny", other.peer_id, (), words_by(other, step=8, made_ms=MADE + 5)),
        Member("e" * 64, "tiny", other.peer_id, (), words_by(other, "e" * 64)),
        Member(RUN, "tiny", POINT.peer_id, ()),
    )
    assert {(one.run[0], one.step) for one in heard(*members)} == {("f", 8), ("e", 7)}
    assert [one.run[0] for one in heard(*members, wanted="eeee")] == ["e"]
    assert heard(*members, wanted="beef") == []


def changed(text: str, **fields: object) -> str:
    """The same words with other values, and the old signature."""
    payload, signature = msgpack.unpackb(base64.b64decode(text))
    words = Words(*msgpack.unpackb(payload))
    return base64.b64encode(msgpack.packb([encode_canonical(replace(words, **fields)), signature])).decode()  # type: ignore[arg-type]


def forgeries(member: Identity, other: Identity) -> dict[str, Member]:
    """What a meeting point could tell on that the member did not say so."""
    words = words_by(member)

    def told(text: str, run: str = RUN) -> Member:
        return Member(run, "tiny", member.peer_id, (), text)

    return {
        "another step": told(changed(words, step=8)),
        "younger than it is": told(changed(words, made_ms=MADE + 10_000)),
        "signed by the meeting point": told(signed_words(status_by(member), MADE, other.sign)),
        "of another run": told(words, "e" * 64),
        "of another run by name": told(changed(words, run="e" * 64), "e" * 64),
        "of somebody else": told(words_by(other)),
        "for another purpose": told(changed(words, domain="ftnode name 1")),
    }


def test_what_nobody_said_is_not_told(member: Identity, other: Identity) -> None:
    assert [name for name, told in forgeries(member, other).items() if heard(told)] == []


def test_planted_bug_a_signature_that_nobody_checks(member: Identity, other: Identity) -> None:
    with patched((told_on, "verify", lambda *_arguments: True)):
        believed = [name for name, told in forgeries(member, other).items() if heard(told)]
    assert believed == ["another step", "younger than it is", "signed by the meeting point", "of another run by name"]


NONSENSE: dict[str, Callable[[str], str]] = {
    "no base64": lambda text: "*" + text[1:],
    "no msgpack": lambda _: base64.b64encode(b"\xc1").decode(),
    "no envelope": lambda _: base64.b64encode(msgpack.packb([b"x"])).decode(),
    "a short signature": lambda _: base64.b64encode(msgpack.packb([b"x", b"y"])).decode(),
    "no words": lambda _: base64.b64encode(msgpack.packb([msgpack.packb([1]), bytes(64)])).decode(),
    "too long": lambda text: text + "A" * told_on.WORDS_TEXT_MAX,
    "not a number": partial(changed, loss=float("nan")),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_raises_what_costs_a_peer(kind: str, member: Identity) -> None:
    with pytest.raises(PeerError):
        read_words(NONSENSE[kind](words_by(member)), member.peer_id, RUN)


def test_a_peer_that_answers_cannot_pretend_to_be_told_on(member: Identity) -> None:
    lie = replace(status_by(member), told_by=POINT.peer_id, told_age=1.0)
    assert decode_status(encode_status(lie)) == status_by(member)


def test_the_longest_words_fit(member: Identity) -> None:
    most = "\U0001f600" * 500
    long = replace(status_by(member), name="n" * 64, waiting=most, state="s" * 50, step=2**47, steps=2**47)
    for status in (long, replace(long, waiting="", alarms=(most,))):
        text = signed_words(status, MADE, member.sign)
        assert text and status_of(read_words(text, member.peer_id, RUN), "", NOW).step == 2**47
    assert signed_words(replace(long, name=most), MADE, member.sign) == ""


def test_a_meeting_point_hands_on_the_newest_words_of_few() -> None:
    def notice(number: int) -> Statement:
        peer = Peer(f"p{number}", 1)
        return Statement(RUN, peer, number, number + 1, RunNotice("tiny", ("/ip4/192.0.2.1/tcp/1",), f"w{number}"))

    members = members_of(map(notice, range(1, 6)), {})
    assert [member.peer for member in members] == ["p1", "p2", "p3", "p4", "p5"]
    assert [member.words for member in members if member.words] == ["w4", "w5"] and WORDS_PER_RUN == 2
