"""Whether this machine's line costs by the byte, as NetworkManager knows it or guesses; nobody else does."""

from __future__ import annotations

import os
import subprocess
from typing import Final

import trio

ASK: Final = (
    "busctl", "--system", "get-property", "org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager",
    "org.freedesktop.NetworkManager", "Metered",
)  # fmt: skip
ANSWER_SECONDS: Final = 2.0
METERED: Final = ("1", "3")
"""NMMetered: yes, and yes as far as can be guessed, as on a telephone's hotspot."""


async def is_metered() -> bool:
    """False where nobody knows."""
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            # busctl would tell its own errors to the service manager, as if they were ours
            quiet = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
            asked = await trio.run_process(ASK, capture_stdout=True, stderr=subprocess.DEVNULL, check=False, env=quiet)
        except OSError:
            return False
        return says_metered(asked.stdout.decode(errors="replace"))
    return False


def says_metered(answer: str) -> bool:
    """Of busctl's answer, a type and a value."""
    kind, _, value = answer.strip().partition(" ")
    return kind == "u" and value in METERED
