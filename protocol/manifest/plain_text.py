"""What a manifest's text can be, looked at before it is parsed: peers and links bring texts that nobody has signed yet.

Python's TOML reader takes a time that grows with the square of a key's dots, and a second for some hundred thousand
keys; the node does nothing else meanwhile. A manifest has some hundred keys and no dots in them. What may be long are
lists of texts, and comments, which are read fast. So strings and comments are passed over as TOML has them, and the
rest has bounds. The look takes a time that grows with the text's length alone, whatever it is.
"""

from __future__ import annotations

import re
from typing import Final

STRUCTURE_MAX: Final = 64 << 10
"""Letters outside of strings and comments, where any space counts as one. A list of 4,096 peers, one a line, has a
quarter of it."""
DOTS_MAX: Final = 3
"""In one key."""
_PASSED_OVER: Final = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?'
    r"|'''(?:[^']++|'(?!''))*+(?:'{3,5})?"
    r'|"(?:[^"\\\n]++|\\[^\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+",
    re.DOTALL,
)
"""Strings and comments (TOML 1.0). One without an end goes as far as TOML reads it, where the text is an error."""
_SPACE: Final = re.compile(r"[ \t]+")
_DOTTED: Final = re.compile(rf"(?<![\w-])(?:[\w-]++ ?\. ?){{{DOTS_MAX + 1}}}")


def require_plain(text: str) -> None:
    """Raises ValueError for a text that no manifest is."""
    rest = _SPACE.sub(" ", _PASSED_OVER.sub(_kept, text))
    if len(rest) > STRUCTURE_MAX:
        raise ValueError(f"{len(rest)} letters are outside of texts and comments; at most {STRUCTURE_MAX} may be")
    if _DOTTED.search(rest):
        raise ValueError(f"a key has more than {DOTS_MAX} dots")


def _kept(found: re.Match[str]) -> str:
    """A string counts as a letter, since it may be a part of a key."""
    return "" if found[0].startswith("#") else "s"
