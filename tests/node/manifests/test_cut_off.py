"""Whom a newer list cuts off, and which stages would go with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.node.manifests.book import ManifestBook, save
from ftnode.node.manifests.cut_off import cut_off, stages_that_go
from ftnode.node.watch.status import Speaker, StageRow, SwarmStatus
from ftnode.protocol.manifest.parse import Manifest, parse
from tests.node.cli.cli_runner import Seen
from tests.node.manifests.test_book import Author
from tests.node.manifests.test_vouching import ROOT, SECOND, THIRD, now_voucher, text_of

ONE, TWO, OTHER = (each.peer.id for each in (ROOT, SECOND, THIRD))


def status(*holders: tuple[str, ...]) -> SwarmStatus:
    rows = [
        StageRow(stage, peer, "training", 0, 7, 3, 1, 0.5, 1500.0)
        for stage, peers in enumerate(holders)
        for peer in peers or ("",)
    ]
    return SwarmStatus(Speaker(ONE, "0.1.0", "cpu", "volunteer"), run="abcdef", step=7, stages=tuple(rows))


def with_list(manifest: Manifest, join: str, *peers: str) -> Manifest:
    return replace(manifest, membership=replace(manifest.membership, join=join, peers=peers))


def test_a_stage_goes_that_only_those_hold_who_go() -> None:
    held = status((ONE, TWO), (TWO,), (), (TWO, OTHER))
    assert stages_that_go(held, lambda peer: peer == TWO) == {1: (TWO,)}
    assert stages_that_go(held, lambda peer: peer != ONE) == {1: (TWO,), 3: (TWO, OTHER)}
    assert stages_that_go(held, lambda peer: False) == {}


def test_a_list_cuts_off_whom_it_does_not_name_and_one_of_vouchers_whom_nobody_vouches_for(tmp_path: Path) -> None:
    home = tmp_path / "home"
    text = text_of(tmp_path / "author", ONE)
    manifest = parse(text)
    assert cut_off(with_list(manifest, "listed", ONE), home)(TWO)
    assert not cut_off(with_list(manifest, "listed", ONE), home)(ONE)
    assert not cut_off(with_list(manifest, "open"), home)(TWO)
    removed = with_list(manifest, "vouched", OTHER)
    assert not cut_off(removed, home)(TWO), "a home without a node of the run knows no vouchers"

    save(home, manifest, text)
    book = ManifestBook(manifest, text, home, lambda newer: None)
    book.take_vouchers(str(now_voucher(manifest.run_id, ROOT, TWO)).encode(), TWO)
    assert book.admits(ONE) and book.admits(TWO)
    gone = cut_off(removed, home)
    assert gone(ONE) and gone(TWO) and not gone(OTHER), "whom it vouched for goes as well"
    assert not cut_off(with_list(manifest, "vouched", ONE, OTHER), home)(TWO)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("push MANIFEST", 75),
        ("push MANIFEST --lose-stages", 0),
        ("announce MANIFEST leave", 75),
        ("rollback MANIFEST --to-step 3", 75),
    ],
)
def test_a_list_that_would_lose_a_stage_does_not_get_to_the_swarm(
    words: str, code: int, tmp_path: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(
        "ftnode.node.watch.light_client.fetch_status", lambda *asked: status((ONE,), (TWO,), (ONE, TWO))
    )
    monkeypatch.setattr("ftnode.node.manifests.fetch.show_manifest", lambda *what: shown.append(what[2]))
    path = tmp_path / "run.toml"
    text = Author(tmp_path / "author").text(ONE, snapshot_every=5)
    path.write_text(text)
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{ONE}"
    seen = ftnode(
        "run", *words.replace("MANIFEST", str(path)).split(), "--peer", address, "--home", tmp_path / "author"
    )
    assert seen.code == code and len(shown) == (code == 0), seen
    if code:
        assert path.read_text() == text
        assert f"stage 1 would be lost: this list cuts {TWO[-6:]} off" in seen.err and "--lose-stages" in seen.err
