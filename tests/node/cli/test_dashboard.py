"""`ftnode dashboard` where Ctrl-C is ignored from the start, as a shell has it for what it runs in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.node.cli.cli_runner import Seen

PEER = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
"""Nobody is there."""
PROGRAM = ("-m", "ftnode.node.cli")
SOON = """
import os, signal
from ftnode.node.cli import dashboard
{bug}
say = dashboard._say_where
def said(*told):
    say(*told)
    os.kill(os.getpid(), signal.SIGINT)
dashboard._say_where = said
from ftnode.node.cli.main import main
main()
"""
"""Ctrl-C as soon as the page is there, before anything waits for it."""
DEAF = "import contextlib; dashboard._noted = lambda: contextlib.nullcontext([])"
END_SECONDS = 60
"""On a machine that is busy with other things."""


@contextmanager
def in_background(home: Path, program: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """The shell, which says with what code the dashboard has ended; the dashboard's process; its URL."""
    page = [sys.executable, *program, "dashboard", "--listen", "127.0.0.1:0", "--peer", PEER, "--home", str(home)]
    script = '"$@" & echo $!; wait $!; echo "ended with $?"'
    shell = subprocess.Popen(
        ["sh", "-c", script, "sh", *page], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    try:
        yield shell, pid, shell.stdout.readline().split(" is at ")[1].split(";")[0]
    finally:
        if shell.poll() is None:  # it waits for its child, so that this number is that one's still
            os.kill(pid, signal.SIGKILL)
        shell.communicate(timeout=END_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_page_in_the_background_of_a_shell_ends_when_it_is_told_to(tmp_path: Path, number: signal.Signals) -> None:
    with in_background(tmp_path, PROGRAM) as (shell, pid, url):
        with urllib.request.urlopen(f"{url}look", timeout=END_SECONDS) as answer:
            assert answer.status == 200
        os.kill(pid, number)
        assert shell.communicate(timeout=END_SECONDS) == ("ended with 0\n", "")


def test_it_ends_as_well_when_that_comes_before_anything_waits_for_it(tmp_path: Path) -> None:
    with in_background(tmp_path, ("-c", SOON.format(bug=""))) as (shell, _pid, _url):
        assert shell.communicate(timeout=END_SECONDS) == ("ended with 0\n", "")


def test_a_planted_bug_that_loses_what_comes_so_early_is_found(tmp_path: Path) -> None:
    with in_background(tmp_path, ("-c", SOON.format(bug=DEAF))) as (shell, pid, url):
        for _ in range(3):
            with urllib.request.urlopen(f"{url}look", timeout=END_SECONDS) as answer:
                assert answer.status == 200
        assert shell.poll() is None, "nobody has heard it"
        os.kill(pid, signal.SIGTERM)
        assert shell.communicate(timeout=END_SECONDS)[0] in ("ended with 0\n", "ended with 143\n")


def test_a_speed_is_for_a_recording(ftnode: Callable[..., Seen]) -> None:
    assert ftnode("dashboard", "--speed", "3").refused(64, "--replay")
