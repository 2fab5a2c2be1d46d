"""`ftnode run vouch` and `ftnode join --voucher`: from one home to another, by a text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.node.home.identity import Identity, home_directory, take_identity
from ftnode.node.manifests import joining
from ftnode.node.manifests.authorship import author_key, sign
from ftnode.node.manifests.joining import admitted
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.manifests.vouch_for import vouched_for
from ftnode.node.manifests.voucher import DAY, read_vouchers
from ftnode.node.owner.join_options import JoinConfig
from ftnode.protocol.manifest.parse import Membership, parse, render
from ftnode.protocol.words.errors import UserError
from tests.node.cli.cli_runner import Seen


@pytest.fixture
def listed(tmp_path: Path) -> Iterator[Identity]:
    """Of a volunteer on the list, whose node runs: it has the lock."""
    taken = take_identity(home_directory(str(tmp_path / "listed")))
    yield taken
    taken.release()


def peer_of(home: Path) -> str:
    taken = take_identity(home_directory(str(home)))
    taken.release()
    return taken.peer_id


@pytest.fixture
def write(tmp_path: Path, listed: Identity) -> Callable[..., Path]:
    def written(**membership: object) -> Path:
        key = author_key(home_directory(str(tmp_path / "author")))
        tiny = PRESETS["tiny"]
        values = {"join": "vouched", "peers": (listed.peer_id,)} | membership
        found = replace(tiny, run=replace(tiny.run, author=key.peer_id), membership=Membership(**values))  # type: ignore[arg-type]
        path = tmp_path / "run.toml"
        path.write_text(sign(render(found), key))
        key.release()
        return path

    return written


def config(path: Path, home: Path, voucher: str) -> JoinConfig:
    text = path.read_text()
    return JoinConfig(
        manifest=parse(text), manifest_text=text, peers=(), hold=1, data=None, device="cpu", threads=1, listen=(),
        announce=(), home=home, timeout=1.0, log_directory=home / "log", dump_rebuilds=False, hash_every=0,
        compute_backend="paced", forward_seconds=0.1, backward_seconds=0.2, json=False, voucher=voucher,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def nobody_has_a_newer_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(invitation: object, timeout: float) -> str:
        raise UserError("nobody answers", 69)

    monkeypatch.setattr(joining, "fetch_apart", nobody)


def refusal(path: Path, home: Path, voucher: str) -> str:
    with pytest.raises(UserError) as raised:
        admitted(config(path, home, voucher), peer_of(home))
    assert raised.value.exit_code == 77
    return str(raised.value)


def test_a_voucher_goes_from_one_home_to_another_and_is_kept(
    tmp_path: Path, write: Callable[..., Path], ftnode: Callable[..., Seen], listed: Identity
) -> None:
    path, home = write(), tmp_path / "newcomer"
    peer = peer_of(home)
    assert f"ftnode run vouch RUN {peer}" in refusal(path, home, "")
    seen = ftnode("run", "vouch", path, peer, "--days", 7, "--home", tmp_path / "listed")
    assert seen.code == 0, seen.err
    (made,) = read_vouchers(seen.out, 1)
    assert (made.by, made.peer, made.until - made.made) == (listed.peer_id, peer, 7 * DAY)
    assert f"vouches for {peer} until " in seen.err
    admitted(config(path, home, seen.out), peer)
    admitted(config(path, home, ""), peer)


def test_it_is_told_to_scripts(
    tmp_path: Path, write: Callable[..., Path], ftnode: Callable[..., Seen], listed: Identity
) -> None:
    peer = peer_of(tmp_path / "newcomer")
    seen = ftnode("run", "vouch", write(), peer, "--json", "--home", tmp_path / "listed")
    told = json.loads(seen.out)
    assert (told["format"], told["by"], told["peer"]) == (1, listed.peer_id, peer)
    assert read_vouchers(told["voucher"], 1)[0].until == told["until"]


def test_a_protege_vouches_where_the_run_lets_it(
    tmp_path: Path, write: Callable[..., Path], ftnode: Callable[..., Seen]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    path = write(vouch_depth=1)
    by_list = ftnode("run", "vouch", path, peer_of(first), "--home", tmp_path / "listed").out
    admitted(config(path, first, by_list), peer_of(first))
    seen = ftnode("run", "vouch", path, peer_of(second), "--home", first)
    assert seen.code == 77 and "may not vouch in this run, only those of its list;" in seen.err
    path = write(vouch_depth=2)
    seen = ftnode("run", "vouch", path, peer_of(second), "--home", first)
    assert len(read_vouchers(seen.out, 2)) == 2, "with the voucher of who vouches"
    admitted(config(path, second, seen.out), peer_of(second))


def test_one_too_many_is_refused_where_it_is_made(
    tmp_path: Path, write: Callable[..., Path], ftnode: Callable[..., Seen]
) -> None:
    path, home = write(vouched_a_day=1), tmp_path / "listed"
    one, two = (peer_of(tmp_path / name) for name in ("one", "two"))
    assert ftnode("run", "vouch", path, one, "--home", home).code == 0
    seen = ftnode("run", "vouch", path, two, "--home", home)
    assert seen.code == 77 and "4 at a time and 1 a day; try again tomorrow" in seen.err
    assert ftnode("run", "vouch", path, one, "--days", 60, "--home", home).code == 0, "the same one, for longer"


@pytest.mark.parametrize("turned", [False, True])
def test_also_within_one_second(tmp_path: Path, write: Callable[..., Path], turned: bool) -> None:
    manifest, home = parse(write(vouched_a_day=1).read_text()), tmp_path / "listed"
    one, two = sorted((peer_of(tmp_path / name) for name in ("one", "two")), reverse=turned)
    vouched_for(manifest, home, one, 1_000_000, 3600)
    with pytest.raises(UserError, match="try again tomorrow"):
        vouched_for(manifest, home, two, 1_000_000, 3600)


@pytest.mark.parametrize(
    ("membership", "peer", "code", "said"),
    [
        ({"join": "open"}, "", 78, 'membership.join is "open"'),
        ({}, "12D3KooWnobody", 64, "is no PeerId"),
        ({}, "listed", 64, "on the run's list already"),
    ],
)
def test_what_cannot_be_vouched_for(
    membership: dict[str, str], peer: str, code: int, said: str, tmp_path: Path, write: Callable[..., Path],
    ftnode: Callable[..., Seen], listed: Identity,
) -> None:  # fmt: skip
    who = {"": peer_of(tmp_path / "other"), "listed": listed.peer_id}.get(peer, peer)
    seen = ftnode("run", "vouch", write(**membership), who, "--home", tmp_path / "listed")
    assert seen.code == code and said in seen.err and seen.out == ""


def test_each_voucher_that_does_not_count_is_refused_in_one_line(
    tmp_path: Path, write: Callable[..., Path], ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, home = write(), tmp_path / "newcomer"
    other = ftnode("run", "vouch", path, peer_of(tmp_path / "other"), "--home", tmp_path / "listed").out
    assert "the voucher is for " in refusal(path, home, other)
    mine = ftnode("run", "vouch", path, peer_of(home), "--days", 1, "--home", tmp_path / "listed").out
    clock = time.time() + 2 * DAY
    with monkeypatch.context() as later:
        later.setattr("ftnode.node.manifests.vouching.time.time", lambda: clock)
        assert "has expired; ask for another voucher" in refusal(path, home, mine)
    nobody = write(peers=(peer_of(tmp_path / "somebody"),))
    assert "may not vouch in this run; ask for another" in refusal(nobody, home, mine)


def test_join_takes_the_text_or_a_file_with_it(
    tmp_path: Path, write: Callable[..., Path], ftnode: Callable[..., Seen]
) -> None:
    path, home = write(), tmp_path / "newcomer"
    file = tmp_path / "voucher.txt"
    file.write_text(ftnode("run", "vouch", path, peer_of(home), "--home", tmp_path / "listed").out[:-5])
    seen = ftnode("join", path, "--voucher", file, "--home", home)
    assert seen.code == 65 and "--voucher: a voucher that is none; one begins with ftvouch1." in seen.err
    seen = ftnode("join", path, "--voucher", tmp_path / "none.txt", "--home", home)
    assert seen.code == 66 and "No such file" in seen.err
