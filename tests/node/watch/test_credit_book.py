"""Totals and names that outlast a node, and what watchers are told of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.home.identity import peer_id_of
from ftnode.node.home.name_card import made_card
from ftnode.node.watch.credit_book import FOLDER, ROWS_TOLD, CreditBook
from ftnode.node.watch.credit_table import RELAYS_SHOWN, credit_lines, first
from ftnode.node.watch.status import CreditRow, Speaker, SwarmStatus, decode_status, encode_status
from ftnode.protocol.step.credit import CreditLedger
from ftnode.protocol.words.events import Credited
from ftnode.protocol.words.messages import Commit
from ftnode.protocol.words.types import CREDITED_MAX, Credit, Given

ADA, EVE = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
ADAS, EVES = (peer_id_of(key.public_key().public_bytes_raw()) for key in (ADA, EVE))
CARD = made_card(ADAS, "Ada", 5, ADA.sign)


def ledger(steps: int = 3) -> CreditLedger:
    found = CreditLedger()
    for step in range(1, steps + 1):
        found.count(Commit(step, 1.0, 8, 2.0, False, (), (), (Given(ADAS, 6, 0, 500), Given(EVES, 2, 1))))
    return found


def book(home: Path, counted: CreditLedger) -> CreditBook:
    return CreditBook(home, "run", lambda: counted)


def test_totals_and_names_outlast_a_node(tmp_path: Path) -> None:
    first = book(tmp_path, ledger())
    first.learn(ADAS, CARD.name, CARD.text)
    first.write()
    again = CreditLedger()
    second = book(tmp_path, again)
    noted = second.read()
    assert noted == Credited(3, (Credit(ADAS, 18, 6.0, 0, 1500), Credit(EVES, 6, 6.0, 3)))
    again.restore(noted.step, noted.credits)
    assert second.rows() == first.rows() == (
        CreditRow(ADAS, 18, 6.0, 0, "Ada", CARD.text, 1500), CreditRow(EVES, 6, 6.0, 3),
    )  # fmt: skip
    assert (tmp_path / FOLDER / "run.json").stat().st_mode & 0o077 == 0
    assert book(tmp_path / "elsewhere", CreditLedger()).read() is None


SPOILT = [
    "", "{", "[]", "null", "3", '{"format": 2}', "[" * 100_000, "\xff",
    *(json.dumps({"format": 2, "step": 1, "credits": rows, "names": {}} | more) for rows, more in (
        ([["a", -1, 0.0, 0, 0]], {}), ([["a", 1, 0.0, 0]], {}), ([["a", 1, 0.0, 0, 0]] * 2, {}),
        ([["a" * 100, 1, 0.0, 0, 0]], {}), ([["a", 1, 0.0, 0, -1]], {}), ([["a", 1, 0.0, 0, 1 << 50]], {}),
        ([[str(n), 1, 0.0, 0, 0] for n in range(CREDITED_MAX + 2)], {}), ([], {"step": -1}), ([], {"format": 3}),
        ([], {"step": "1"}), ([["a", 1, float("nan"), 0, 0]], {}), ([], {"names": []}), ([], {"names": {"a": 1}}),
        ([["a", 1, 0.0, 0, 0]], {"format": 1}), (3, {"format": 1}), ([3], {"format": 1}), ({"a": 1}, {"format": 1}),
    )),
]  # fmt: skip


@pytest.mark.parametrize("text", SPOILT, ids=range(len(SPOILT)))
def test_a_spoilt_note_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "run.json").write_text(text, encoding="latin-1")
    assert book(tmp_path, ledger()).read() is None


def test_a_note_of_before_relays_counted_is_read(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    old = {"format": 1, "step": 3, "credits": [[ADAS, 18, 6.0, 0]], "names": {ADAS: [CARD.name, CARD.text]}}
    (tmp_path / FOLDER / "run.json").write_text(json.dumps(old))
    found = book(tmp_path, ledger())
    assert found.read() == Credited(3, (Credit(ADAS, 18, 6.0, 0, 0),))
    assert found.rows()[0].name == "Ada"


def test_a_note_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    book(tmp_path, ledger()).write()


def test_the_newer_card_counts_and_only_a_peers_own(tmp_path: Path) -> None:
    found = book(tmp_path, ledger())
    found.learn(ADAS, CARD.name, CARD.text)
    for name, moment, key in (("Eve", 9, EVE), ("Old", 4, ADA)):
        found.learn(ADAS, name, made_card(ADAS, name, moment, key.sign).text)
    found.learn_from([CreditRow(EVES, 1, 1.0, 0, "Ada", CARD.text)])
    assert [row.name for row in found.rows()] == ["Ada", ""]
    found.learn_from([CreditRow(ADAS, 1, 1.0, 0, "Ada L.", made_card(ADAS, "Ada L.", 6, ADA.sign).text)])
    assert found.rows()[0].name == "Ada L."
    found.learn(ADAS, "", made_card(ADAS, "", 7, ADA.sign).text)
    assert found.rows()[0].name == ""


def test_a_status_tells_of_the_first_and_of_all_others_together(tmp_path: Path) -> None:
    counted = CreditLedger()
    rows = tuple(Credit(f"peer{n}", 1000 - n, 1.0, 1) for n in range(ROWS_TOLD + 5))
    counted.restore(1, rows)
    told = book(tmp_path, counted).rows()
    assert len(told) == ROWS_TOLD + 1 and told[-1].peer == "" and told[-1].rebuilt == 5
    assert sum(row.visits for row in told) == sum(row.visits for row in rows)


def test_who_relays_most_is_told_of_though_it_computes_nothing(tmp_path: Path) -> None:
    counted = CreditLedger()
    carriers = tuple(Credit(f"relay{n}", 0, 0.0, 0, 1000 + n) for n in range(RELAYS_SHOWN + 2))
    counted.restore(1, (*(Credit(f"peer{n}", 1000 - n, 1.0, 1) for n in range(ROWS_TOLD + 5)), *carriers))
    told = book(tmp_path, counted).rows()
    assert len(told) == ROWS_TOLD + 1 and told[0].peer == "peer0"
    assert [row.peer for row in told[-1 - RELAYS_SHOWN : -1]] == ["relay5", "relay4", "relay3", "relay2"]
    assert sum(row.relayed_bytes for row in told) == sum(row.relayed for row in carriers)
    assert told[-1].relayed_bytes == 2001 and first(told, 24)[-2].peer == "relay2"


def test_a_name_signed_by_another_key_is_not_shown_to_anybody() -> None:
    """Whoever tells the status made it up: there is no way for it into a table, a page or a model card."""
    forged = made_card(ADAS, "Eve", 5, EVE.sign)
    rows = (CreditRow(ADAS, 9, 3600.0, 1, "Eve", forged.text, 12_345_678), CreditRow(ADAS, 3, 1.0, 0, "Ada", CARD.text))
    rows += (CreditRow(EVES, 1, 1.0, 0, "<b>", made_card(EVES, "<b>", 5, EVE.sign).text),)
    status = SwarmStatus(Speaker("p", "0", "cpu", "volunteer"), "run", "tiny", 4, credits=rows, credits_step=3)
    read = decode_status(encode_status(status))
    assert [(row.name, bool(row.name_card)) for row in read.credits] == [("", False), ("Ada", True), ("", False)]
    lines = credit_lines(read)
    assert "Eve" not in "\n".join(lines) and lines[2].split() == [ADAS[-6:], "9", "69.2%", "1.00", "1", "12.3", "MB"]
    assert lines[0] == "tiny (run), steps 1 to 3; the run is at step 4" and lines[3].endswith("  Ada")


def test_a_meeting_point_does_not_say_that_nobody_is_credited() -> None:
    """It counts nobody, whatever was done; a member that has counted nothing yet says just that."""
    point = SwarmStatus(Speaker("p", "0", "", "bootstrap"))
    member = SwarmStatus(Speaker("p", "0", "cpu", "volunteer"), "run", "tiny")
    told_on = replace(member, told_by="p", told_age=3.0)
    for status in (point, told_on):
        (line,) = credit_lines(status)
        assert "nobody is credited" not in line and "ask a volunteer: ftnode credits --peer ADDR" in line
    assert "nobody is credited with anything yet" in credit_lines(member)[0]
