"""Files of a home: whole or not at all, and its owner's whoever writes them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.home.identity import take_only
from ftnode.node.links.addresses import REMEMBERED_FILE, remember_peers
from ftnode.node.owner.join_options import RUNNING_FOLDER, Running, forget_running, note_running, running_nodes
from ftnode.node.owner.pause_notes import ALL, FOLDER, read_word, write_word
from ftnode.node.owner.pause_rules import Word
from ftnode.protocol.words.errors import UserError

OWNER = 12345
PEER = "/ip4/192.0.2.7/tcp/31337/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for others")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Somebody else's, where we are root."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(home, OWNER, OWNER)
    return home


@root
def test_what_root_writes_is_the_owners(home: Path) -> None:
    write_word(home, ALL, Word(True, None, 1.0))
    note_running(home, Running(os.getpid(), "me", "run", ()))
    remember_peers(home, [PEER])
    written = [home / FOLDER, home / FOLDER / "all.json", home / RUNNING_FOLDER, home / RUNNING_FOLDER / "me.json"]
    for path in (*written, home / REMEMBERED_FILE):
        assert (path.stat().st_uid, path.stat().st_gid) == (OWNER, OWNER), path
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@root
def test_a_folder_that_root_left_is_given_back(home: Path) -> None:
    (home / FOLDER).mkdir(mode=0o700)
    write_word(home, ALL, Word(False, None, 1.0))
    assert (home / FOLDER).stat().st_uid == OWNER


@root
def test_root_follows_no_link_out_of_the_home(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / FOLDER).symlink_to(elsewhere)
    with pytest.raises(UserError, match="cannot write"):
        write_word(home, ALL, Word(True))
    assert list(elsewhere.iterdir()) == [] and elsewhere.stat().st_uid == 0


@root
@pytest.mark.parametrize("linked", ["folder", "note"])
def test_root_clears_no_notes_by_a_link_out_of_the_home(home: Path, tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "me.json").write_text("{}")
    if linked == "folder":
        (home / RUNNING_FOLDER).symlink_to(elsewhere)
    else:
        (home / RUNNING_FOLDER).mkdir()
        (home / RUNNING_FOLDER / "me.json").symlink_to(elsewhere / "me.json")
    assert running_nodes(home) == ()
    forget_running(home, "me")
    assert (elsewhere / "me.json").exists()


@root
def test_notes_of_another_user_stay(home: Path) -> None:
    note_running(home, Running(-1, "me", "run", ()))
    assert running_nodes(home) == () and (home / RUNNING_FOLDER / "me.json").exists()
    os.chown(home / RUNNING_FOLDER, 0, 0)
    assert running_nodes(home) == () and not (home / RUNNING_FOLDER / "me.json").exists()


def test_a_pipe_is_no_note(home: Path) -> None:
    (home / RUNNING_FOLDER).mkdir()
    os.mkfifo(home / RUNNING_FOLDER / "me.json")
    assert running_nodes(home) == ()


def test_nothing_half_written_stays(home: Path) -> None:
    (home / "it").mkdir()
    with folder_of(home) as folder:
        with pytest.raises(OSError):
            write_file(home, folder, "it", "text")
        write_file(home, folder, "other", "text", sync=True)
    assert sorted(path.name for path in home.iterdir()) == ["it", "other"]
    assert (home / "other").read_text() == "text" and read_word(home, "me") is None


def names_synced(monkeypatch: pytest.MonkeyPatch, fails: int = 0) -> list[str]:
    """What is done to a disk, in order."""
    done: list[str] = []
    sync, replace, link = os.fsync, os.replace, os.link

    def noted_sync(descriptor: int) -> None:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        done.append("names" if folder else "content")
        if folder and fails:
            raise OSError(fails, os.strerror(fails))
        sync(descriptor)

    def noted_replace(*given: object, **more: object) -> None:
        done.append("named")
        replace(*given, **more)  # type: ignore[arg-type]

    def noted_link(*given: object) -> None:
        done.append("named")
        link(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "link", noted_link)
    return done


@pytest.mark.parametrize("fails", [0, errno.EINVAL])
def test_what_outlasts_a_power_cut_has_its_name_on_the_disk(
    home: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """Also where a file system knows no way to put the names of a folder there."""
    done = names_synced(monkeypatch, fails)
    with folder_of(home) as folder:
        write_file(home, folder, "it", "text", sync=True)
        assert done == ["content", "named", "names"]
        write_file(home, folder, "it", "another")
        assert done[3:] == ["named"] and (home / "it").read_text() == "another"


def test_a_disk_that_loses_names_is_told_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names_synced(monkeypatch, errno.EIO)
    with folder_of(home) as folder, pytest.raises(OSError):
        write_file(home, folder, "it", "text", sync=True)


def test_a_new_key_outlasts_a_power_cut(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An author that has signed a run by it cannot change that run without it."""
    done = names_synced(monkeypatch)
    take_only(home, "author").release()
    assert done == ["content", "named", "names"]
