"""A path that cannot be looked at costs one line, whatever the command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from ftnode.node.cli.main import cli
from ftnode.node.cli.options import TypedPath
from tests.node.cli.cli_runner import Seen

LONG = "a" * 300
"""No file system of ours takes such a name; what looks at it gets an error other than that nothing is there."""
PEER = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
WRITTEN = ("run init {}", "run fetch ftnode:abc {}", "snapshots save {}", "tensorboard . {}")
READ = (
    "run show {}", "run validate {}", "run sign {}", "run push {}", "generate {} hello", "replay {}", "lab audit {}",
    "data check {}", "dashboard --replay {}", "snapshots divide {}", "tensorboard {} out", "join {}",
)  # fmt: skip


@pytest.mark.parametrize(("words", "code"), [(each, 73) for each in WRITTEN] + [(each, 66) for each in READ])
def test_a_path_that_no_file_system_takes(words: str, code: int, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    path = tmp_path / LONG / "x"
    assert ftnode(*words.format(path).split(), "--home", tmp_path / "home").refused(code, str(path), "too long")


@pytest.mark.parametrize(("typed", "says"), [("", "is empty"), ("-", "./-")])
@pytest.mark.parametrize("words", ["run init", "run validate", "data check", "replay"])
def test_no_path_and_a_pipe_are_no_files(words: str, typed: str, says: str, ftnode: Callable[..., Seen]) -> None:
    """Of a variable that is not set; and of who writes a dash for standard output got a file of that name."""
    assert ftnode(*words.split(), typed).refused(64, says)


def test_every_command_has_its_paths_looked_at() -> None:
    types = {type(param.type) for _, load in cli.leaves() for param in load().params}
    assert TypedPath in types and click.Path not in types


def test_the_tab_key_completes_every_path() -> None:
    """Also of values that may be something else, as a link."""
    names = {"MANIFEST", "FILE", "FOLDER", "PATH", "DIR", "SOURCE"}
    for words, load in cli.leaves():
        command = load()
        with click.Context(command, info_name=words[-1]) as context:
            for param in command.params:
                if names & set(re.findall("[A-Z]+", param.metavar or "")):
                    kinds = [item.type for item in param.shell_complete(context, "x")]
                    assert kinds in (["file"], ["dir"]), (words, param.name)


@pytest.mark.parametrize(
    ("words", "told"),
    [("join ti", "file,ti"), ("export ti", "file,ti"), ("join --home /t", "dir,/t"), ("run init --from mo", "dir,mo")],
)
def test_what_the_shell_is_told_at_the_tab_key(words: str, told: str) -> None:
    asked = {
        "_FTNODE_COMPLETE": "bash_complete",
        "COMP_WORDS": f"ftnode {words}",
        "COMP_CWORD": f"{words.count(' ') + 1}",
    }
    done = program(asked)
    assert (done.returncode, done.stdout.split()) == (0, [told])


def test_a_misspelt_shell_is_told_of() -> None:
    done = program({"_FTNODE_COMPLETE": "bsh_source"})
    assert done.returncode == 64 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "_FTNODE_COMPLETE=bsh_source asks for nothing; it is bash_source, zsh_source or fish_source" in done.stderr
    assert "complete -o nosort" in program({"_FTNODE_COMPLETE": "bash_source"}).stdout


def program(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    code = "import sys; from ftnode.node.cli.main import main; sys.exit(main([]))"
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0)
    yield folder
    folder.chmod(0o700)


@pytest.fixture
def unprivileged() -> list[str]:
    """What a command starts with, so that locked folders are locked for it. They are not for root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root opens every folder, and there is no setpriv")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.parametrize(
    ("words", "code"),
    [("run init {}/a.toml", 73), ("run show {}/a.toml", 66), ("generate {} hello", 66), ("join {}/a.toml", 66),
     ("id --home {}", 78), ("replay {}/trace", 66), ("export {}/a.toml model", 66), ("run sign {}/a.toml", 66),
     (f"run fetch ftnode:{'ab' * 16}?peer={PEER} {{}}/a.toml", 73)],
)  # fmt: skip
def test_a_folder_of_somebody_else(words: str, code: int, locked: Path, unprivileged: list[str]) -> None:
    command = [*unprivileged, sys.executable, "-m", "ftnode.node.cli", *words.format(locked).split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert Seen(done.returncode, done.stdout, done.stderr).refused(code)


def test_a_file_that_a_command_meets_on_its_way(
    tmp_path: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/var/somewhere")

    monkeypatch.setattr("ftnode.node.home.identity.take_identity", denied)
    assert ftnode("id", "--home", tmp_path).refused(77, "/var/somewhere", "Permission denied")
