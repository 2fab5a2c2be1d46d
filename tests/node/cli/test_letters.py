"""What ftnode says reaches every terminal."""

from __future__ import annotations

import io

import pytest

from ftnode.node.cli.letters import spell_out


@pytest.mark.parametrize(
    ("encoding", "said"),
    [("utf-8", "a…b → c × ü 字"), ("iso-8859-1", "a...b -> c × ü ?"), ("ascii", "a...b -> c x ? ?")],
)
def test_letters_that_a_terminal_does_not_have(encoding: str, said: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    spell_out(stream, None)
    stream.write("a…b → c × ü 字")
    stream.flush()
    assert raw.getvalue().decode(encoding) == said


def test_a_stream_that_is_none_of_ours_stays() -> None:
    spell_out(None, io.StringIO())
