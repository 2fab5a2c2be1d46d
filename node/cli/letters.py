"""Letters that a terminal does not have, as those of ISO-8859-1 or of the C locale: plain ones take their place."""

from __future__ import annotations

import codecs
import io
from contextlib import suppress
from typing import Final, TextIO

PLAIN: Final = {"…": "...", "–": "-", "—": "-", "→": "->", "·": "*", "×": "x", "≥": ">=", "≤": "<=", "µ": "u"}
"""Of the letters beyond ASCII that ftnode says itself; names that people chose may have any."""
HANDLER: Final = "ftnode.letters"


def spell_out(*streams: TextIO | None) -> None:
    """From now on these streams take any text. A stream that has all letters, or is none of ours, stays as it is."""
    codecs.register_error(HANDLER, _spelled)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and not _has_all_letters(stream.encoding):
            with suppress(OSError):
                stream.reconfigure(errors=HANDLER)


def _has_all_letters(encoding: str) -> bool:
    try:
        return bool("".join(PLAIN).encode(encoding))
    except UnicodeEncodeError:
        return False


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end
