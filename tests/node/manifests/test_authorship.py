"""Manifests that are signed: what a signature covers, who may change what, and every way in which one does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.node.home.identity import Identity, home_directory
from ftnode.node.manifests.authorship import announce, author_key, order_of, order_rollback, sign, signer
from ftnode.node.manifests.presets import PRESETS
from ftnode.protocol.manifest.parse import Membership, parse, render
from ftnode.protocol.manifest.signature import read_signature, without_signature
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import NO_ORDER, RollbackOrder
from tests.protocol.manifest.earlier import in_format

TEXT = render(PRESETS["tiny"])


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Identity]:
    taken = author_key(home_directory(str(tmp_path / "stranger")))
    yield taken
    taken.release()


def who_signed(text: str) -> str:
    return signer(parse(text), text, "tiny.toml")


def refusal(text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        who_signed(text)
    return caught.value


def test_the_author_is_named_and_the_rest_of_the_text_stays(key: Identity) -> None:
    text = TEXT.replace("[batch]", "# a comment of mine\n[batch]  # and another")
    signed = sign(text, key)
    assert who_signed(signed) == key.peer_id
    assert without_signature(signed).rstrip() == text.replace('author = ""', f'author = "{key.peer_id}"').rstrip()
    assert sign(signed, key) == signed, "nothing to do"


def test_the_key_is_made_once_and_is_no_node_s(tmp_path: Path) -> None:
    home = home_directory(str(tmp_path / "home"))
    first = author_key(home)
    with pytest.raises(UserError, match="another ftnode uses"):
        author_key(home)
    first.release()
    second = author_key(home)
    assert first.peer_id == second.peer_id and [path.name for path in home.iterdir()] == ["author"]
    second.release()


def test_comments_and_order_are_free(key: Identity) -> None:
    signed = sign(TEXT, key)
    assert who_signed(signed.replace("# Optimiser steps of the whole run.", "# as long as it takes")) == key.peer_id


@pytest.mark.parametrize(
    ("old", "new"), [("steps = 400", "steps = 401"), ("seed = 1", "seed = 2"), ('"cosine"', '"constant"')]
)
def test_an_edited_value_makes_another_run(key: Identity, old: str, new: str) -> None:
    error = refusal(sign(TEXT, key).replace(old, new))
    assert error.exit_code == 78 and "was changed after it was signed" in str(error)


def test_an_edited_list_does_not_fit_the_signature(key: Identity, stranger: Identity) -> None:
    text = sign(TEXT, key).replace("peers = []", f'peers = ["{stranger.peer_id}"]')
    assert "is not that of its author" in str(refusal(text))


def test_another_key_s_signature_is_refused(key: Identity, stranger: Identity) -> None:
    """The values say who the author is; somebody else signs them all the same."""
    signed = sign(TEXT, key)
    ours = read_signature(signed)
    assert ours is not None
    forged = signed.replace(ours.signature.hex(), stranger.sign(parse(signed).signed_bytes).hex())
    assert "is not that of its author" in str(refusal(forged))
    with pytest.raises(UserError, match="only the author can sign it"):
        sign(signed, stranger)


def test_an_author_without_a_signature_is_unsigned(key: Identity) -> None:
    assert who_signed(TEXT) == "" == who_signed(without_signature(sign(TEXT, key)))


def test_a_signature_without_an_author_is_refused(key: Identity) -> None:
    signed = sign(TEXT, key).replace(f'author = "{key.peer_id}"', 'author = ""')
    assert "names no run.author" in str(refusal(signed))


@pytest.mark.parametrize("damage", ['signature = "00"', "signature = 5", 'signature = "' + "G" * 128 + '"'])
def test_a_damaged_section_is_one_line(key: Identity, damage: str) -> None:
    signed = sign(TEXT, key)
    ours = read_signature(signed)
    assert ours is not None
    assert "is damaged" in str(refusal(signed.replace(f'signature = "{ours.signature.hex()}"', damage)))


def test_whoever_is_added_raises_the_revision_and_changes_no_run(key: Identity, stranger: Identity) -> None:
    signed = sign(TEXT, key)
    edited = signed.replace('join = "open"', 'join = "listed"').replace("peers = []", f'peers = ["{stranger.peer_id}"]')
    again = sign(edited, key)
    assert who_signed(again) == key.peer_id
    assert parse(again).membership == Membership(join="listed", peers=(stranger.peer_id,), revision=1)
    assert parse(again).run_id == parse(signed).run_id
    assert sign(again, key) == again, "no revision without a change"


def test_an_earlier_format_cannot_be_signed_as_it_is(key: Identity) -> None:
    with pytest.raises(UserError, match="with format = 4"):
        sign(in_format(TEXT, 3), key)


def test_all_presets_can_be_signed(key: Identity) -> None:
    for preset in PRESETS.values():
        signed = sign(render(preset), key)
        assert parse(signed) == replace(preset, run=replace(preset.run, author=key.peer_id))


def test_a_message_is_signed_and_raises_the_revision(key: Identity) -> None:
    signed = sign(TEXT.replace("[batch]", "# a comment of mine\n[batch]"), key)
    said = announce(signed, 'Step 1,000: say "thanks", and C:\\', key)
    manifest = parse(said)
    assert manifest.membership.message == 'Step 1,000: say "thanks", and C:\\'
    assert (manifest.membership.revision, manifest.run_id, who_signed(said)) == (1, parse(signed).run_id, key.peer_id)
    assert "# a comment of mine" in said
    again = announce(said, "", key)
    assert parse(again).membership.message == "" and parse(again).membership.revision == 2
    assert announce(again, "", key) == again, "nothing to do"


@pytest.mark.parametrize("message", ["two\nlines", "a\x1b[31m", "a\u202eb", "a\u200bb", "x" * 281])
def test_a_message_that_does_not_look_as_it_is_is_refused(message: str, key: Identity) -> None:
    with pytest.raises(UserError, match="one line of at most 280"):
        announce(sign(TEXT, key), message, key)
    spelled = message.encode("unicode_escape").decode().replace("\\x", "\\u00")
    with pytest.raises(UserError, match="one line of at most 280"):
        parse(TEXT.replace('message = ""', f'message = "{spelled}"'))


def test_nobody_but_the_author_announces(key: Identity, stranger: Identity) -> None:
    with pytest.raises(UserError, match="only its author") as caught:
        announce(sign(TEXT, key), "mine now", stranger)
    assert caught.value.exit_code == 77
    with pytest.raises(UserError, match="only its author"):
        announce(TEXT, "of an unsigned run", key)


def test_a_manifest_of_an_earlier_format_announces_and_its_run_stays(key: Identity) -> None:
    signed = sign(in_format(TEXT, 7), key)
    said = announce(signed, "hello", key)
    assert parse(said).run_id == parse(signed).run_id and who_signed(said) == key.peer_id
    assert parse(said).membership.message == "hello" and parse(said).membership.revision == 1


def test_an_order_to_roll_back_is_signed_and_each_is_another(key: Identity) -> None:
    signed = sign(TEXT.replace("[batch]", "# a comment of mine\n[batch]"), key)
    assert order_of(parse(signed)) == NO_ORDER
    ordered = order_rollback(signed, 70, key)
    assert order_of(parse(ordered)) == RollbackOrder(2, 70) and "# a comment of mine" in ordered
    assert parse(ordered).run_id == parse(signed).run_id and who_signed(ordered) == key.peer_id
    again = order_rollback(announce(ordered, "sorry", key), 70, key)
    assert order_of(parse(again)) == RollbackOrder(4, 70) and parse(again).membership.revision == 4


def test_an_order_is_later_than_one_that_members_gave(key: Identity) -> None:
    for text in (sign(TEXT, key), sign(in_format(TEXT, 7), key)):
        ordered = order_rollback(text, 70, key, after=5)
        assert order_of(parse(ordered)) == RollbackOrder(6, 70) and parse(ordered).membership.revision == 6
        assert who_signed(ordered) == key.peer_id and parse(ordered).run_id == parse(text).run_id
        again = order_rollback(ordered, 60, key, after=5)
        assert order_of(parse(again)) == RollbackOrder(8, 60)


def test_nobody_but_the_author_orders_to_roll_back(key: Identity, stranger: Identity) -> None:
    for text, who in ((sign(TEXT, key), stranger), (TEXT, key)):
        with pytest.raises(UserError, match="only its author orders") as caught:
            order_rollback(text, 70, who)
        assert caught.value.exit_code == 77
    forged = order_rollback(sign(TEXT, key), 70, key).replace("rollback_to = 70", "rollback_to = 7")
    assert "was changed" in str(refusal(forged))


def test_a_run_without_an_author_takes_no_order() -> None:
    manifest = parse(TEXT)
    said = replace(manifest, membership=replace(manifest.membership, rollback_order=1, rollback_to=7))
    assert order_of(said) == NO_ORDER


def test_a_manifest_of_an_earlier_format_takes_an_order_and_its_run_stays(key: Identity) -> None:
    signed = sign(in_format(TEXT, 7), key)
    ordered = order_rollback(signed, 70, key)
    assert parse(ordered).run_id == parse(signed).run_id and order_of(parse(ordered)) == RollbackOrder(2, 70)
