"""An author, for the tests of what authors sign."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ftnode.node.home.identity import Identity, home_directory
from ftnode.node.manifests.authorship import author_key


@pytest.fixture
def key(tmp_path: Path) -> Iterator[Identity]:
    taken = author_key(home_directory(str(tmp_path / "home")))
    yield taken
    taken.release()
