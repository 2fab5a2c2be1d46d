"""What a volunteer joins: from a file or a link to a manifest that its author signed, in its newest revision."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from ftnode.node.home.identity import home_directory
from ftnode.node.manifests.authorship import signer
from ftnode.node.manifests.book import admits, not_listed, read_shown, save, saved, signer_of
from ftnode.node.manifests.fetch import check_author, fetch_apart
from ftnode.node.manifests.invitation import Invitation, is_link, parse_link
from ftnode.node.manifests.reading import read_manifest
from ftnode.node.manifests.voucher import Voucher, read_vouchers
from ftnode.node.manifests.vouching import CHAIN_MAX, Vouching
from ftnode.node.owner.join_options import JoinConfig
from ftnode.protocol.manifest.parse import CONFIGURATION, Manifest
from ftnode.protocol.words.errors import PeerError, UserError

log = logging.getLogger(__name__)

NEWER_SECONDS: Final = 10.0
"""To look for a manifest that lists us."""
KEPT_SECONDS: Final = 5.0
"""To look for a manifest of which an earlier one is kept here."""


def find_run(
    run: str, home: Path, timeout: float, allow_unsigned: bool, joins: bool = False
) -> tuple[Manifest, str, tuple[str, ...]]:
    """The manifest, its text, and the peers that a link named. It is kept in `home`, where that is there. Who `joins`
    gets one, when nothing is wrong.

    Raises UserError: 64 for a link that is none, 66 and 78 for a file, 69 and 76 for what peers sent, 78 when nobody
    has signed it and that was not allowed.
    """
    if is_link(run):
        invitation = parse_link(run)
        manifest, text = _follow(invitation, home, timeout)
        author, peers = invitation.author, invitation.peers
    else:
        manifest, text = read_manifest(Path(run), of_others=True)
        author, peers = signer(manifest, text, Path(run).name), ()
    if not author and not allow_unsigned:
        raise UserError(
            "nobody has signed this manifest; ask for a signed one, sign your own with: ftnode run sign, or pass "
            "--allow-unsigned", CONFIGURATION,
        )  # fmt: skip
    if joins:
        home_directory(str(home))
    kept = saved(home, manifest.run_id) if author else None
    if kept is not None and kept[0].membership.revision > manifest.membership.revision:
        manifest, text = kept
    elif author and home.is_dir():
        save(home, manifest, text)
    return manifest, text, peers


def admitted(config: JoinConfig, peer_id: str) -> JoinConfig:
    """`config` with a manifest that admits this peer: ours, or a newer one that the run's peers have.

    Raises UserError (77) when the peer is not listed.
    """
    if not _refusal(config, config.manifest, peer_id):
        return config
    try:
        wanted = Invitation(config.manifest.run_id, config.manifest.run.author, config.peers)
        newer, text = read_shown(fetch_apart(wanted, min(config.timeout, NEWER_SECONDS)).encode(), wanted.run_id)
        check_author(wanted, signer_of(newer, text))
    except (PeerError, UserError) as error:
        log.info("no newer manifest: %s", error)
        newer, text = config.manifest, config.manifest_text
    if refusal := _refusal(config, newer, peer_id):
        raise UserError(refusal, 77)
    save(config.home, newer, text)
    return replace(config, manifest=newer, manifest_text=text)


def read_voucher(text: str) -> tuple[Voucher, ...]:
    """What a person was given. Raises UserError (65)."""
    try:
        return read_vouchers(text, CHAIN_MAX)
    except PeerError as error:
        raise UserError(f"--voucher: {error}; one begins with ftvouch1., so copy all of it again", 65) from None


def _refusal(config: JoinConfig, manifest: Manifest, peer_id: str) -> str:
    """Why this manifest does not let the peer take part, or nothing. A voucher that counts is kept."""
    if admits(manifest, peer_id):
        return ""
    vouchers = read_voucher(config.voucher)
    vouching = Vouching(manifest.run_id, manifest.membership, config.home)
    _, why = vouching.take(vouchers)
    if vouchers and all(voucher.peer != peer_id for voucher in vouchers):
        why = f"the voucher is for {vouchers[-1].peer}, and this node is {peer_id}"
    if vouching.chain(peer_id):
        return ""
    if why:
        return f"{why}; ask for another voucher: ftnode run vouch RUN {peer_id}"
    return not_listed(manifest, peer_id)


def newest_kept(config: JoinConfig) -> JoinConfig:
    """`config` with the newest revision of its manifest that this home has seen."""
    kept = saved(config.home, config.manifest.run_id)
    if kept is None or kept[0].membership.revision <= config.manifest.membership.revision:
        return config
    return replace(config, manifest=kept[0], manifest_text=kept[1])


def _follow(invitation: Invitation, home: Path, timeout: float) -> tuple[Manifest, str]:
    """From the link's peers, or as it was kept when none of them answers. Somebody must be first to start a run again,
    so that who keeps it does not wait long for others."""
    kept = saved(home, invitation.run_id)
    seconds = timeout if kept is None else min(timeout, KEPT_SECONDS)
    try:
        manifest, text = read_shown(fetch_apart(invitation, seconds).encode(), invitation.run_id)
        author = signer_of(manifest, text)
    except PeerError as error:
        raise UserError(f"the peers of the link sent {error}; ask for a new link", 76) from None
    except UserError as error:
        if kept is None or error.exit_code != 69:
            raise
        manifest, text = kept
        author = signer(manifest, text)
    check_author(invitation, author)
    return manifest, text
