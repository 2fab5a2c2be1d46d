"""The tree keeps its own rules, and each rule finds what it is meant to find."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from ftnode.node.cli.main import LazyGroup, cli
from tests import tidy_rules as rules
from tests.syntax_trees import ROOT, trees_of

ALONE = ("hivemind", "libp2p")
"""Each is imported by one file of the node, since one process cannot hold both; benches of the lab may compare them."""
COMPARING = {"lab/parts/transport_paths.py", "lab/parts/reduction_peers.py", "lab/parts/allreduce_peer.py"}
DOCUMENTED_IN = ("README.md", "docs/reference/commands.md")
SKIPPED = {".git", ".venv", "build", "dist", "__pycache__", "reports"}


@cache
def python_files() -> dict[str, ast.Module]:
    found = {path: tree for package in (*rules.PACKAGES, "tests") for path, tree in trees_of(package).items()}
    assert len(found) > 20
    return found


def text_files() -> Iterator[Path]:
    for top in sorted(ROOT.iterdir()):
        if top.is_file() or (top.is_dir() and top.name in {*rules.PACKAGES, "tests", "docs", ".ci"}):
            for path in [top] if top.is_file() else sorted(top.rglob("*")):
                if (
                    path.is_file()
                    and not SKIPPED & set(path.parts)
                    and path.suffix in (".py", ".md", ".toml", ".txt", "")
                ):
                    yield path


def importers(library: str, files: dict[str, ast.Module]) -> list[str]:
    return [
        path for path, tree in files.items() if any(name.split(".")[0] == library for name, _ in rules.imports(tree))
    ]


def commands(group: click.Group, prefix: str = "ftnode") -> Iterator[tuple[str, click.Command]]:
    assert isinstance(group, LazyGroup)
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps(rule: rules.Rule) -> None:
    assert [finding for path, tree in python_files().items() for finding in rule(path, tree)] == []


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (rules.packages_import_downwards, "protocol/x.py", "import ftnode.node.cli.main"),
        (rules.packages_import_downwards, "protocol/x.py", "from ftnode import models"),
        (rules.packages_import_downwards, "models/x.py", "from ftnode.protocol import types"),
        (rules.packages_import_downwards, "node/x.py", "from ftnode.bootstrap import server"),
        (rules.packages_import_downwards, "node/cli/main.py", "def f():\n    import ftnode.lab.demo.demo"),
        (rules.packages_import_downwards, "bootstrap/x.py", "from ftnode.node.driver.driver import Driver"),
        (rules.packages_import_downwards, "bootstrap/x.py", "import ftnode.models.llama"),
        (rules.packages_import_downwards, "node/x.py", "from .driver import Driver"),
        (rules.packages_import_downwards, "node/x.py", "from node.driver import Driver"),
        (rules.core_is_pure, "protocol/x.py", "import time"),
        (rules.core_is_pure, "protocol/x.py", "from time import monotonic"),
        (rules.core_is_pure, "protocol/x.py", "import logging"),
        (rules.core_is_pure, "protocol/x.py", "import trio"),
        (rules.core_is_pure, "protocol/x.py", "import numpy as np"),
        (rules.core_is_pure, "protocol/x.py", "import random\nx = random.random()"),
        (rules.core_is_pure, "protocol/x.py", "from random import choice"),
        (rules.core_is_pure, "protocol/x.py", "def f():\n    return open('x')"),
        (rules.only_its_picture_is_read, "node/life/x.py", "def f(self): return self.participant.holder.versions"),
        (rules.only_its_picture_is_read, "lab/demo/x.py", "def f(core): return core.members"),
        (rules.only_its_picture_is_read, "node/life/x.py", "def f(one: Participant | None): one.situation"),
        (rules.only_its_picture_is_read, "node/life/x.py", "one: 'Participant'\none.chronicle"),
        (rules.only_its_picture_is_read, "node/life/x.py", "a, b = 1, self._core\nc = b\nc.leader"),
        (
            rules.only_its_picture_is_read,
            "node/life/x.py",
            "self.one = Participant(me, settings)\nself.one.view",
        ),
        (rules.only_its_picture_is_read, "node/life/x.py", "def f(self): return getattr(self.participant, name)"),
        (rules.errors_are_not_swallowed, "node/x.py", "try:\n    f()\nexcept Exception:\n    pass"),
        (rules.errors_are_not_swallowed, "node/x.py", "try:\n    f()\nexcept:\n    x = 1"),
        (rules.errors_are_not_swallowed, "node/x.py", "try:\n    f()\nexcept (OSError, BaseException):\n    x = 1"),
        (rules.errors_are_not_swallowed, "node/x.py", "try:\n    f()\nexcept Exception as error:\n    x = error"),
        (rules.errors_are_not_swallowed, "tests/x.py", "try:\n    f()\nexcept Exception as error:\n    pass"),
        (rules.tests_do_not_sleep, "tests/node/test_x.py", "import time\ntime.sleep(1)"),
        (rules.tests_do_not_sleep, "tests/node/test_x.py", "async def f():\n    await trio.sleep(0.1)"),
        (rules.tests_do_not_sleep, "tests/node/test_x.py", "from time import sleep\nsleep(1)"),
        (rules.rooms_import_downwards, "node/links/x.py", "from ftnode.node.driver.driver import Driver"),
        (rules.rooms_import_downwards, "node/links/x.py", "from ftnode.node import driver"),
        (rules.rooms_import_downwards, "protocol/words/x.py", "import ftnode.protocol.participant"),
        (
            rules.rooms_import_downwards,
            "protocol/step/x.py",
            "if TYPE_CHECKING:\n    from ftnode.protocol.leader.leader import Leader",
        ),
        (rules.rooms_import_downwards, "node/attic/x.py", ""),
        (rules.rooms_import_downwards, "node/x.py", ""),
        (rules.tests_mirror_the_rooms, "tests/node/attic/test_x.py", ""),
        (rules.functions_fit_on_a_screen, "node/x.py", "def f():\n" + "    x = 1\n" * 90),
        (rules.foreign_bytes_have_one_decoder, "node/watch/x.py", "import msgpack\nmsgpack.unpackb(b'')"),
        (rules.foreign_bytes_have_one_decoder, "protocol/x.py", "import msgpack\nx = msgpack.Unpacker()"),
        (rules.foreign_bytes_have_one_decoder, "bootstrap/x.py", "from msgpack import unpackb as read"),
        (rules.foreign_bytes_have_one_decoder, "node/x.py", "import msgpack\nmsgpack.fallback.Unpacker(file)"),
        (rules.names_are_of_the_domain, "node/utils.py", ""),
        (rules.names_are_of_the_domain, "node/stage_helpers.py", ""),
        (rules.names_are_of_the_domain, "node/x.py", "class StageManager: ..."),
        (rules.names_are_of_the_domain, "node/x.py", "def tensor_utils(): ..."),
    ],
)
def test_a_planted_violation_is_found(rule: rules.Rule, path: str, source: str) -> None:
    assert list(rule(path, ast.parse(source)))


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (rules.packages_import_downwards, "node/cli/bootstrap.py", "from ftnode.bootstrap import server"),
        (rules.packages_import_downwards, "lab/demo/demo.py", "import ftnode.node.cli.main, ftnode.models.llama"),
        (rules.core_is_pure, "protocol/x.py", "import random\ndef f(chance: random.Random): return chance.random()"),
        (rules.core_is_pure, "node/x.py", "import time"),
        (rules.only_its_picture_is_read, "node/life/x.py", "core.handle(event, core.deadline)\ncore.picture.members"),
        (rules.only_its_picture_is_read, "node/life/x.py", "def f(look: Callable[[], Picture]): return look().members"),
        (rules.only_its_picture_is_read, "protocol/leader/x.py", "core.members"),
        (rules.errors_are_not_swallowed, "node/x.py", "try:\n    f()\nexcept Exception:\n    log.exception('x')"),
        (rules.errors_are_not_swallowed, "node/x.py", "try:\n    f()\nexcept Exception:\n    raise Other from None"),
        (rules.errors_are_not_swallowed, "tests/x.py", "try:\n    f()\nexcept Exception as error:\n    x = error"),
        (rules.tests_do_not_sleep, "tests/swarm/test_x.py", "import time\ntime.sleep(1)"),
        (rules.tests_do_not_sleep, "node/x.py", "async def f():\n    await trio.sleep(1)"),
        (rules.foreign_bytes_have_one_decoder, "node/x.py", "import msgpack\nmsgpack.packb([])"),
        (rules.foreign_bytes_have_one_decoder, "node/directory/link.py", "import msgpack\nmsgpack.unpackb(b'')"),
        (rules.names_are_of_the_domain, "node/x.py", "class Manages: ..."),
    ],
)
def test_what_is_allowed_is_not_found(rule: rules.Rule, path: str, source: str) -> None:
    assert list(rule(path, ast.parse(source))) == []


def test_no_files_import_each_other() -> None:
    packages = {path: tree for path, tree in python_files().items() if not path.startswith("tests/")}
    assert rules.import_circles(packages) == []


def test_a_circle_is_found() -> None:
    sources = {
        "node/a.py": "from ftnode.node import b",
        "node/b.py": "if TYPE_CHECKING:\n    from ftnode.node.c import C",
        "node/c.py": "def f():\n    import ftnode.node.a",
        "node/d.py": "import ftnode.node.a",
    }
    planted = {path: ast.parse(source) for path, source in sources.items()}
    assert rules.import_circles(planted) == [["node/a.py", "node/b.py", "node/c.py"]]
    assert rules.import_circles({path: tree for path, tree in planted.items() if path != "node/b.py"}) == []


def test_torch_stays_in_the_compute_process() -> None:
    assert rules.torch_outside_compute(python_files()) == []


def test_torch_that_leaks_is_found() -> None:
    sources = {
        "models/llama.py": "import torch.nn",
        "models/config.py": "import dataclasses",
        "node/compute/process.py": "from ftnode.models.llama import Block",
        "node/cli/main.py": "from ftnode.models.config import ModelConfig",
        "node/driver/driver.py": "def f():\n    from ftnode.models import llama",
        "node/life/lives.py": "import ftnode.node.driver.driver",
        "bootstrap/server.py": "import torch",
    }
    planted = {path: ast.parse(source) for path, source in sources.items()}
    assert rules.torch_outside_compute(planted) == [
        "bootstrap/server.py",
        "node/driver/driver.py",
        "node/life/lives.py",
    ]


@pytest.mark.parametrize("library", ALONE)
def test_a_library_that_stands_alone_has_one_importer(library: str) -> None:
    found = importers(library, {path: tree for path, tree in python_files().items() if not path.startswith("tests/")})
    assert len([path for path in found if not path.startswith("lab/")]) == 1, found
    assert {path for path in found if path.startswith("lab/")} <= COMPARING, found


def test_importers_are_found() -> None:
    planted = {"a.py": ast.parse("def f():\n    from hivemind.dht import node"), "b.py": ast.parse("import hive")}
    assert importers("hivemind", planted) == ["a.py"]


def test_files_speak_of_the_project_only() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if rules.PROJECT_ONLY.search(line) and path.name not in ("test_tidy.py", "tidy_rules.py")
    ]
    assert found == []


@pytest.mark.parametrize("text", ["see /work/x/y", "(/root/.cache)", "at /home/anna/ftnode", "/tmp/brief/x"])
def test_a_place_of_one_machine_is_found(text: str) -> None:
    assert rules.PROJECT_ONLY.search(text)


def test_every_option_is_documented() -> None:
    pages = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in DOCUMENTED_IN)
    missing = [
        f"{name} {option}"
        for name, command in commands(cli)
        for parameter in command.params
        for option in (parameter.opts if isinstance(parameter, click.Option) and not parameter.hidden else [])
        if option.startswith("--") and not documented(name, option, pages)
    ]
    assert missing == []


def documented(command: str, option: str, pages: str) -> bool:
    """Below a heading that names the command, up to the next heading."""
    sections = pages.split("\n#")
    return any(f"`{command}`" in section.split("\n", 1)[0] and f"`{option}" in section for section in sections)


def test_an_undocumented_option_is_found() -> None:
    pages = "# x\n\n## `ftnode join`\n\n`--peer ADDR` says\n\n## `ftnode id`\n\n`--home`"
    assert documented("ftnode join", "--peer", pages)
    assert not documented("ftnode join", "--home", pages)


def test_every_command_takes_a_home() -> None:
    missing = [name for name, command in commands(cli) if "--home" not in {o for p in command.params for o in p.opts}]
    assert missing == []
