"""Words about liars on a disk: they outlast the node, and what nobody has signed counts for nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.home.identity import peer_id_of
from ftnode.node.links.seals import Seals
from ftnode.node.snapshots.liar_book import FOLDER, LiarBook
from ftnode.node.snapshots.signed_words import LIARS_BYTES_MAX, unusable
from ftnode.protocol.leader.convictions import liar_of
from ftnode.protocol.words.effects import KeepConvicted
from ftnode.protocol.words.events import Event, Remembered
from ftnode.protocol.words.messages import Convicted, Judge, Poisoned, Verdict
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer

RUN = "0" * 32
KEYS = [Ed25519PrivateKey.generate() for _ in range(3)]
ME, ACCUSER, OTHER = (Peer(peer_id_of(key.public_key().public_bytes_raw()), 7) for key in KEYS)
SEALS = {peer: Seals(peer, key.sign) for peer, key in zip((ME, ACCUSER, OTHER), KEYS)}
SETTINGS = Settings(RUN, stages=2, steps=100, microbatches=4, window=2)


def words(liar: str, guilty: bool | None = True) -> Convicted:
    """As we are shown them; what we have said ourselves is not signed yet."""
    accused = Peer(liar, 1)
    said = Poisoned("line", 3, 7, Attempt(3, 2), 1, -1, "1 of its size away", accused, 1.0)
    ours = Verdict(Judge.of(ACCUSER, said, accused), guilty, "found the same")
    case = Convicted(ACCUSER, said, ((ME, ours), (OTHER, ours)))
    for peer in (ACCUSER, OTHER):
        case = SEALS[peer].sealed(case)  # type: ignore[assignment]
    return case


def book(home: Path, told: list[Event], me: Peer = ME) -> LiarBook:
    return LiarBook(home, RUN, SETTINGS, Seals(me, KEYS[0].sign), told.append)


def known(home: Path) -> list[str]:
    """To the next life, which has another nonce."""
    told: list[Event] = []
    book(home, told, Peer(ME.id, 8)).tell()
    assert all(isinstance(event, Remembered) for event in told)
    return [str(liar_of(case)) for event in told for case in event.cases]  # type: ignore[union-attr]


def keep(home: Path, *liars: str) -> Path:
    for liar in liars:
        trio.run(book(home, []).keep, KeepConvicted(words(liar), 6, 2))
    return home / FOLDER / f"{RUN}.json"


def test_what_is_kept_is_signed_and_there_after_another_start(tmp_path: Path) -> None:
    assert known(tmp_path) == []
    path = keep(tmp_path, "x", "y", "x")
    assert known(tmp_path) == [str(Peer("x", 1)), str(Peer("y", 1))]
    assert '""' not in path.read_text(), "each word is signed"


def test_beside_a_case_stands_when_it_was_first_heard(tmp_path: Path) -> None:
    keep(tmp_path, "x")
    trio.run(book(tmp_path, []).keep, KeepConvicted(words("x"), 90, 5))
    assert [(kept.committed, kept.order) for kept in book(tmp_path, []).read()] == [(6, 2)]


def spoil(path: Path, change: Any) -> None:
    """Of the first of the cases."""
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def _other_name(found: Any) -> None:
    text = json.dumps(found[0]).replace('"x"', '"z"')
    found[0] = json.loads(text)


def _no_shape(found: Any) -> None:
    found[0] = [[[]]]


def _a_word_less(found: Any) -> None:
    found[0][0][2] = []


def _nobody_guilty(found: Any) -> None:
    found[0] = json.loads(json.dumps(found[0]).replace("true", "null"))


@pytest.mark.parametrize("change", [_other_name, _no_shape, _a_word_less, _nobody_guilty])
def test_a_case_that_is_not_what_was_signed_is_left_out_and_no_other(
    tmp_path: Path, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(keep(tmp_path, "x", "y"), change)
    with caplog.at_level(logging.WARNING):
        assert known(tmp_path) == [str(Peer("y", 1))]
    (line,) = caplog.messages
    assert line.startswith("1 of the words about liars")


@pytest.mark.parametrize("damage", ["cut off", "no text", "no list", "too large", "nested", "a folder"])
def test_a_damaged_file_is_one_line_and_the_next_words_are_kept(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = keep(tmp_path, "x")
    text = path.read_text()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage == "no text":
        path.write_bytes(b"\xff\xfe" + text.encode())
    else:
        path.write_text({
            "cut off": text[:-20], "no list": "{}", "too large": text + " " * LIARS_BYTES_MAX, "nested": "[" * 100_000,
        }[damage])  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert known(tmp_path) == []
    (line,) = caplog.messages
    assert line.startswith("who was found to lie is not known from before")
    said: list[tuple[str, ...]] = []
    LiarBook(tmp_path, RUN, SETTINGS, SEALS[ME], lambda event: None, lambda *line: said.append(line)).tell()
    assert said == [("convicted", line)], "in the terminal of its owner as well"
    (trouble,) = unusable(tmp_path)
    assert line.endswith(trouble) and trouble.startswith(f"{path} cannot be used: ")
    if damage != "a folder":
        keep(tmp_path, "y")
        assert known(tmp_path) == [str(Peer("y", 1))] and unusable(tmp_path) == []


def test_a_disk_that_refuses_costs_nothing_but_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        keep(tmp_path, "x")
    (line,) = caplog.messages
    assert line.startswith(f"that {Peer('x', 1)} lied is not kept")


def test_planted_signatures_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then whoever writes on the disk convicts whom it likes."""
    spoil(keep(tmp_path, "x"), _other_name)
    assert known(tmp_path) == []
    monkeypatch.setattr(Seals, "check", lambda self, sender, message: None)
    assert known(tmp_path) == [str(Peer("z", 1))]
