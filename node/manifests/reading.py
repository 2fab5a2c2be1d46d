"""A manifest from a file of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ftnode.node.links.hosts import ip_of
from ftnode.node.manifests.book import MANIFEST_BYTES_MAX
from ftnode.node.manifests.invitation import is_link
from ftnode.protocol.manifest.parse import Manifest, parse
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_options"

PEER_ID_START: Final = "12D3KooW"
PEER_ID_LETTERS: Final = 52
"""Of an Ed25519 key."""
ADDRESSES: Final = ("/ip4/", "/ip6/", "/dns")
URLS: Final = ("http:/", "https:/")
"""As a path has them, which keeps one slash of two."""
HOST_AND_PORT: Final = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


def check_new_name(path: Path) -> None:
    """Raises UserError (64) for what is no name of a file that somebody wants to have."""
    text = str(path)
    if text.startswith((*URLS, *ADDRESSES)) or is_link(text):
        text = re.sub("^(https?):/", r"\1://", text)
        raise UserError(f"{text} is no name for a new file; choose one on this machine, as tiny.toml")


def read_manifest(path: Path, of_others: bool = False) -> tuple[Manifest, str]:
    """A manifest and its text. `of_others`: of a run that somebody else may have started. Raises UserError: 66 when it
    cannot be read, 78 when it is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        raise _what_is_meant(path, of_others) from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; name the manifest in it, a .toml file", 66) from None
    except OSError as error:
        raise UserError(f"cannot read the manifest {path}: {error.strerror}", 66) from None
    if len(data) > MANIFEST_BYTES_MAX:
        raise UserError(f"{path} is larger than {MANIFEST_BYTES_MAX} bytes; this is no manifest", 65)
    try:
        text = data.decode("utf-8-sig")  # some editors begin with a mark that nobody sees
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8 text; this is no manifest", 65) from None
    return parse(text, path.name), text


def _what_is_meant(path: Path, of_others: bool) -> UserError:
    """What to do with something that people take for a manifest, or when a file is not there."""
    text = str(path)
    if text.startswith(URLS):
        return UserError(
            "a manifest is a file of this machine, not a URL; save it first, or ask for the run's ftnode: link", 66
        )
    if text.startswith(ADDRESSES):
        return UserError("that is the address of a peer and no manifest; it belongs behind --peer", 66)
    if is_link(text):
        return UserError("that is a link and no file; get its manifest with: ftnode run fetch LINK FILE", 66)
    if text.startswith(PEER_ID_START) and len(text) == PEER_ID_LETTERS:
        return UserError(
            "that is a PeerId and no manifest; --peer takes the peer's whole address, as /ip4/…/tcp/…/p2p/PEERID", 66
        )
    if HOST_AND_PORT.fullmatch(text) or ip_of(text) is not None:
        return UserError(
            "that is a host and no manifest; --peer takes a peer's whole address, as /ip4/…/tcp/…/p2p/PEERID", 66
        )
    if text == "help":
        return UserError("there is no manifest help; help is shown by --help, as in: ftnode join --help", 66)
    longer = Path(f"{text}.toml")
    if longer.is_file():
        return UserError(f"there is no manifest {path}; there is one called {longer}", 66)
    if of_others:
        return UserError(
            f"there is no manifest {path}; get the file from who started the run, or type in its place the ftnode: "
            f"link that volunteers' terminals show (invite); a run of your own begins with: ftnode run init {path}", 66,
        )  # fmt: skip
    return UserError(f"there is no manifest {path}; write one with: ftnode run init {path}", 66)
