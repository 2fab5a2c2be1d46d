"""What a manifest says of the optimiser since format 6."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.manifest.parse import parse, render, settings
from ftnode.protocol.words.errors import UserError
from tests.protocol.manifest.earlier import in_format
from tests.protocol.manifest.test_parse import TINY

MUON = replace(TINY, optimiser=replace(TINY.optimiser, kind="muon"))


def test_without_these_keys_it_is_adam_and_the_same_run() -> None:
    assert (TINY.optimiser.kind, TINY.optimiser.matrix_learning_rate, TINY.optimiser.momentum) == ("adam", 0.0, 0.95)
    assert b'"kind":"adam"' not in TINY.signed_bytes and b"momentum" not in TINY.signed_bytes
    assert MUON.run_id != TINY.run_id and b'"format":6' in MUON.signed_bytes
    assert b'"kind":"muon"' in MUON.signed_bytes and parse(render(MUON)) == MUON


def test_an_earlier_format_has_none_of_them() -> None:
    with pytest.raises(UserError, match=r"optimiser\.kind came with format 6; set format = 11"):
        parse(in_format(render(TINY), 5).replace("[optimiser]", '[optimiser]\nkind = "muon"'))
    with pytest.raises(UserError, match=r"optimiser\.kind is missing"):
        parse(in_format(render(TINY), 5).replace("format = 5", "format = 6"))
    assert parse(in_format(render(MUON), 5)) == TINY


@pytest.mark.parametrize(
    ("line", "wrong", "says"),
    [
        ('kind = "muon"', 'kind = "sgd"', 'optimiser.kind must be adam or muon, not "sgd"'),
        ("momentum = 0.95", "momentum = 1.0", "optimiser.momentum must be a number from 0 to 0.999999, not 1.0"),
        ("matrix_learning_rate = 0.0", "matrix_learning_rate = -1", "optimiser.matrix_learning_rate must be a number"),
    ],
)
def test_wrong_values_are_named(line: str, wrong: str, says: str) -> None:
    text = render(MUON)
    assert line in text
    with pytest.raises(UserError, match=says.replace(".", r"\.")):
        parse(text.replace(line, wrong))


def test_what_follows_from_a_smaller_state() -> None:
    told, usual = settings(MUON), settings(TINY)
    assert told.state_bytes < usual.state_bytes and told.gradient_bytes == usual.gradient_bytes
    assert MUON.copies_bytes == TINY.copies_bytes and MUON.head_every == TINY.head_every, "the head is Adam's"
