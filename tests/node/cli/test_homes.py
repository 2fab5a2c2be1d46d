"""Which commands make a home that is not there: those that write, and never one that only looks into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from ftnode.node.cli.main import cli
from ftnode.node.home.identity import home_directory, home_to_read, take_identity
from ftnode.protocol.words.errors import UserError
from tests.node.cli.cli_runner import Seen

Run = Callable[..., Seen]

NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWKUt3ww8vvorPrGHNuugJgxgFN9bKMgrGYAeRvQSuAi63"
LINK = f"ftnode:{'0' * 32}?peer={NOBODY}"
OTHER = NOBODY.rpartition("/")[2]
LOOK: dict[tuple[str, ...], tuple[str, ...]] = {
    ("run", "vouch"): ("pair.toml", OTHER), ("run", "push"): ("pair.toml",),
    ("run", "announce"): ("pair.toml", "hello"),
    ("run", "rollback"): ("pair.toml", "--to-step", "1"), ("status",): (), ("peers",): (), ("credits",): (),
    ("dashboard",): ("--listen", "127.0.0.1:0"), ("logs",): (), ("health",): (), ("pause",): (), ("resume",): (),
    ("leave",): (), ("snapshots", "list"): (), ("snapshots", "show"): ("1/1",), ("snapshots", "verify"): (),
    ("snapshots", "save"): ("saved",), ("snapshots", "prune"): ("--keep", "1"),
    ("snapshots", "divide"): ("kept.toml",), ("export",): ("pair.toml", "exported"),
}  # fmt: skip
"""Commands that have nothing to do in a home that is new → what makes them look into it."""
MAKE = {("run", "init"), ("run", "sign"), ("bootstrap",), ("join",), ("id",)}
NEITHER = {("doctor",), ("config", "show"), ("config", "path")}
"""They say of a home that it is not there."""


@pytest.fixture
def typo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest_file: Path, ftnode: Run) -> Path:
    monkeypatch.chdir(tmp_path)
    assert ftnode("run", "init", "kept.toml", "--data", "text.txt").code == 0
    return tmp_path / "hoem"


def test_of_every_command_it_is_known_what_it_does_with_a_new_home() -> None:
    def takes(command: click.Command) -> bool:
        return any("--home" in option.opts and not getattr(option, "hidden", False) for option in command.params)

    assert {words for words, load in cli.leaves() if takes(load())} == {*LOOK} | MAKE | NEITHER


@pytest.mark.parametrize("words", LOOK, ids=" ".join)
def test_a_home_that_is_misspelt_is_not_made(words: tuple[str, ...], typo: Path, ftnode: Run) -> None:
    assert ftnode(*words, *LOOK[words], "--home", typo).refused(66, f"there is no home {typo}", "--home or FTNODE_HOME")
    assert not typo.exists()


def test_a_home_that_is_made_by_id_is_told_of_once(typo: Path, ftnode: Run) -> None:
    first, second = ftnode("id", "--home", typo), ftnode("id", "--home", typo)
    assert first.err == f"ftnode: made the home {typo}, which was not there\n"
    assert second.err == "" and second.out == first.out


def test_the_variable_names_a_home_as_the_option_does(typo: Path, ftnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTNODE_HOME", str(typo))
    assert ftnode("status").refused(66, f"there is no home {typo}") and not typo.exists()


@pytest.mark.parametrize("words", [("status",), ("peers",), ("credits",), ("run", "push"), ("export",)], ids=" ".join)
def test_who_names_a_peer_needs_no_home(words: tuple[str, ...], typo: Path, ftnode: Run) -> None:
    seen = ftnode(*words, *LOOK[words], "--peer", NOBODY, "--home", typo, "--timeout", "5")
    assert seen.refused(69, OTHER[-6:]) and not typo.exists()


def test_who_has_a_link_needs_no_home(typo: Path, ftnode: Run) -> None:
    assert ftnode("status", LINK, "--home", typo, "--timeout", "5").refused(69, "no peer answered")
    assert ftnode("export", LINK, "exported", "--home", typo, "--timeout", "5").refused(69, "no peer answered")
    assert not typo.exists()


@pytest.mark.parametrize("words", [words for words in LOOK if words[0] != "run"], ids=" ".join)
def test_without_one_of_their_own_they_look_and_make_nothing(
    words: tuple[str, ...], typo: Path, ftnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that somebody types on a machine. The word of a pause is kept for the first start."""
    monkeypatch.setenv("XDG_DATA_HOME", str(typo))
    seen = ftnode(*words, *LOOK[words])
    assert len(seen.err.splitlines()) + len(seen.out.splitlines()) == 1, seen
    assert typo.exists() == (words in {("pause",), ("resume",)})


def test_the_checkup_says_that_it_is_not_there(typo: Path, ftnode: Run) -> None:
    seen = ftnode("doctor", "--home", typo, "--listen", "/ip4/127.0.0.1/tcp/0")
    assert f"{typo} is not there yet; ftnode join makes it" in seen.out and not typo.exists()


def test_who_looks_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    own = home_to_read(None)
    with pytest.raises(UserError, match="there is no home"):
        home_directory(str(tmp_path / "typo"), known=True)
    assert home_to_read(str(tmp_path / "typo"), needed=False) == tmp_path / "typo" and list(tmp_path.iterdir()) == []
    assert home_directory(None, known=True) == own and own.stat().st_mode & 0o777 == 0o700
    take_identity(own).release()
    for file in (own / "identity", own / "identity" / "below"):
        with pytest.raises(UserError, match="is not a folder") as refused:
            home_to_read(str(file))
        assert refused.value.exit_code == 73
    with pytest.raises(UserError, match="cannot look into"):
        home_to_read("x" * 300)
