"""A test that plants a bug with pytest's monkeypatch takes up no kept world."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from tests.sim.kept_worlds import planted


@pytest.fixture(autouse=True)
def _planted_by_hand(request: pytest.FixtureRequest) -> Iterator[None]:
    if "monkeypatch" not in inspect.signature(request.function).parameters:
        yield
        return
    with planted(at_any_time=True):
        yield
