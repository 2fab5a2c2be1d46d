"""The manifest that a node works by, and who may join by it: newer ones of the same author replace it while it runs.

Only who may join can change: everything else is in the run's id. A node whose list is older than a newcomer's refuses
it, the newcomer shows the newer manifest, and is admitted; so an update needs to reach only those whom it concerns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ftnode.node.manifests.authorship import signer
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
        self._ever_listed = self._listed
        """In this life of ours: views still name those who were removed, until the swarm has replaced them."""

    def admits(self, peer_id: str) -> bool:
        """Whether this peer may take part."""
        return peer_id in self._listed or self.manifest.membership.join == "open"

    @property
    def refusal(self) -> str:
        """What a peer is told that is not admitted."""
        return (
            f"you are not on this run's list (revision {self.manifest.membership.revision}); ask its author to add you"
        )

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
        self._ever_listed |= self._listed
        save(self._home, manifest, text)
        self._on_newer(manifest)
        return ""


def admits(manifest: Manifest, peer_id: str) -> bool:
    """Whether the manifest lets this peer take part."""
    return manifest.membership.join == "open" or peer_id in manifest.membership.peers


def not_listed(peer_id: str) -> str:
    """For the owner of a node that is not admitted."""
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
    """Keep it for the next start, whole or not at all. A disk that does not take it costs a convenience."""
    path = home / FOLDER / f"{manifest.run_id}.toml"
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        log.warning("cannot keep the manifest in %s: %s", path, error.strerror)


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
