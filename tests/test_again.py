"""`.ci/again`: a few failed tests get a second chance alone, and no more than that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AGAIN = Path(__file__).parents[1] / ".ci" / "again"
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    if not {always} and Path("second").exists():
        return
    Path("second").touch()
    assert not {fails}
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("count", "always", "fails", "code", "words"),
    [
        (1, False, True, 0, "passed alone. Find out why:\n  test_them.py::test_it[0]"),
        (1, True, True, 1, "1 failed"),
        (3, True, True, 1, "3 failed"),
        (4, True, True, 1, "4 tests are noted as failed"),
        (1, False, False, 1, "0 tests are noted as failed"),
    ],
)
def test_who_gets_a_second_chance(tmp_path: Path, count: int, always: bool, fails: bool, code: int, words: str) -> None:
    (tmp_path / "test_them.py").write_text(TESTS.format(count=count, always=always, fails=fails))
    run(tmp_path, "-m", "pytest", "-q")
    answer = run(tmp_path, str(AGAIN))
    assert answer.returncode == code, answer
    assert words in answer.stdout + answer.stderr
