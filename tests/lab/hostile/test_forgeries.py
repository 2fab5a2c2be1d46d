"""What the attacker says is admitted by the wire: an attack that is refused for its shape would measure nothing."""

from __future__ import annotations

import pytest

from ftnode.lab.hostile import forgeries
from ftnode.lab.hostile.field import Ground
from ftnode.node.directory.records import Claim, RunNotice, read_record
from ftnode.node.home.identity import verify
from ftnode.node.links.seals import Seals
from ftnode.protocol.manifest.parse import settings
from ftnode.protocol.wire.admission import objection, sensible_presence
from ftnode.protocol.wire.frames import PREFIX_BYTES, encode_frame, read_message, read_prefix
from ftnode.protocol.words.messages import Message
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View

MANIFEST = Ground().manifest()
SETTINGS = settings(MANIFEST)
HOLDERS = tuple(Peer(f"holder{number}", number) for number in range(SETTINGS.stage_count))
VIEW = View(
    MANIFEST.run_id, Lineage("l", 0, SETTINGS.stage_count), 3, "", HOLDERS[0], tuple((peer,) for peer in HOLDERS),
    HOLDERS, (0,) * SETTINGS.stage_count, "test",
)  # fmt: skip
LIAR = forgeries.Alias.fresh()
ADDRESSES = ("/ip4/127.0.0.1/tcp/1",)
FORGED = forgeries.led_by(VIEW, LIAR.peer)
LAST = forgeries.held_by(VIEW, LIAR.peer, forgeries.LAST_NUMBER)
FIRST = forgeries.first_begin(FORGED, ADDRESSES, 7, SETTINGS)


@pytest.mark.parametrize(
    "message",
    [
        forgeries.certificate(FORGED, LIAR, ADDRESSES, 7),
        forgeries.certificate(LAST, LIAR, ADDRESSES, 7),
        forgeries.heartbeat(FORGED, 7, quorate=True),
        forgeries.flood_frame(VIEW, 7, SETTINGS),
        FIRST,
        forgeries.begin_after(FORGED, FIRST, SETTINGS),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_wire_admits_what_it_says(message: Message) -> None:
    frame = encode_frame(message)
    read_prefix(frame[:PREFIX_BYTES])
    assert read_message(frame[PREFIX_BYTES:], 0, MANIFEST.boundary_bytes) == message
    assert objection(LIAR.peer, message, FORGED, SETTINGS) == ""


def test_a_frame_of_the_flood_is_as_large_as_it_says() -> None:
    size = len(encode_frame(forgeries.flood_frame(VIEW, 7, SETTINGS)))
    assert 0.9 * forgeries.FLOOD_BYTES < size <= 1.1 * forgeries.FLOOD_BYTES


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (forgeries.claim(LAST, LIAR, ADDRESSES), Claim),
        (forgeries.presence(VIEW, LIAR, ADDRESSES, 3), Presence),
        (forgeries.foreign_notice(MANIFEST.run_id, MANIFEST.run.name, LIAR, ADDRESSES), RunNotice),
    ],
    ids=["claim", "presence", "notice"],
)
def test_the_directory_takes_its_records(record: forgeries.SignedRecord, kind: type) -> None:
    statement = read_record(record.record, int(1000 * record.expires) - 1, verify)
    assert type(statement.body) is kind and statement.peer == LIAR.peer
    assert (statement.run == MANIFEST.run_id) == (kind is not RunNotice)
    assert not isinstance(statement.body, Presence) or sensible_presence(statement.body, SETTINGS)


def test_each_presence_is_of_an_identity_of_its_own() -> None:
    assert len({one.subkey for one in forgeries.presences(VIEW, ADDRESSES, 3, 5)}) == 5


def test_the_forged_leader_offers_weights_to_every_holder() -> None:
    assert {(plan.stage, plan.peer) for plan in FIRST.installs} == set(enumerate(HOLDERS))
    assert {donor.peer for plan in FIRST.installs for donor in plan.donors} == {LIAR.peer}


def test_its_certificates_bear_signatures_that_hold() -> None:
    Seals(HOLDERS[0]).check(LIAR.peer, forgeries.certificate(FORGED, LIAR, ADDRESSES, 7))
