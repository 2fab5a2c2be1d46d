"""nginx and Caddy in front of a dashboard, as the how-to page has them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "use-the-dashboard.md"
UPSTREAM = "127.0.0.1:8080"
START_SECONDS = 20.0
LOOK_SECONDS = 0.02
Behind = Callable[[str], AbstractContextManager[str]]


def snippet(start: str) -> str:
    """The block of the page that begins with this line."""
    (block,) = (found for found in re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.S) if found.startswith(start))
    return block


def nginx(folder: Path) -> Behind:
    """Of a server's URL; it gives the URL of its own where the page is. It writes below `folder` alone."""

    @contextmanager
    def behind(url: str) -> Iterator[str]:
        port = free_port()
        text = changed(
            snippet("upstream ftnode {"),
            (UPSTREAM, urlsplit(url).netloc),
            ("/var/cache/nginx-ftnode", f"{folder}/cache"),
            ("server_name swarm.example;", f"server_name swarm.example; listen 127.0.0.1:{port};"),
        )
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
        user = "user root;\n" if os.geteuid() == 0 else ""  # else nobody, who may not enter the folder
        http = f"events {{}}\nhttp {{\naccess_log off;\n{paths}{text}}}\n"
        (folder / "nginx.conf").write_text(f"{user}worker_processes 1;\ndaemon off;\npid {folder}/pid;\n{http}")
        with serving(["nginx", "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"], folder, port):
            yield f"http://127.0.0.1:{port}/tiny/"

    return behind


def caddy(folder: Path) -> Behind:
    """As `nginx`."""

    @contextmanager
    def behind(url: str) -> Iterator[str]:
        port = free_port()
        text = changed(
            snippet("swarm.example {"),
            (UPSTREAM, urlsplit(url).netloc),
            ("swarm.example {", f"http://127.0.0.1:{port} {{"),
        )
        (folder / "Caddyfile").write_text(f"{{\nadmin off\nauto_https off\n}}\n{text}")
        argv = ["caddy", "run", "--config", f"{folder}/Caddyfile", "--adapter", "caddyfile"]
        with serving(argv, folder, port):
            yield f"http://127.0.0.1:{port}/tiny/"

    return behind


def changed(text: str, *changes: tuple[str, str]) -> str:
    for before, after in changes:
        assert before in text, f"the page has no {before!r} any more"
        text = text.replace(before, after)
    return text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def serving(argv: list[str], folder: Path, port: int) -> Iterator[None]:
    """Skips where the program is not installed."""
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed; Debian: apt install {argv[0]}")
    homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    log = folder / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, env={**os.environ, **homes})
    try:
        deadline = time.monotonic() + START_SECONDS
        while not listens(port):
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"it ended with {process.wait(LOOK_SECONDS)}: {log.read_text()}")
            assert time.monotonic() < deadline, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
