"""Why a peer could not be dialled, in words for people. p2pd tells it in libp2p's, one line for each address, and only
the first time: for some seconds after it says no more than that it does not try again ("dial backoff")."""

from __future__ import annotations

import re
from typing import Final

from ftnode.node.links.newest import newest

PEERS_MAX: Final = 256
"""Whose last failure is remembered."""
ADDRESS: Final = re.compile(r"^\s*\*?\s*\[(/\S+)\]\s*")
ANOTHER: Final = "peer id mismatch"
ANOTHER_ID: Final = re.compile(r"remote key matches (\w{1,64})")
BACKOFF: Final = "dial backoff"
NO_ANSWER: Final = ("i/o timeout", "deadline exceeded")


class DialFailures:
    """Remembers for each peer why it could not be dialled, for the times when p2pd does not say."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def words(self, peer_id: str, text: str) -> str:
        """One line for what p2pd said of its dials to this peer. Each cause is named once."""
        causes = dict.fromkeys(_cause(line) for line in _tried(text))
        told = "; ".join(cause for cause in causes if cause)
        if not told:
            return self._last.get(peer_id, "it did not answer a moment ago")
        return newest(self._last, peer_id, told, PEERS_MAX)


def is_another(text: str) -> bool:
    """Whether, by what p2pd said, a peer answers at an address that is another than was wanted."""
    return ANOTHER in text


def found_instead(text: str) -> str:
    """PeerId of who answers at every address that p2pd tried, where that is another peer than was wanted; else
    empty."""
    found = [ANOTHER_ID.search(line) if is_another(line) else None for line in _tried(text)]
    return found[0][1] if found[0] is not None and all(found) else ""


def _tried(text: str) -> list[str]:
    """What happened at each address; what is told when there is no such line."""
    lines = [line for line in text.splitlines() if ADDRESS.match(line)]
    return lines or [" ".join(text.split())]


def _cause(line: str) -> str:
    """Empty when p2pd did not try."""
    reason = ADDRESS.sub("", line)
    if BACKOFF in reason:
        return ""
    if is_another(reason):
        found = ANOTHER_ID.search(reason)
        who = f": it is {found[1]}" if found else ""
        return f"something answers there, but it is not this peer{who}"
    if any(words in reason for words in NO_ANSWER):
        return "no answer"
    return reason.rpartition(": ")[2].strip() or reason
