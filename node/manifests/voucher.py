"""Vouchers: somebody who may vouch says by its signature that a peer may take part in a run until some time.

    ftvouch1.RUN-ID.VOUCHER.PEER.MADE.UNTIL.SIGNATURE

Both peers are PeerIds, both times whole seconds since 1970, and the signature is 128 hexadecimal digits over all that
is before its dot. There is one way to write each voucher, so that what was signed is what is read. It has no letter
that a shell or a mail program changes, and white space in it counts for nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ftnode.node.home.identity import Sign, verify
from ftnode.protocol.manifest.sections import PEER_ID_PATTERN
from ftnode.protocol.words.errors import PeerError

DAY: Final = 86400
DAYS_MAX: Final = 366
"""That a voucher may last."""
CLOCK_SECONDS: Final = 600
"""So far may the clock of who made one be ahead of ours."""
FALSE: Final = "the voucher is not signed by"
"""Said of no voucher that an honest node shows."""
BYTES_MAX: Final = 320
"""Of one voucher; its times have eleven digits at most."""

BEGINNING: Final = "ftvouch1."
"""Of every voucher, and of no file's name that anybody would choose."""
_PATTERN: Final = re.compile(
    rf"{re.escape(BEGINNING)}([0-9a-f]{{32}})\.({PEER_ID_PATTERN})\.({PEER_ID_PATTERN})"
    r"\.([1-9][0-9]{0,10})\.([1-9][0-9]{0,10})\.([0-9a-f]{128})"
)


@dataclass(frozen=True, slots=True)
class Voucher:
    """What one says, well formed. `objection` checks it."""

    run: str
    by: str
    """PeerId of who vouches."""
    peer: str
    """PeerId of whom it is for."""
    made: int
    until: int
    """Both in seconds since 1970."""
    signature: bytes = b""
    """64 bytes of Ed25519."""

    @property
    def signed_text(self) -> str:
        return f"{BEGINNING}{self.run}.{self.by}.{self.peer}.{self.made}.{self.until}"

    def __str__(self) -> str:
        return f"{self.signed_text}.{self.signature.hex()}"

    @property
    def bound(self) -> tuple[int, str]:
        """Of one who vouches, the first in this order count. So all who know the same count the same."""
        return self.made, self.peer

    def objection(self, run_id: str, now: float) -> str:
        """Why it counts for nothing in this run at this time (seconds since 1970), whoever may vouch; else nothing.
        The signature is checked last, since that takes longest."""
        if self.run != run_id:
            return f"the voucher is for run {self.run[:12]}, not for {run_id[:12]}"
        if self.until <= now:
            return f"the voucher for {self.peer} has expired"
        if self.by == self.peer or not self.made < self.until <= self.made + DAYS_MAX * DAY:
            return "the voucher is none: it is for who made it, or for a time that cannot be"
        if self.made > now + CLOCK_SECONDS:
            return "the voucher was made later than now; check the clock of this machine"
        if not verify(self.by, self.signed_text.encode(), self.signature):
            return f"{FALSE} {self.by}"
        return ""


def make_voucher(run_id: str, by: str, peer: str, made: int, until: int, sign: Sign) -> Voucher:
    """Signed with the key of `by`."""
    plain = Voucher(run_id, by, peer, made, until)
    return Voucher(run_id, by, peer, made, until, sign(plain.signed_text.encode()))


def read_vouchers(text: str, most: int) -> tuple[Voucher, ...]:
    """Those in a text that has nothing else. Raises PeerError for any other text, and for more than `most`."""
    text = "".join(text[: most * 2 * BYTES_MAX].split())
    found: list[Voucher] = []
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None or len(found) == most:
            raise PeerError("a voucher that is none" if match is None else f"more than {most} vouchers")
        run, by, peer, made, until, signature = match.groups()
        found.append(Voucher(run, by, peer, int(made), int(until), bytes.fromhex(signature)))
        position = match.end()
    return tuple(found)
