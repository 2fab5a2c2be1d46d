"""What the command line hands to the node, and where things lie on this machine.

`home` (--home, else the platform's data directory) holds identities, remembered peers and a file per running node; logs
and traces go to the platform's state directory, or below --home when that is given.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from platformdirs import user_state_path

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.home.paths import platform_folder, whole_path
from ftnode.node.machine.device_choice import devices_of
from ftnode.node.owner.limits import NO_LIMITS, Limits
from ftnode.node.owner.pause_rules import OwnerRules
from ftnode.protocol.manifest.parse import Manifest

RUNNING_FOLDER = "running"
RUNNING_BYTES_MAX = 64 * 1024
PID_MAX = 1 << 22
"""Linux's own; a larger number is no process of this machine."""


@dataclass(frozen=True, slots=True)
class JoinConfig:
    """Everything that `ftnode join` was told, checked as far as it can be without a swarm."""

    manifest: Manifest
    manifest_text: str
    peers: tuple[str, ...]
    """Full multiaddrs to start from: --peer and those of a link, then those remembered."""
    hold: int
    """Stages that this node will hold at most; the head is one."""
    data: Path | None
    """The corpus, or shards of it; None: this Python's standard library, or shards of others."""
    device: str
    """As --device names devices, after `auto` has been decided."""
    threads: int
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    """Where others reach us; empty: where we listen."""
    home: Path
    timeout: float
    """Seconds to look for a first peer before giving up."""
    log_directory: Path
    dump_rebuilds: bool
    """Keep the weights of rebuilds and of their donors as files, for the audit."""
    hash_every: int
    """Hash the weights after every so many steps, for the audit; 0: never."""
    compute_backend: str
    """torch, or paced: sleeps instead of computing, to measure pipelines."""
    forward_seconds: float
    """Of a paced stage, per microbatch."""
    backward_seconds: float
    json: bool
    """Lines for people become JSON lines."""
    metrics: str = "none"
    """HOST:PORT where Prometheus is answered, or none."""
    log_format: str = "text"
    """Of node.log: text or json."""
    quiet: bool = False
    """No live line at the bottom of a terminal."""
    until_exported: bool = False
    """Leave when the run is over and a reader has taken the model."""
    data_url: str = ""
    """Folder of shards behind an http(s) address; empty: none."""
    data_bytes_max: int = 50_000_000_000
    """Larger corpora of shards are not fetched."""
    keep_snapshots: int = 2
    """Of each of this node's stages, where the manifest asks for snapshots; 0: none."""
    snapshot_bytes_max: int = 20_000_000_000
    """Of all snapshots in `home`."""
    rules: OwnerRules = field(default_factory=OwnerRules)
    """When to step aside by itself."""
    hand_over_seconds: float = 60.0
    """Of a pause, at most."""
    notice_seconds: float = 0.0
    """After SIGTERM the node ends so much later, whatever is unfinished; 0: when it has handed over."""
    limits: Limits = NO_LIMITS
    """What the owner gives at most."""
    given: tuple[str, ...] = ()
    """Of `peers`, those that a person named."""
    log_bytes_max: int = 0
    """Of all logs beside this node's; 0: they stay as they are."""
    port_mapping: bool = False
    """Have the router keep a port open, where it offers that."""
    relay: str = "auto"
    """Whether to relay for volunteers whom nobody can dial: on, off, or auto, where the line has room for it."""
    start: Path | None = None
    """Folder of the model that the run begins with; None: others have it, or the run begins with random weights."""
    name: str = ""
    """As the owner wants the node to be called; empty: nothing but its PeerId."""
    site: str = ""
    """Where the node is, by its owner's word; empty: its public addresses imply it."""
    voucher: str = ""
    """By which others vouch for this node, as it was given; empty: none, or one that was kept before."""
    compiled: bool = False
    """Blocks are compiled for the device before a stage is claimed."""
    device_why: str = ""
    """Which device `auto` chose and why, in one line; empty where the owner named it."""

    @property
    def devices(self) -> tuple[str, ...]:
        """One for each compute process."""
        return devices_of(self.device)

    @property
    def on_card(self) -> bool:
        """Stages lie on cards, not in the host's memory."""
        return self.devices[0] != "cpu"


@dataclass(frozen=True, slots=True)
class Running:
    """A node or meeting point that runs on this machine now."""

    pid: int
    peer: str
    run: str
    """run_id, empty for a meeting point."""
    addresses: tuple[str, ...]
    """Full multiaddrs."""
    leaving: bool = False
    """It has been asked to leave, and hands over."""
    keeps: tuple[int, ...] = ()
    """Stages whose last copy it has: asked to leave, it stays for `ftnode export`, or until it is asked again."""
    paused: str = ""
    """Why it rests, and until when; empty while it works."""
    log: str = ""
    """Folder of its log; empty for a meeting point."""
    name: str = ""
    """Of its run; empty for a meeting point."""


def log_root(home_option: str | None) -> Path:
    """Where each run of a node gets a folder of its own."""
    if home_option:
        return whole_path(home_option) / "logs"
    return platform_folder(user_state_path) / "logs"


def shards_folder(home: Path, sha256: str) -> Path:
    """Where the token shards of the corpus with this hash lie."""
    return home / "data" / sha256[:32]


def note_running(home: Path, running: Running) -> Path:
    """Say where this process can be reached; `forget_running` takes it back. The file appears whole or not at all.
    Raises OSError."""
    name = f"{running.peer}.json"
    with folder_of(home, RUNNING_FOLDER) as folder:
        write_file(home, folder, name, json.dumps(asdict(running)))
    return home / RUNNING_FOLDER / name


def forget_running(home: Path, peer: str) -> None:
    """What cannot be removed is that of a dead process soon, which every reader sees."""
    with suppress(OSError), folder_of(home, RUNNING_FOLDER, make=False) as folder:
        os.unlink(f"{peer}.json", dir_fd=folder)


def running_nodes(home: Path) -> tuple[Running, ...]:
    """Nodes of this home whose process is alive, training ones first. Files of dead ones are removed, but not those of
    another user."""
    found = []
    with suppress(OSError), folder_of(home, RUNNING_FOLDER, make=False) as folder:
        ours = os.fstat(folder).st_uid == os.geteuid()
        for name in sorted(name for name in os.listdir(folder) if name.endswith(".json")):
            running = _read_running(folder, name)
            if running is not None and _alive(running.pid):
                found.append(running)
            elif ours:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
    return tuple(sorted(found, key=lambda running: (not running.run, running.peer)))


def _read_running(folder: int, name: str) -> Running | None:
    """Of an ordinary file; a pipe is empty instead of a wait."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=folder), "rb") as file:
            found = json.loads(file.read(RUNNING_BYTES_MAX))
        addresses = tuple(map(str, found["addresses"]))
        return Running(
            int(found["pid"]), str(found["peer"]), str(found["run"]), addresses, found.get("leaving") is True,
            tuple(map(int, found.get("keeps", ()))), str(found.get("paused", "")), str(found.get("log", "")),
            str(found.get("name", "")),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _alive(pid: int) -> bool:
    if not 0 < pid <= PID_MAX:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
