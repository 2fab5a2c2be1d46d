"""What tests in network namespaces have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ftnode.protocol.words.errors import UserError


@contextmanager
def skipped_without_namespaces() -> Iterator[None]:
    """Skips, with the reason, where none can be made. Any other error stays one."""
    try:
        yield
    except UserError as error:
        if error.exit_code != 69:
            raise
        pytest.skip(f"needs namespaces: {error}")
