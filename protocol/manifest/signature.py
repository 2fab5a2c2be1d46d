"""The signature of a manifest, as it stands in the text: a section of its own, last in the file.

    [signature]
    run_id = "32 hexadecimal digits"
    signature = "128 hexadecimal digits"

The signature is the author's, over `Manifest.signed_bytes`, so comments and order may change under it. `run_id` is the
one at the time of signing: whoever edits the values sees that they have made another run.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Final

from ftnode.protocol.manifest.parse import CONFIGURATION, SIGNATURE
from ftnode.protocol.words.errors import UserError

_SECTION: Final = re.compile(rf"(?m)^[ \t]*\[[ \t]*{SIGNATURE}[ \t]*\][ \t]*(#.*)?$")
_NEXT_SECTION: Final = re.compile(r"(?m)^[ \t]*\[")


@dataclass(frozen=True, slots=True)
class Signature:
    """What the section says, well formed but not checked."""

    run_id: str
    signature: bytes
    """64 bytes of Ed25519."""


def read_signature(text: str, source: str = "manifest") -> Signature | None:
    """The signature in a manifest's text; None when there is none. Raises UserError (78) for one that is malformed."""
    table = tomllib.loads(text).get(SIGNATURE)
    if table is None:
        return None
    found = table if isinstance(table, dict) else {}
    run_id, signature = found.get("run_id"), found.get("signature")
    if set(found) == {"run_id", "signature"} and _hexadecimal(run_id, 32) and _hexadecimal(signature, 128):
        return Signature(str(run_id), bytes.fromhex(str(signature)))
    raise UserError(
        f"{source}: the section [{SIGNATURE}] is damaged; sign the file again: ftnode run sign", CONFIGURATION
    )


def with_signature(text: str, signature: Signature) -> str:
    """The text with this signature at its end, in place of the one that it had."""
    return (
        without_signature(text).rstrip("\n")
        + f"\n\n[{SIGNATURE}]\n"
        + f'# The id of the run that the values above make.\nrun_id = "{signature.run_id}"\n'
        + "# By run.author, over every value above. After an edit: ftnode run sign THIS-FILE\n"
        + f'signature = "{signature.signature.hex()}"\n'
    )


def without_signature(text: str) -> str:
    """The text without its section."""
    start = _SECTION.search(text)
    if start is None:
        return text
    end = _NEXT_SECTION.search(text, start.end())
    return text[: start.start()] + (text[end.start() :] if end is not None else "")


def _hexadecimal(found: object, digits: int) -> bool:
    return isinstance(found, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", found) is not None
