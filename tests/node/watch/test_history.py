"""A history arrives whole and in pieces, strangers' bytes do not get far, and notes are bounded."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.watch import history as history_module
from ftnode.node.watch.dashboard_live import after, beginning
from ftnode.node.watch.history import (
    COMMITS_MAX,
    NOTES_KEPT,
    NOTES_MAX,
    NUMBER_MAX,
    REPLY_BYTES_MAX,
    CommitRow,
    History,
    HistoryRequest,
    NoteLog,
    NoteRow,
    ValidationRow,
    decode_history,
    encode_history,
    encode_request,
    history,
    history_handler,
    read_request,
)
from ftnode.node.watch.peer_choice import to_dial
from ftnode.node.watch.status import REQUEST_BYTES_MAX, Member
from ftnode.protocol.participant import Participant
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.messages import Commit
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer

FULL = History(
    "run1", "lineage1", "77",
    commits=(CommitRow(3, 2.5, 4096, 0.25, False), CommitRow(4, 2.25, 0, 0.0, True)),
    validations=(ValidationRow(3, 2.75),),
    notes=(NoteRow(1, 0.5, 3, "lost", "abc with stage 2 is lost (silent)"),),
    more=True,
    members=(Member("run1", "", "12D3KooWleader", ("/ip4/127.0.0.1/tcp/1",)),),
)  # fmt: skip


def plain(**change: Any) -> bytes:
    found = msgpack.unpackb(encode_history(FULL))
    data: bytes = msgpack.packb(found | change)
    return data


@pytest.mark.parametrize("told", [FULL, History("", "", "")])
def test_a_history_survives_its_journey(told: History) -> None:
    assert decode_history(encode_history(told)) == told


def test_the_largest_history_fits_its_frame() -> None:
    text = "é" * history_module.NOTE_TEXT_MAX
    largest = History(
        "r" * 32, "l" * 16, "1" * 16,
        tuple(CommitRow(NUMBER_MAX - COMMITS_MAX + n, 1 / 3, 10**9, 1 / 3, True) for n in range(COMMITS_MAX)),
        tuple(ValidationRow(NUMBER_MAX - COMMITS_MAX + n, 1 / 3) for n in range(COMMITS_MAX)),
        tuple(NoteRow(n + 1, 1 / 3, NUMBER_MAX - 1, "k" * 40, text) for n in range(NOTES_MAX)),
        True,
        tuple(Member("r" * 32, "", "p" * 52, ("/" + "a" * 255,) * 4) for _ in range(history_module.MEMBERS_MAX)),
    )  # fmt: skip
    data = encode_history(largest)
    assert len(data) <= REPLY_BYTES_MAX
    assert decode_history(data) == largest


def test_a_reader_ignores_names_of_the_future_and_does_without_those_of_the_past() -> None:
    found = msgpack.unpackb(plain(mood="good"))
    found["members"][0]["colour"] = "red"
    del found["notes"]
    assert decode_history(msgpack.packb(found)) == replace(FULL, notes=())


MEMBER = {"run": "r", "name": "", "peer": "p", "addresses": []}
ROW = [5, 2.0, 1, 0.1, False]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"format": None}, {"run": 3}, {"life": None}, {"more": 1}, {"commits": 1}, {"commits": [[]]},
        {"commits": [[5, 2.0, 1, 0.1]]}, {"commits": [ROW, ROW]}, {"commits": [ROW, [4, *ROW[1:]]]},
        {"commits": [[0, *ROW[1:]]]}, {"commits": [[True, *ROW[1:]]]}, {"commits": [[5, float("nan"), 1, 0.1, False]]},
        {"commits": [[5, 2.0, -1, 0.1, False]]}, {"commits": [[5, 2.0, 1, -0.1, False]]},
        {"commits": [[n + 1, *ROW[1:]] for n in range(COMMITS_MAX + 1)]}, {"commits": [[NUMBER_MAX, *ROW[1:]]]},
        {"validations": [[1, "x"]]}, {"notes": [[1, -1.0, 0, "k", "t"]]}, {"notes": [[1, 1.0, 0, "k", "t" * 5000]]},
        {"notes": [[1, 1.0, 0, "k", "t" * 601]]},
        {"members": [MEMBER] * 17},
        {"notes": [[n + 1, 1.0, 0, "k", "t"] for n in range(NOTES_MAX + 1)]}, {"members": {}}, {"members": [[]]},
        {"members": [{}]}, {"members": [{"run": "r", "name": "", "peer": "p", "addresses": "ab"}]},
    ],
    ids=lambda change: str(change)[:40],
)  # fmt: skip
def test_what_does_not_fit_is_a_peer_error(change: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        decode_history(plain(**change))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc0", b"\x91" * 9000, msgpack.packb(msgpack.ExtType(5, b""))])
def test_odd_bytes_are_a_peer_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        decode_history(data)


def test_spoiled_bytes_are_a_history_or_a_peer_error() -> None:
    chance, whole, refused = random.Random(2), encode_history(FULL), 0
    for _ in range(3000):
        spoiled = bytearray(whole)
        spoiled[chance.randrange(len(whole))] = chance.randrange(256)
        try:
            decode_history(bytes(spoiled))
        except PeerError:
            refused += 1
    assert refused > 300


def test_requests() -> None:
    request = HistoryRequest(10_000, 0, NUMBER_MAX - 1)
    assert len(encode_request(request)) < REQUEST_BYTES_MAX
    assert read_request(msgpack.unpackb(encode_request(request))) == request
    assert read_request({"format": 1, "later": "x"}) == HistoryRequest()


@pytest.mark.parametrize(
    "asked", [{}, {"format": 2}, *({"format": 1, "commits": bad} for bad in (-1, NUMBER_MAX, 1.5, "1", None, True))]
)
def test_a_request_for_no_place_is_a_peer_error(asked: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        read_request(asked)


def participant() -> Participant:
    settings = Settings(run="run1", stages=2, steps=9, microbatches=4, window=4)
    return Participant(Peer("me", 7), settings, random.Random(1), addresses=(), hold=1)


def test_a_watcher_gets_the_past_piece_by_piece() -> None:
    core, notes = participant(), NoteLog()
    core.chronicle.learn(tuple(Commit(n + 1, 2.0, 8, 0.5, False, ()) for n in range(COMMITS_MAX + 5)), 0.0)
    core.chronicle.evaluate(50, 1.5)
    for number in range(NOTES_MAX + 1):
        notes.add(Note("kind", f"decision {number}", ()), number, float(number))
    places, pieces = beginning(True), []
    while not pieces or pieces[-1].more:
        pieces.append(decode_history(encode_history(history(core.picture, notes, places, 200.0))))
        places = after(places, pieces[-1])
    assert [row.step for told in pieces for row in told.commits] == list(range(1, COMMITS_MAX + 6))
    assert [row.text for told in pieces for row in told.notes] == [f"decision {n}" for n in range(NOTES_MAX + 1)]
    assert [row for told in pieces for row in told.validations] == [(50, 1.5)]
    assert pieces[0].notes[0].age == 200.0
    assert len(pieces) == 2
    core.chronicle.learn((Commit(COMMITS_MAX + 6, 1.0, 8, 0.5, False, ()),), 0.0)
    news = history(core.picture, notes, places, 201.0)
    assert ([row.step for row in news.commits], news.validations, news.notes) == ([COMMITS_MAX + 6], (), ())


def test_without_the_curve_only_notes_travel() -> None:
    core, notes = participant(), NoteLog()
    core.chronicle.learn((Commit(1, 2.0, 8, 0.5, False, ()),), 0.0)
    notes.add(Note("kind", "decision", ()), 1, 0.0)
    told = history(core.picture, notes, beginning(False), 0.0)
    assert (told.commits, [note.text for note in told.notes]) == ((), ["decision"])


def test_more_of_nothing_is_a_peer_error() -> None:
    with pytest.raises(PeerError):
        after(HistoryRequest(), History("r", "l", "1", more=True))


@pytest.mark.parametrize(
    ("places", "new"),
    [
        (HistoryRequest(2, 2, 0), True),
        (HistoryRequest(3, 2, 0), False),
        (HistoryRequest(2, 3, 0), False),
        (HistoryRequest(2, 2, 1), False),
    ],
)
def test_who_tells_the_same_again_and_says_that_there_is_more_is_not_asked_without_end(
    places: HistoryRequest, new: bool
) -> None:
    told = replace(FULL, more=True)
    with nullcontext() if new else pytest.raises(PeerError):
        assert after(places, told) == HistoryRequest(4, 3, 1)


def test_notes_are_bounded_short_and_printable() -> None:
    notes = NoteLog()
    for number in range(NOTES_KEPT + 7):
        notes.add(Note("k\x1b", "a\x1b[2J\n" + "b" * 9000, ()), number, 0.0)
    kept = notes.after(0, 1.0)
    assert len(kept) == NOTES_KEPT
    assert kept[-1].number == NOTES_KEPT + 7
    assert len(kept[0].text) <= history_module.NOTE_TEXT_MAX
    assert kept[0].text.isprintable() and kept[0].kind.isprintable()


def test_members_that_cannot_be_dialled_are_left_out() -> None:
    peer = "12D3KooWAPadf8WG1R1Wvn4KN6bYS8dXcWZnhg4bAxrpBrFxdarJ"
    asked = [PeerAddress(peer, ("/ip4/127.0.0.1/tcp/40000",))]
    good = ("/ip4/127.0.0.1/tcp/40001", f"/ip4/127.0.0.1/tcp/40002/p2p/{peer}/p2p-circuit", "/nonsense")
    elsewhere = (
        "/ip4/127.0.0.2/tcp/40001", "/ip4/127.0.0.1/tcp/22", "/dns4/localhost/tcp/40001",
        f"/ip4/127.0.0.2/tcp/40002/p2p/{peer}/p2p-circuit", f"/ip4/127.0.0.1/tcp/22/p2p/{peer}/p2p-circuit",
    )  # fmt: skip
    assert [found.addresses for found in to_dial([(peer, (*good, *elsewhere))], asked)] == [good[:2]]
    assert to_dial([("nobody", good)], asked) == ()
    odd = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"  # an RSA key's
    assert [found.peer_id for found in to_dial([("nobody", good), (odd, good), (peer, good)], asked)] == [peer]
    assert to_dial([(peer, good)], ()) == (), "nobody has led us to this machine"


def test_a_handler_answers_what_was_asked_and_hangs_up_on_nonsense() -> None:
    async def main() -> None:
        asked = []

        def source(request: HistoryRequest) -> History:
            asked.append(request)
            return FULL

        handler = history_handler(source)
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handler, "watcher", theirs)
            started = trio.current_time()
            for step in range(5):
                await write_frame(ours, encode_request(HistoryRequest(step, 0, 0)))
                assert decode_history(await read_frame(ours.receive_some, REPLY_BYTES_MAX)) == FULL
            assert trio.current_time() - started >= 4 * history_module.POLL_SECONDS_MIN
            await write_frame(ours, msgpack.packb({"format": 1, "commits": -1}))
        assert [request.commits for request in asked] == [0, 1, 2, 3, 4]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
