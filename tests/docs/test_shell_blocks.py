"""Every shell block of README and docs/ that can run is run, in the order of its page.

Blocks that need neither a swarm nor other processes run among the fast tests. A page with any others is run as a
whole among the tests with real processes.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown_page import Block, read_page
from tests.docs.page_folder import SmallRun, prepare, start
from tests.docs.shell_session import BlockFailed, Session, is_run, needs_processes, needs_swarm

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FAST_SECONDS, SLOW_SECONDS = 60.0, 300.0
"""For one block. A busy machine starts torch slowly."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def runnable(path: Path) -> list[Block]:
    return [block for block in read_page(path).shell if is_run(block)]


FAST = [path for path in PAGES if any(not needs_processes(block) for block in runnable(path))]
SLOW = [path for path in PAGES if any(needs_processes(block) for block in runnable(path))]


@pytest.mark.parametrize("path", FAST, ids=name_of)
def test_blocks_that_need_no_swarm(path: Path, tmp_path: Path) -> None:
    prepare(tmp_path)
    with Session(tmp_path) as session:
        for block in runnable(path):
            if not needs_processes(block):
                session.run(block, FAST_SECONDS)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRun]:
    run = SmallRun(tmp_path_factory.mktemp("small-run"))
    yield run
    run.end()


@pytest.mark.swarm
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("path", SLOW, ids=name_of)
def test_whole_pages(path: Path, tmp_path: Path, small_run: SmallRun) -> None:
    """In a run of the first manifest that the page makes, or else in one that all such pages share."""
    prepare(tmp_path)
    run: dict[str, str] = {}
    with Session(tmp_path) as session:
        for block in runnable(path):
            if needs_swarm(block) and not run:
                if made := sorted(tmp_path.glob("*.toml"), key=lambda file: file.stat().st_ctime_ns):
                    run = {"PEER": start(session, made[0].name)}
                else:
                    peer, home = small_run.lend(tmp_path)
                    run = {"PEER": peer, "FTNODE_HOME": str(home)}
            session.run(block, SLOW_SECONDS, run if needs_swarm(block) else {})


def block(text: str, note: str = "") -> Block:
    return Block(1, "sh", note, text)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session(tmp_path) as session:
        yield session


def test_a_block_goes_on_where_the_one_before_ended(session: Session) -> None:
    session.run(Block(1, "sh", "", "mkdir a\ncd a\nNAME='two words'"), FAST_SECONDS)
    assert session.run(Block(9, "sh", "", 'basename "$PWD"; echo "$NAME"'), FAST_SECONDS) == "a\ntwo words\n"


def test_a_block_that_fails_in_the_middle_is_found(session: Session) -> None:
    with pytest.raises(BlockFailed, match="ended with 1:"):
        session.run(block("echo one\nfalse\necho two"), FAST_SECONDS)
    with pytest.raises(BlockFailed, match="ended with"):
        session.run(block("false | cat"), FAST_SECONDS)
    with pytest.raises(BlockFailed, match="NOT_SET: unbound"):
        session.run(block('echo "$NOT_SET"'), FAST_SECONDS)


def test_a_wrong_flag_in_a_block_is_found(session: Session) -> None:
    with pytest.raises(BlockFailed, match=r"(?s)ended with 64.*No such option"):
        session.run(block("ftnode run init --peset tiny tiny.toml"), FAST_SECONDS)


def test_a_block_that_does_not_end_is_found(session: Session) -> None:
    with pytest.raises(BlockFailed, match=r"did not end within 0\.5 s"):
        session.run(block("sleep 60"), 0.5)


def test_a_block_runs_until_it_has_said_something(session: Session) -> None:
    says = 'until "begun"'
    ends_well = "trap 'echo ended; exit 0' INT; echo begun; while true; do sleep 0.05; done"
    assert session.run(block(ends_well, f"run: {says}"), FAST_SECONDS) == "begun\nended\n"
    with pytest.raises(BlockFailed, match="ended with 3"):
        session.run(block(ends_well.replace("exit 0", "exit 3"), f"run: {says}"), FAST_SECONDS)
    with pytest.raises(BlockFailed, match=r"did not end within 0\.5 s"):
        session.run(block("echo another; sleep 60", f"run: {says}"), 0.5)
    with pytest.raises(BlockFailed, match="ended with 1"):
        session.run(block("echo another", f"run: {says}"), FAST_SECONDS)


def test_what_a_block_leaves_running_ends_with_the_session(tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        session.run(block("sleep 600 & echo $! > pid"), FAST_SECONDS)
        number = int((tmp_path / "pid").read_text())
        watched = os.pidfd_open(number)
    ended, _, _ = select.select([watched], [], [], FAST_SECONDS)
    os.close(watched)
    assert ended, "it is still there"


def test_a_home_is_not_that_of_who_runs_the_tests(session: Session, tmp_path: Path) -> None:
    printed = session.run(block('echo "$HOME"; ftnode config path'), FAST_SECONDS)
    assert all(line.startswith(str(tmp_path)) for line in printed.splitlines())
