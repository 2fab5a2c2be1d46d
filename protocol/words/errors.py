"""Whose fault it is decides what happens: ours crashes the node, theirs costs the peer, the user's gets one line."""

from __future__ import annotations

import sys


class FtnodeError(Exception):
    """Base of every error that this project raises on purpose."""


class LocalError(FtnodeError):
    """An invariant of ours is broken. Never caught: going on would spread the damage."""


class PeerError(FtnodeError):
    """A peer sent what the protocol forbids. Its connection ends and it is struck; we go on."""


class UserError(FtnodeError):
    """What a person typed or provided cannot be used. One line: the cause and what to do.

    `exit_code` follows sysexits: 64 usage, 65 data, 66 no input, 69 unavailable, 73 cannot create, 74 I/O, 75 try
    again, 76 protocol, 77 no permission, 78 configuration. `code` names it for good, by that and the file where it
    arises: by `ERRORS` of that file, which it keeps when it is renamed, else by its name. docs/reference/errors.md has
    them all.
    """

    def __init__(self, message: str, exit_code: int = 64) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        arises = sys._getframe(1).f_globals
        stem = arises.get("ERRORS") or arises.get("__name__", "").rpartition(".")[2]
        self.code = f"E{exit_code}-{stem}"
