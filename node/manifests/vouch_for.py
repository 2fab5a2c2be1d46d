"""A voucher by the key of one of this home's volunteers, within what the run allows."""

from __future__ import annotations

from pathlib import Path

from ftnode.node.home.identity import Sign, keys_of
from ftnode.node.manifests.voucher import DAY, Voucher, make_voucher
from ftnode.node.manifests.vouching import Vouching, counted, load, save
from ftnode.protocol.manifest.parse import CONFIGURATION, Manifest
from ftnode.protocol.words.errors import UserError

ERRORS = "vouch_for"


def vouched_for(manifest: Manifest, home: Path, peer: str, now: int, seconds: int) -> tuple[Voucher, str]:
    """The voucher for this peer, and the text to send: it, behind those by which its maker takes part itself. What was
    made is noted in the home, so that the next one counts it.

    Raises UserError: 64 for who is listed already, 77 where nobody of this home may vouch, or not for one more, 78 for
    a run in which nobody vouches.
    """
    membership, run_id = manifest.membership, manifest.run_id
    if membership.join != "vouched":
        raise UserError(
            f'nobody vouches in this run, whose membership.join is "{membership.join}"; its author can set "vouched"',
            CONFIGURATION,
        )  # fmt: skip
    if peer in membership.peers:
        raise UserError(f"{peer} is on the run's list already; it joins without a voucher")
    vouching = Vouching(run_id, membership, home)
    by, sign = _who_may(vouching, home)
    if peer == by:
        raise UserError(f"{peer} is this volunteer itself, which takes part already; name another one")
    made = [each for each in load(home, run_id, made_here=True) if each.until + DAY > now]
    before = [each for each in (*vouching.signed_by(by), *made) if each.by == by and each.peer != peer]
    voucher = make_voucher(run_id, by, peer, now, now + seconds, sign)
    # Of two that are made in one second the lower PeerId counts first, which is not to take the other's place.
    if not {voucher, *counted(before, membership, now)} <= {*counted([*before, voucher], membership, now)}:
        most = f"{membership.vouched_at_once} at a time and {membership.vouched_a_day} a day"
        free = min(each.until for each in before) + DAY - now
        raise UserError(
            f"{by} vouches for {len(before)} already, and this run counts {most}; try again tomorrow, or in "
            f"{free // DAY + 1} days, when a place is free", 77,
        )  # fmt: skip
    save(home, run_id, [each for each in made if (each.by, each.peer) != (by, peer)] + [voucher], made_here=True)
    return voucher, "".join(map(str, (*vouching.chain(by), voucher)))


def _who_may(vouching: Vouching, home: Path) -> tuple[str, Sign]:
    """Of this home's identities the first that may vouch. Raises UserError (77)."""
    ours = list(keys_of(home))
    for peer_id, sign in ours:
        if vouching.may_vouch(peer_id):
            return peer_id, sign
    names = " and ".join(peer_id for peer_id, _ in ours) or "a home without an identity"
    depth = vouching.membership.vouch_depth
    who = "those of its list" if depth == 1 else "those of its list and those whom they vouch for"
    raise UserError(f"{names} may not vouch in this run, only {who}; ask one of them, or pass their --home", 77)
