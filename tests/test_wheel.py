"""The wheel that others install has every file of the packages, and works where nothing else of the repository is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from ftnode.protocol.manifest.parse import parse

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocol", "models", "node", "bootstrap", "lab")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")

pytestmark = pytest.mark.timeout(120)


def run(*argv: object, folder: Path) -> str:
    """Without PYTHONPATH, by which the repository's own packages may be known."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, argv)], cwd=folder, capture_output=True, text=True, timeout=90, env=known)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves folders behind, and would take up what is in them the next time."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        shutil.copy(ROOT / name, source)
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", out, source, folder=source)
    (found,) = out.iterdir()
    return found


def test_every_file_of_the_packages_is_in_it(wheel: Path) -> None:
    told = {name.removeprefix("ftnode/") for name in ZipFile(wheel).namelist() if name.startswith("ftnode/")}
    there = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".LICENSE"
    }
    assert there - told == set(), "these are missing: [tool.setuptools] in pyproject.toml says what is taken"
    assert {name for name in told if not name.endswith(".LICENSE")} - there == set()


def test_it_works_where_nothing_else_of_the_repository_is(wheel: Path, tmp_path: Path) -> None:
    """The libraries are those of this environment, without what makes the repository's own packages known there."""
    venv.create(tmp_path / "fresh", with_pip=True)
    (site,) = (tmp_path / "fresh").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    python = tmp_path / "fresh/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, folder=tmp_path)
    where = run(python, "-c", "import ftnode.node.cli.main as main; print(main.__file__)", folder=tmp_path)
    assert where.startswith(str(site))
    ftnode = tmp_path / "fresh/bin/ftnode"
    assert run(ftnode, "--version", folder=tmp_path).startswith("ftnode ")
    run(ftnode, "run", "init", "tiny.toml", folder=tmp_path)
    assert parse((tmp_path / "tiny.toml").read_text()).run.name == "tiny"
