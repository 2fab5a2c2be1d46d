"""What a change needs first, in half a minute: the tests of the rooms that it touches, the core's tables, and 50 seeds.

    python -m tests.quick            tests of what differs from main, or from the last commit while on main
    python -m tests.quick --list     only say which

Tests lie in the folders of what they test: a change of `node/compute/client.py` names `tests/node/compute/`, and one of
`protocol/participant.py`, which is in no room, the tests in `tests/protocol/` itself. Tests with real swarms are never
among them (`make test-swarm`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "models", "node", "bootstrap", "lab")
ALWAYS = ("tests/protocol", "tests/test_tidy.py")
SWARMS = PurePosixPath("tests/swarm")
QUICK = "not swarm and not alone and not fresh"
"""What waits for the machine, or loads torch anew, is left to `make test`."""
LONG = "tests/protocol/wire/test_admission.py::test_no_message_breaks_a_participant"
"""Half the time of all tables; only for a change of its own room."""
SEEDS = 50
PROCESSES = 2


def named_by(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Files and folders below `root` with the tests for these changed files, none of them inside another."""
    found = set(ALWAYS)
    for name in changed:
        found |= _named_by(PurePosixPath(name), root)
    return sorted(one for one in found if not any(str(above) in found for above in PurePosixPath(one).parents))


def _named_by(path: PurePosixPath, root: Path) -> set[str]:
    if path.parts[0] == "tests":
        return _of_test(path, root)
    if path.parts[0] not in PACKAGES:
        return _directly_in(PurePosixPath("tests"), root)
    room = PurePosixPath("tests", *path.parts[:-1])
    while len(room.parts) > 2 and not (root / room).is_dir():
        room = room.parent
    if len(room.parts) > 2:
        return {str(room)}
    named = {str(room / test.name) for test in (root / room).glob(f"test_{path.stem}*.py")}
    return named or _directly_in(room, root)


def _of_test(path: PurePosixPath, root: Path) -> set[str]:
    """A file of tests is itself; another one belongs to all tests beside it and below."""
    if path.is_relative_to(SWARMS):
        return set()
    if path.match("test_*.py"):
        return {str(path)} if (root / path).exists() else set()
    return _directly_in(path.parent, root) if len(path.parts) == 2 else {str(path.parent)}


def _directly_in(folder: PurePosixPath, root: Path) -> set[str]:
    return {str(folder / test.name) for test in (root / folder).glob("test_*.py")}


def changed_files(root: Path = ROOT) -> list[str]:
    """What differs from where this branch left main, committed or not, and what git does not know yet."""
    base = _git(root, "merge-base", "HEAD", "main") or ["HEAD"]
    return sorted({*_git(root, "diff", "--name-only", base[0]), *_git(root, "ls-files", "-o", "--exclude-standard")})


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="only say which tests there are")
    options, others = parser.parse_known_args()
    begun, changed = time.monotonic(), changed_files()
    chosen = named_by(changed)
    others += [] if any("protocol/wire/" in name for name in changed) else ["--deselect", LONG]
    print("quick:", *chosen, f"and seeds 1 to {SEEDS}", flush=True)
    if options.list:
        return 0
    python = [sys.executable, "-m"]
    seeds = subprocess.Popen([*python, "tests.sim.run", "1", str(SEEDS), "--processes", str(PROCESSES)], cwd=ROOT)
    tests = [*python, "pytest", "-m", QUICK, "-n", str(PROCESSES), "--dist", "loadscope", *chosen, *others]
    failed = [subprocess.run(tests, cwd=ROOT, check=False).returncode, seeds.wait()]
    print(f"quick: {'failed' if any(failed) else 'passed'} after {time.monotonic() - begun:.0f} s")
    return int(any(failed))


if __name__ == "__main__":
    sys.exit(main())
