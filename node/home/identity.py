"""Who this node is: an Ed25519 key in a file, in the format that p2pd reads, locked while it is in use.

The PeerId is the public key, so a signature is checked with nothing but the id of its maker. One home holds several
identities: a second node on the machine takes `identity-2`, since one identity in two places confuses every peer. Who
comes back to a run takes the one that it had there (last_runs.py).
"""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from platformdirs import user_data_path

from ftnode.node.home.files import sync_folder, sync_names
from ftnode.node.home.last_runs import note_run, rank
from ftnode.node.home.paths import platform_folder, whole_path
from ftnode.protocol.words.errors import UserError

Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], bool]
"""(peer_id, data, signature) → whether the key that `peer_id` is made that signature; False for any nonsense."""

FILE_PREFIX = bytes.fromhex("08011240")
"""Protobuf PrivateKey{Type: Ed25519, Data: 64 bytes}; libp2p's spec peer-ids. The data is seed + public key."""
PEER_ID_PREFIX = bytes.fromhex("002408011220")
"""Identity multihash of protobuf PublicKey{Type: Ed25519, Data: 32 bytes}."""
FILE_BYTES = len(FILE_PREFIX) + 64
PEER_ID_BYTES = len(PEER_ID_PREFIX) + 32
PEER_ID_TEXT_MAX = 64
VOLUNTEER_NAME = "identity"
BOOTSTRAP_NAME = "bootstrap"
"""A file of its own: a volunteer with the same home must not take the address that people know."""
KEYS_MAX = 1024
"""Public keys that are remembered, so that a PeerId is read once: that takes a tenth of what its signature does."""
IDENTITIES_MAX = 256
"""Nodes with one home on one machine."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A key that this process holds the lock of, until `release` or its end."""

    path: Path
    peer_id: str
    key: Ed25519PrivateKey
    lock: int
    """The open file whose flock says that the identity is taken."""

    def sign(self, data: bytes) -> bytes:
        """64 bytes of Ed25519 signature."""
        return self.key.sign(data)

    def release(self) -> None:
        os.close(self.lock)


def home_directory(option: str | None, known: bool = False) -> Path:
    """Where identities and remembered peers live: `--home`, else the platform's data directory. Created 0700, but what
    a person names only where it need not be `known`: see `home_to_read`. Raises UserError."""
    home = home_to_read(option) if known else home_path(option)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{home} is not a folder; choose another with --home", 73) from None
    except OSError as error:
        raise UserError(f"cannot create {home}: {error.strerror}; choose another with --home", 73) from None
    return home


def home_to_read(option: str | None, needed: bool = True) -> Path:
    """The same for who only looks, and makes nothing. The platform's may not be there yet, which is as if it was empty.
    One that a person names has to be there, unless it is not `needed`. Raises UserError (66, 73)."""
    home = home_path(option)
    try:
        if not stat.S_ISDIR(home.stat().st_mode):
            raise NotADirectoryError
    except FileNotFoundError:
        if option and needed:
            raise UserError(f"there is no home {home}; see what --home or FTNODE_HOME says", 66) from None
    except NotADirectoryError:
        raise UserError(f"{home} is not a folder; choose another with --home", 73) from None
    except OSError as error:
        raise UserError(f"cannot look into {home}: {error.strerror}; choose another with --home", 66) from None
    return home


def home_path(option: str | None) -> Path:
    """The same, whether it is there or not. Raises UserError."""
    return whole_path(option) if option else platform_folder(user_data_path)


def check_ours(home: Path) -> None:
    """For who asks something of a home's nodes: they listen to its owner and to root alone. Raises UserError (77)."""
    try:
        owner = home.stat().st_uid
    except FileNotFoundError:  # nobody's yet
        return
    if os.geteuid() in (0, owner):
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"user {owner}"
    raise UserError(f"{home} is {name}'s, whose nodes listen to {name} and root alone; ask as one of them, by sudo", 77)


def take_identity(home: Path, name: str = VOLUNTEER_NAME, run: str = "") -> Identity:
    """An identity of `home` that nobody uses: the last one that was used for this run, else the first of `name`,
    `name-2`, `name-3`, ..., made when there is none. It is noted for the run, unless that is empty.

    Raises UserError when its file is corrupt, readable by others or cannot be written; nothing is overwritten.
    """
    places = _places(home, name)
    for path in sorted(places, key=lambda path: rank(path, run)) if run else places:
        if not path.exists():
            _create(path)
        identity = _lock_and_load(path)
        if identity is not None:
            if run:
                note_run(path, run)
            return identity
    raise UserError(f"all {IDENTITIES_MAX} identities in {home} are in use; choose another folder with --home", 75)


def take_only(home: Path, name: str) -> Identity:
    """The identity `name` of `home` and no other, made when there is none. Raises UserError as `take_identity` does,
    and (75) when somebody else has it now."""
    path = home / name
    if not path.exists():
        _create(path)
    identity = _lock_and_load(path)
    if identity is None:
        raise UserError(f"another ftnode uses {path} now; try again", 75)
    return identity


def keys_of(home: Path, name: str = VOLUNTEER_NAME) -> Iterator[tuple[str, Sign]]:
    """(PeerId, what signs by its key) of each identity of a home, also of those that nodes have now: for what a person
    signs. A lock keeps two nodes from being one peer, and not from reading. Raises UserError as `take_identity`."""
    for path in _places(home, name):
        if not path.exists():
            return
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            raise UserError(f"cannot read the identity {path}: {error.strerror}; check who owns it", 77) from None
        try:
            key = _load(path, descriptor)
        finally:
            os.close(descriptor)
        yield peer_id_of(key.public_key().public_bytes_raw()), key.sign


def is_taken(home: Path, peer_id: str, name: str = VOLUNTEER_NAME) -> bool:
    """Whether a process has this identity of `home` now."""
    return _taken_place(home, peer_id, name) is not None


def is_taken_by(home: Path, peer_id: str, pid: int, name: str = VOLUNTEER_NAME) -> bool:
    """Whether it is that process which has it; where there is no /proc to ask, whether anybody has."""
    place = _taken_place(home, peer_id, name)
    if place is None or sys.platform != "linux":
        return place is not None
    try:
        identity = place.stat()
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed meanwhile
                locks = Path(f"/proc/{pid}/fdinfo/{entry.name}")  # proc(5): those that it has by this descriptor
                if os.path.samestat(entry.stat(), identity) and "FLOCK" in locks.read_text():
                    return True
    except OSError:  # it has ended, or is of another user
        pass
    return False


def _taken_place(home: Path, peer_id: str, name: str) -> Path | None:
    """Where an identity lies that a process has now."""
    for path in _places(home, name):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            data = os.read(descriptor, FILE_BYTES + 1)
            if len(data) == FILE_BYTES and peer_id_of(data[-32:]) == peer_id:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return None
        except BlockingIOError:
            return path
        finally:
            os.close(descriptor)
    return None


def _places(home: Path, name: str) -> Iterator[Path]:
    """Where the identities of a home lie, in the order in which they are taken."""
    yield home / name
    for number in range(2, IDENTITIES_MAX + 1):
        yield home / f"{name}-{number}"


def _create(path: Path) -> None:
    """Write a new key. The file appears whole or not at all, and never replaces one that another node just made."""
    key = Ed25519PrivateKey.generate()
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            try:
                os.write(descriptor, FILE_PREFIX + key.private_bytes_raw() + key.public_key().public_bytes_raw())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
        sync_folder(path.parent, sync_names)
    except OSError as error:
        raise UserError(f"cannot write the identity {path}: {error.strerror}; choose another with --home", 73) from None


def _lock_and_load(path: Path) -> Identity | None:
    """None when another process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise UserError(f"cannot read the identity {path}: {error.strerror}; check who owns it", 77) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    try:
        key = _load(path, descriptor)
    except UserError:
        os.close(descriptor)
        raise
    return Identity(path, peer_id_of(key.public_key().public_bytes_raw()), key, descriptor)


def _load(path: Path, descriptor: int) -> Ed25519PrivateKey:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        raise UserError(f"the identity {path} is no ordinary file; move it away to get a new one", 65)
    if mode & 0o077:
        raise UserError(f"the identity {path} can be read by others; run: chmod 600 {path}", 77)
    data = os.read(descriptor, FILE_BYTES + 1)
    seed, public = data[len(FILE_PREFIX) : -32], data[-32:]
    if len(data) == FILE_BYTES and data.startswith(FILE_PREFIX):
        key = Ed25519PrivateKey.from_private_bytes(seed)
        if key.public_key().public_bytes_raw() == public:
            return key
    raise UserError(f"the identity {path} is corrupt; restore it, or move it away to get a new one", 65)


def peer_id_of(public_key: bytes) -> str:
    """PeerId (base58) of a 32-byte Ed25519 public key."""
    return peer_id_text(PEER_ID_PREFIX + public_key)


def peer_id_text(peer_id: bytes) -> str:
    """The base58 form of a PeerId."""
    text: str = base58.b58encode(peer_id).decode()
    return text


def any_peer_id_bytes(peer_id: str) -> bytes:
    """The inverse of `peer_id_text`, whatever kind of key it is of: p2pd lets in who has another kind than ours. Raises
    ValueError."""
    data: bytes = base58.b58decode(peer_id)
    return data


def peer_id_bytes(peer_id: str) -> bytes:
    """The binary form of an Ed25519 PeerId. Raises ValueError for anything else."""
    if len(peer_id) > PEER_ID_TEXT_MAX:
        raise ValueError("too long for a PeerId")
    data: bytes = base58.b58decode(peer_id)
    if len(data) != PEER_ID_BYTES or not data.startswith(PEER_ID_PREFIX):
        raise ValueError(f"{peer_id[:PEER_ID_TEXT_MAX]!r} is no Ed25519 PeerId")
    return data


@lru_cache(maxsize=KEYS_MAX)
def _public_key(peer_id: str) -> Ed25519PublicKey:
    """Raises ValueError, which is not remembered."""
    return Ed25519PublicKey.from_public_bytes(peer_id_bytes(peer_id)[len(PEER_ID_PREFIX) :])


def verify(peer_id: str, data: bytes, signature: bytes) -> bool:
    """Whether the owner of `peer_id` signed `data`. False for ids and signatures that are not even well formed."""
    try:
        _public_key(peer_id).verify(signature, data)
    except (ValueError, InvalidSignature):
        return False
    return True
