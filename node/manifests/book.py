"""The manifest that a node works by, and who may join by it: newer ones of the same author replace it while it runs.

Only who may join can change: everything else is in the run's id. A node whose list is older than a newcomer's refuses
it, the newcomer shows the newer manifest, and is admitted; so an update needs to reach only those whom it concerns.
Vouchers go the same way: whoever is refused shows those that it has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from ftnode.node.manifests.authorship import signer
from ftnode.node.manifests.voucher import read_vouchers
from ftnode.node.manifests.vouching import CHAIN_MAX, VOUCHERS_MAX, Vouching
from ftnode.protocol.manifest.parse import Manifest, parse
from ftnode.protocol.words.errors import PeerError, UserError
from ftnode.protocol.words.events import Directory
from ftnode.protocol.words.view import View

log = logging.getLogger(__name__)

FOLDER: Final = "manifests"
MANIFEST_BYTES_MAX: Final = 1 << 20


class ManifestBook:
    """`on_newer` is told of each manifest that replaces ours."""

    def __init__(self, manifest: Manifest, text: str, home: Path, on_newer: Callable[[Manifest], None]) -> None:
        self.manifest = manifest
        self.text = text
        self._home = home
        self._on_newer = on_newer
        self._listed = frozenset(manifest.membership.peers)
        self.vouching = Vouching(manifest.run_id, manifest.membership, home)
        self.on_vouched: Callable[[bool], None] = lambda newcomers: None
        """Is told when other vouchers are known than before, and whether newcomers brought them."""
        self.on_stranger: Callable[[str], None] = lambda peer_id: None
        """Is told of peers that name somebody of whom we know no voucher: they may know one."""
        self.on_liar: Callable[[str], None] = lambda peer_id: None
        """Is told of each peer that lied or was banned."""
        self._ever_listed = self._listed | self.vouching.answers_for().keys()
        """In this life of ours: views still name those who were removed, until the swarm has replaced them."""

    def admits(self, peer_id: str) -> bool:
        """Whether this peer may take part."""
        join = self.manifest.membership.join
        return peer_id in self._listed or join == "open" or bool(join == "vouched" and self.vouching.chain(peer_id))

    @property
    def refusal(self) -> str:
        """What a peer is told that is not admitted."""
        revision = self.manifest.membership.revision
        if self.manifest.membership.join == "vouched":
            return f"you are not on this run's list (revision {revision}), and no voucher for you is known here"
        return f"you are not on this run's list (revision {revision}); ask its author to add you"

    def vouchers(self, first: str = "") -> bytes:
        """All that are known and count, one a line, as they are shown to others; those of `first` in front."""
        every = dict.fromkeys((*self.vouching.chain(first), *self.vouching.all()))
        return "\n".join(map(str, every)).encode()

    def take_vouchers(self, data: bytes, sender: str) -> str:
        """What a peer shows. Why one of them does not count, or "". Raises PeerError for what are none. Of who may not
        take part yet only the first ones are read."""
        try:
            lines = data.decode("ascii").splitlines()
        except UnicodeDecodeError:
            raise PeerError("vouchers that are no text") from None
        known = self.admits(sender)
        refusal = self._take(lines if known else lines[:CHAIN_MAX], newcomers=not known)
        if not known and self.admits(sender):
            self._take(lines[CHAIN_MAX:])
        return refusal

    def _take(self, lines: Sequence[str], newcomers: bool = False) -> str:
        taken, refusal = self.vouching.take(read_vouchers("".join(lines), VOUCHERS_MAX))
        if taken:
            self._ever_listed |= self.vouching.answers_for().keys()
            self.on_vouched(newcomers)
        return refusal

    def names_stranger(self, peer_id: str) -> None:
        """The peer has named somebody who may take no part, as far as we know: it may know a voucher."""
        if self.manifest.membership.join == "vouched":
            self.on_stranger(peer_id)

    def has_lied(self, peer_id: str) -> None:
        """It was let go as a liar, or banned: who vouched for it is not believed for a while."""
        if barred := self.vouching.bar(peer_id):
            log.warning("%s is not believed for a while: it vouched for %s", ", ".join(barred), peer_id)
            self.on_liar(peer_id)

    def admitted(self, found: Directory) -> Directory:
        """What the directory says, without those who may not take part and the views that name any who never might."""
        if self.manifest.membership.join == "open":
            return found
        return Directory(
            tuple(presence for presence in found.presences if self.admits(presence.peer.id)),
            tuple(view for view in found.certificates if not self.stranger_in((view,))),
        )

    def stranger_in(self, views: Iterable[View]) -> str:
        """A peer that was never on the list and that one of the views names, or nothing."""
        if self.manifest.membership.join == "open":
            return ""
        named = (peer.id for view in views for peer in (*view.members(), *view.voters))
        return next((peer_id for peer_id in named if peer_id not in self._ever_listed), "")

    def offer(self, data: bytes) -> str:
        """Take a manifest that a peer shows, if it is newer. Why not, or "". Raises PeerError when it is none of
        this run, or not its author's."""
        manifest, text = read_signed(data, self.manifest.run_id)
        if not manifest.run.author:
            raise PeerError("the run has no author who could change its manifest")
        ours, theirs = self.manifest.membership.revision, manifest.membership.revision
        if theirs <= ours:
            return "" if manifest == self.manifest else f"it has revision {theirs}, the one in force {ours}"
        self.manifest, self.text = manifest, text
        self._listed = frozenset(manifest.membership.peers)
        self.vouching.adopt(manifest.membership)
        self._ever_listed |= self._listed | self.vouching.answers_for().keys()
        save(self._home, manifest, text)
        self._on_newer(manifest)
        return ""


def admits(manifest: Manifest, peer_id: str) -> bool:
    """Whether the manifest lets this peer take part by itself, without vouchers."""
    return manifest.membership.join == "open" or peer_id in manifest.membership.peers


def not_listed(manifest: Manifest, peer_id: str) -> str:
    """For the owner of a node that is not admitted."""
    if manifest.membership.join == "vouched":
        return (
            f"this run is for listed peers and those whom they vouch for, and no voucher for {peer_id} counts; ask a "
            f"volunteer of the run for one (ftnode run vouch RUN {peer_id}), and join with --voucher"
        )
    return f"this run is for listed peers, and {peer_id} is not among them; ask its author to add it"


def read_shown(data: bytes, run_id: str) -> tuple[Manifest, str]:
    """The manifest of this run that a peer showed. Raises PeerError."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise PeerError(f"a manifest of {len(data)} bytes")
    try:
        text = data.decode("utf-8")
        manifest = parse(text, "its manifest")
    except (UnicodeDecodeError, UserError) as error:
        raise PeerError(f"a manifest that is none: {error}") from None
    if manifest.run_id != run_id:
        raise PeerError(f"a manifest of run {manifest.run_id[:8]}, not of {run_id[:8]}")
    return manifest, text


def read_signed(data: bytes, run_id: str) -> tuple[Manifest, str]:
    """As `read_shown`, and its author has signed it, where the run has one. The run's id says who the author is, so no
    peer can speak for it. Raises PeerError."""
    manifest, text = read_shown(data, run_id)
    if manifest.run.author and signer_of(manifest, text) != manifest.run.author:
        raise PeerError("a manifest that its author did not sign")
    return manifest, text


def signer_of(manifest: Manifest, text: str) -> str:
    """As `authorship.signer`, of what a peer showed. Raises PeerError."""
    try:
        return signer(manifest, text, "its manifest")
    except UserError as error:
        raise PeerError(str(error)) from None


def save(home: Path, manifest: Manifest, text: str) -> None:
    """Keep it for the next start, whole or not at all. A disk that does not take it costs a convenience, and is no news
    to who reads the terminal: what needs the disk says so."""
    path = home / FOLDER / f"{manifest.run_id}.toml"
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        log.info("cannot keep the manifest in %s: %s", path, error.strerror)


def saved(home: Path, run_id: str) -> tuple[Manifest, str] | None:
    """The newest manifest of the run that this home has seen; None for none that is whole."""
    try:
        with (home / FOLDER / f"{run_id}.toml").open("rb") as file:
            manifest, text = read_shown(file.read(MANIFEST_BYTES_MAX + 1), run_id)
        signer_of(manifest, text)
    except (OSError, PeerError) as error:
        log.info("no manifest of %s is kept here: %s", run_id[:8], error)
        return None
    return manifest, text
