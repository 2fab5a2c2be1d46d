"""`ftnode join` and `bootstrap` before anything starts: what is typed is checked, and one line says what is wrong."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import ftnode.node
from ftnode.node.compute import devices
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.life.snapshot_setup import copies_bytes, keeps_snapshots
from ftnode.node.links.addresses import remember_peers
from ftnode.node.owner.join_options import JoinConfig, Running, note_running
from ftnode.protocol.manifest.parse import parse
from ftnode.protocol.manifest.sections import Manifest
from tests.node.cli.cli_runner import Seen


@pytest.fixture
def peer(tmp_path: Path) -> str:
    """The address of some peer."""
    taken = take_identity(home_directory(str(tmp_path / "other")))
    taken.release()
    return f"/ip4/192.0.2.7/tcp/31337/p2p/{taken.peer_id}"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> list[JoinConfig]:
    """Stands for the daemon: keeps what it was told to do."""
    told: list[JoinConfig] = []

    def run(config: JoinConfig) -> int:
        told.append(config)
        return 0

    fake = SimpleNamespace(run=run)
    monkeypatch.setitem(__import__("sys").modules, "ftnode.node.life.lives", fake)
    monkeypatch.setattr(ftnode.node, "daemon", fake, raising=False)
    return told


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_join_tells_the_daemon_everything(
    manifest_file: Path,
    text_file: Path,
    tmp_path: Path,
    peer: str,
    daemon: list[JoinConfig],
    ftnode: Callable[..., Seen],
) -> None:
    seen = ftnode(
        "join", manifest_file, "--peer", peer, "--hold", 2, "--data", text_file, "--device", "cuda:1", "--threads", 3,
        "--listen", "/ip4/127.0.0.1/tcp/0", "--announce", "/ip4/192.0.2.9/tcp/4001", "--timeout", 7,
        "--log-dir", tmp_path / "log", "--dump-rebuilds", "--hash-every", 7, "--compute", "paced",
        "--paced-seconds", 0.1, 0.2, "--json", "--home", tmp_path / "home",
    )  # fmt: skip
    assert seen.code == 0, seen
    text = manifest_file.read_text()
    assert daemon == [
        JoinConfig(
            manifest=parse(text), manifest_text=text, peers=(peer,), hold=2, data=text_file, device="cuda:1", threads=3,
            listen=("/ip4/127.0.0.1/tcp/0",), announce=("/ip4/192.0.2.9/tcp/4001",), port_mapping=True,
            home=tmp_path / "home",
            timeout=7.0, log_directory=tmp_path / "log", dump_rebuilds=True, hash_every=7, compute_backend="paced",
            forward_seconds=0.1, backward_seconds=0.2, json=True,
                metrics="auto", log_format="text", given=(peer,),
        )
    ]  # fmt: skip


def test_a_device_that_is_not_there_is_refused_before_anything_is_announced(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked = ("join", manifest_file, "--home", tmp_path / "home", "--peer", peer, "--allow-unsigned", "--device")
    monkeypatch.setattr(devices, "found_by_torch", lambda: {"torch": "2", "devices": [{}], "trouble": ""})
    assert ftnode(*asked, "cuda").code == ftnode(*asked, "cuda:0").code == 0 and len(daemon) == 2
    assert ftnode(*asked, "cuda:1").refused(69, "torch finds 1 CUDA devices here")
    monkeypatch.setattr(devices, "found_by_torch", lambda: {"trouble": "no answer within 60 s"})
    assert ftnode(*asked, "cuda").refused(69, "no answer within 60 s", "--device cuda")
    assert ftnode(*asked, "cuda:7", "--compute", "paced").code == 0, "which computes nothing"


def test_snapshots_and_the_memory_that_they_take(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A copy of what is held, where weights lie in the same memory; nothing without snapshots."""
    monkeypatch.setattr(devices, "found_by_torch", lambda: {"devices": [{}]})
    home = ("--home", tmp_path / "home", "--peer", peer, "--allow-unsigned")
    asking = tmp_path / "asking.toml"
    asking.write_text(manifest_file.read_text().replace("snapshot_every = 0", "snapshot_every = 10"))
    ftnode("run", "sign", asking)
    assert ftnode("join", manifest_file, *home).code == 0
    for options in (
        ["--snapshot-limit", 0.5], ["--device", "cuda"], ["--keep-snapshots", 0],
    ):  # fmt: skip
        seen = ftnode("join", asking, *home, *options)
        assert seen.code == 0, seen
    assert [keeps_snapshots(config) for config in daemon] == [False, True, True, False]
    assert daemon[1].snapshot_bytes_max == 500_000_000 and daemon[1].keep_snapshots == 2
    each, once = daemon[0].manifest.copies_bytes
    state = daemon[0].manifest.stage_state_bytes
    shown = daemon[0].manifest.shown_parts_bytes
    assert [copies_bytes(config) for config in daemon] == [
        (each + shown, once),
        (each + shown + state, once),
        (each, once),
        (each + shown, once),
    ]
    assert ftnode("join", asking, *home, "--keep-snapshots", -1).refused(64, "--keep-snapshots")


def test_parts_that_are_kept_to_be_shown_take_memory(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], monkeypatch: pytest.MonkeyPatch,
    ftnode: Callable[..., Seen],
) -> None:  # fmt: skip
    """Of the host, where it is the stage's, too."""
    monkeypatch.setattr(devices, "found_by_torch", lambda: {"devices": [{}]})
    home = ("--home", tmp_path / "home", "--peer", peer)
    for options in ([], ["--device", "cuda"]):
        assert ftnode("join", manifest_file, *home, *options).code == 0
    checked = with_checks(daemon[0].manifest, 3)
    unchecked = replace(checked, trust=replace(checked.trust, checks=0.0))
    assert unchecked.shown_parts_bytes == 0 == with_checks(checked, 1).shown_parts_bytes
    each, once = checked.copies_bytes
    found = [copies_bytes(replace(config, manifest=checked)) for config in daemon]
    assert found == [(each + checked.shown_parts_bytes, once), (each, once)]
    assert checked.shown_parts_bytes > 0


def with_checks(manifest: Manifest, replicas: int) -> Manifest:
    trust, pipeline = replace(manifest.trust, checks=0.02), replace(manifest.pipeline, replicas=replicas)
    return replace(manifest, trust=trust, pipeline=pipeline)


def test_listening_nowhere(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    home = ("--home", tmp_path / "home", "--peer", peer)
    assert ftnode("join", manifest_file, *home, "--listen", "none").code == 0
    assert daemon[0].listen == ()
    both = ftnode("join", manifest_file, *home, "--listen", "none", "--listen", "/ip4/127.0.0.1/tcp/0")
    assert both.refused(64, "stands alone")


def test_peers_are_remembered_after_those_given(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    home = home_directory(str(tmp_path / "home"))
    older = peer.replace("31337", "4001")
    remember_peers(home, [older])
    assert ftnode("join", manifest_file, "--home", home).code == 0
    assert ftnode("join", manifest_file, "--home", home, "--peer", peer).code == 0
    assert [config.peers for config in daemon] == [(older,), (peer, older)]


def test_damaged_peers_cost_one_line_and_join_goes_on(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    home = home_directory(str(tmp_path / "home"))
    (home / "peers.json").write_text('{"format": 1, "peers": [')
    seen = ftnode("join", manifest_file, "--home", home, "--peer", peer)
    assert seen.code == 0 and seen.err.count("\n") == 1
    assert seen.err.startswith(f"ftnode: {home}/peers.json is damaged: goes on without")
    assert [config.peers for config in daemon] == [(peer,)]


def test_each_join_logs_to_a_folder_below_its_home(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    ftnode("join", manifest_file, "--home", tmp_path / "home", "--peer", peer)
    folder = daemon[0].log_directory
    assert folder.is_relative_to(tmp_path / "home") and daemon[0].manifest.run_id[:8] in str(folder)
    assert not folder.exists()


def test_hold_is_at_most_all_stages(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    ftnode("join", manifest_file, "--home", tmp_path / "home", "--peer", peer, "--hold", 50)
    assert daemon[0].hold == 3


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("localhost:31337", "no multiaddr"),
        ("/ip4/127.0.0.1/tcp/31337", "/p2p/"),
        ("/ip4/300.1.1.1/tcp/31337/p2p/12D3KooW", "no multiaddr"),
        ("/ip4/127.0.0.1/tcp/31337/p2p/12D3KooW", "PeerId"),
    ],
)
def test_an_address_that_is_none(
    address: str, says: str, manifest_file: Path, tmp_path: Path, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    assert ftnode("join", manifest_file, "--peer", address, "--home", tmp_path / "home").refused(64, says)
    assert ftnode("status", "--peer", address, "--home", tmp_path / "home").refused(64, says)
    assert daemon == []


def test_no_peer_at_all(
    manifest_file: Path, tmp_path: Path, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    home = tmp_path / "home"
    assert ftnode("join", manifest_file, "--home", home).refused(64, "no peer", "ftnode bootstrap")
    assert ftnode("status", "--home", home).refused(64, "no node runs here", "--peer")


def test_without_a_peer_the_meeting_point_of_this_machine_is_named(
    manifest_file: Path, tmp_path: Path, ftnode: Callable[..., Seen], peer: str
) -> None:
    home = home_directory(str(tmp_path / "home"))
    note_running(home, Running(os.getpid(), "point", "", (peer,)))
    said = f"no peer to start from; a meeting point runs here: pass --peer {peer} ["
    assert ftnode("join", manifest_file, "--home", home).refused(64, said)


def test_a_port_in_use(
    manifest_file: Path,
    tmp_path: Path,
    peer: str,
    taken_port: int,
    daemon: list[JoinConfig],
    ftnode: Callable[..., Seen],
) -> None:
    listen = f"/ip4/127.0.0.1/tcp/{taken_port}"
    home = tmp_path / "home"
    seen = ftnode("join", manifest_file, "--peer", peer, "--listen", listen, "--home", home)
    assert seen.refused(69, f"port {taken_port}", "in use")
    assert ftnode("bootstrap", "--listen", listen, "--home", home).refused(69, f"port {taken_port}", "in use")
    assert daemon == []


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--listen", "0.0.0.0:31337"], 64, "no multiaddr"),
        (["--announce", "192.0.2.9:31337"], 64, "what others dial"),
        (["--announce", "/ip4/192.0.2.9/tcp/0"], 64, "what others dial"),
        (["--announce", "/ip4/0.0.0.0/tcp/31337"], 64, "what others dial"),
        (["--announce", "/dns4/localhost/tcp/0"], 64, "what others dial"),
        (["--announce", "/dns4/localhost"], 64, "what others dial"),
        (["--announce", "/dns4/a..b/tcp/31337"], 69, "a..b leads nowhere"),
        (["--announce", "/ip4/192.0.2.9/tcp/31337", "--listen", "none"], 64, "--announce needs a --listen"),
        (["--data", "/nowhere/text"], 66, "cannot read the data /nowhere/text"),
        (["--data", "/dev/null"], 66, "cannot read the data /dev/null: it is a device, a pipe or a socket; pass a"),
        (["--device", "gpu"], 64, "use auto, cpu, cuda or cuda:N"),
        (["--device", "cuda:1,cuda:1"], 64, "names a card twice"),
        (["--threads", "0"], 64, "--threads"),
        (["--timeout", "0"], 64, "--timeout"),
        (["--compute", "fast"], 64, "--compute"),
    ],
)
def test_options_that_cannot_be(
    options: list[str], code: int, says: str, manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig],
    ftnode: Callable[..., Seen],
) -> None:  # fmt: skip
    home = tmp_path / "home"
    assert ftnode("join", manifest_file, "--peer", peer, "--home", home, *options).refused(code, says)
    assert daemon == []


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(
    manifest_file: Path, tmp_path: Path, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    seen = ftnode("join", manifest_file, "--home", tmp_path / "home", "--data", tmp_path / "pipe")
    assert seen.refused(66, "it is a device, a pipe or a socket", "pass a text file or a folder") and not daemon


def test_who_joins_without_a_manifest_hears_where_others_get_it(
    tmp_path: Path, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    """Not first of all how to start another run, which would never meet the one that was meant."""
    seen = ftnode("join", tmp_path / "tiny.toml", "--home", tmp_path / "home")
    assert seen.refused(66, f"there is no manifest {tmp_path}/tiny.toml; get the file from who started the run, or ")
    assert "ftnode: link" in seen.err and not daemon
    shown = ftnode("run", "show", tmp_path / "tiny.toml")
    assert shown.refused(66, "there is no manifest", "; write one with: ftnode run init ")


def test_a_wrong_manifest_stops_before_anything_is_made(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    manifest_file.write_text(manifest_file.read_text().replace("\nstages = 2", "\nstages = 200"))
    seen = ftnode("join", manifest_file, "--peer", peer, "--home", tmp_path / "home")
    assert seen.refused(78, "200 stages are more than", "line ")
    assert daemon == [] and not (tmp_path / "home").exists()


def test_id_is_stable_and_private(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    first, second = ftnode("id", "--home", tmp_path), ftnode("id", "--home", tmp_path)
    assert first.code == 0 and first.out == second.out and first.out.startswith("12D3Koo")
    assert (tmp_path / "identity").stat().st_mode & 0o077 == 0


def test_id_tells_of_the_node_that_runs_too(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    home = home_directory(str(tmp_path))
    taken = take_identity(home)
    note_running(home, Running(os.getpid(), taken.peer_id, "run-of-it", ()))
    try:
        first, last = ftnode("id", "--home", home).out.splitlines()
        found = json.loads(ftnode("id", "--home", home, "--json").out)
    finally:
        taken.release()
    assert first.startswith(taken.peer_id) and "volunteer of run run-of-it" in first
    assert last == f"{found['next']}  the next node of this home" and found["next"] != taken.peer_id
    assert found["running"] == [{"peer": taken.peer_id, "process": os.getpid(), "run": "run-of-it"}]
    assert ftnode("id", "--home", home).out == f"{taken.peer_id}\n", "it is free again"


def test_an_identity_that_others_can_read(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    ftnode("id", "--home", tmp_path)
    (tmp_path / "identity").chmod(0o644)
    assert ftnode("id", "--home", tmp_path).refused(77, "read by others", "chmod 600")


def test_a_corrupt_identity_is_kept(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    path = tmp_path / "identity"
    path.write_bytes(b"nonsense")
    path.chmod(0o600)
    assert ftnode("id", "--home", tmp_path).refused(65, "corrupt")
    assert path.read_bytes() == b"nonsense"


def test_a_home_that_cannot_be(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert ftnode("id", "--home", path).refused(73, "not a folder", "--home")


def test_who_signed_it_is_checked_before_anything_is_made(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    home = tmp_path / "home"
    text = manifest_file.read_text()
    unsigned = text.partition("[signature]")[0]
    manifest_file.write_text(unsigned)
    options = ("--peer", peer, "--home", home)
    assert ftnode("join", manifest_file, *options).refused(
        78, "nobody has signed", "ftnode run sign", "--allow-unsigned"
    )
    assert daemon == [] and not home.exists()
    assert ftnode("join", manifest_file, *options, "--allow-unsigned").code == 0
    manifest_file.write_text(text.replace("seed = 1", "seed = 2"))
    refused = ftnode("join", manifest_file, *options, "--allow-unsigned")
    assert refused.refused(78, "was changed after it was signed"), "no consent covers a signature that does not fit"
    assert len(daemon) == 1


def test_a_newer_list_that_was_seen_is_joined_by(
    manifest_file: Path, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    old = manifest_file.read_text()
    friend = peer.rpartition("/")[2]
    manifest_file.write_text(
        old.replace('join = "open"', 'join = "listed"').replace("peers = []", f'peers = ["{friend}"]')
    )
    assert "revision 1 of who may join" in ftnode("run", "sign", manifest_file).out
    options = ("--peer", peer, "--home", tmp_path / "home")
    assert ftnode("join", manifest_file, *options).code == 0
    manifest_file.write_text(old)
    assert ftnode("join", manifest_file, *options).code == 0
    assert [config.manifest.membership.revision for config in daemon] == [1, 1]


@pytest.mark.parametrize(
    ("link", "code", "says"),
    [
        ("ftnode:nonsense", 64, "is no ftnode: link"),
        ("ftnode:" + "0" * 32 + "?peer=/ip4/127.0.0.1/tcp/1/p2p/PEER", 69, "no peer answered"),
    ],
)
def test_a_link_that_leads_nowhere(
    link: str, code: int, says: str, tmp_path: Path, peer: str, daemon: list[JoinConfig], ftnode: Callable[..., Seen]
) -> None:
    link = link.replace("PEER", peer.rpartition("/")[2])
    seen = ftnode("join", link, "--home", tmp_path / "home", "--timeout", 3)
    assert seen.refused(code, says) and daemon == []
