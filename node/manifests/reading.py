"""A manifest from a file of this machine."""

from __future__ import annotations

from pathlib import Path

from ftnode.node.manifests.book import MANIFEST_BYTES_MAX
from ftnode.protocol.manifest.parse import Manifest, parse
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_options"


def read_manifest(path: Path) -> tuple[Manifest, str]:
    """A manifest and its text. Raises UserError: 66 when it cannot be read, 78 when it is wrong."""
    _check_kind(path)
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UserError(f"there is no manifest {path}; write one with: ftnode run init {path}", 66) from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; name the manifest in it, a .toml file", 66) from None
    except OSError as error:
        raise UserError(f"cannot read the manifest {path}: {error.strerror}", 66) from None
    if len(data) > MANIFEST_BYTES_MAX:
        raise UserError(f"{path} is larger than {MANIFEST_BYTES_MAX} bytes; this is no manifest", 65)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8 text; this is no manifest", 65) from None
    return parse(text, path.name), text


def _check_kind(path: Path) -> None:
    """Raises UserError (66) for something that people take for a manifest, with what to do with it."""
    text = str(path)
    if text.startswith(("http:/", "https:/")):
        raise UserError(
            "a manifest is a file of this machine, not a URL; save it first, or ask for the run's ftnode: link", 66
        )
    if text.startswith(("/ip4/", "/ip6/", "/dns")):
        raise UserError("that is the address of a peer and no manifest; it belongs behind --peer", 66)
