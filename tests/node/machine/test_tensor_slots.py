"""Slots are taken, pinned, released and taken again; a handle never names another tensor."""

from __future__ import annotations

import gc
import os

import pytest

from ftnode.node.machine.tensor_slots import Arena, SlotMap
from ftnode.protocol.words.errors import LocalError


def test_slots_run_out_and_come_back() -> None:
    arena = Arena(100, 2)
    first, second = arena.take(), arena.take()
    assert arena.free == 0
    with pytest.raises(LocalError, match="all 2 slots"):
        arena.take()
    arena.release(first)
    third = arena.take()
    assert arena.slot(third) != arena.slot(second)
    assert third not in (first, second)


def test_a_released_handle_names_nothing() -> None:
    arena = Arena(100, 1)
    old = arena.take()
    arena.release(old)
    new = arena.take()
    for misuse in (arena.view, arena.slot, arena.pin, arena.release, arena.unpin):
        with pytest.raises(LocalError):
            misuse(old)
    assert arena.slot(new) == 0


def test_release_waits_for_the_last_pin() -> None:
    arena = Arena(100, 1)
    handle = arena.take()
    arena.pin(handle)
    arena.pin(handle)
    arena.release(handle)
    arena.unpin(handle)
    assert arena.free == 0
    with pytest.raises(LocalError, match="was released"):
        arena.view(handle)
    arena.unpin(handle)
    assert arena.free == 1


def test_unpin_needs_a_pin() -> None:
    arena = Arena(100, 1)
    with pytest.raises(LocalError, match="not pinned"):
        arena.unpin(arena.take())


def test_where_there_is_no_memfd_a_file_without_a_name_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "memfd_create")
    test_views_do_not_overlap_and_the_other_mapping_sees_them()


def test_views_do_not_overlap_and_the_other_mapping_sees_them() -> None:
    arena = Arena(100, 3)
    handles = [arena.take() for _ in range(3)]
    for number, handle in enumerate(handles, 1):
        view = arena.view(handle)
        assert len(view) == 100
        view[:] = bytes([number]) * 100
    other = SlotMap(arena.descriptor, 100, 3)
    assert [set(other.view(arena.slot(handle))) for handle in handles] == [{1}, {2}, {3}]


def test_a_child_cannot_shrink_the_memory_under_us() -> None:
    arena = Arena(100, 3)
    with pytest.raises(OSError):
        os.ftruncate(arena.descriptor, 0)


def test_an_arena_that_goes_takes_its_descriptor_along() -> None:
    arena = Arena(100, 3)
    descriptor = arena.descriptor
    assert os.fstat(descriptor).st_size > 0
    del arena
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_it_closes_it_once_whoever_has_that_number_later() -> None:
    arena = Arena(100, 3)
    descriptor = arena.descriptor
    arena.close()
    with open(os.devnull, "rb") as another:
        assert another.fileno() == descriptor
        arena.close()
        del arena
        gc.collect()
        assert os.fstat(descriptor)


@pytest.mark.parametrize(("size", "slots"), [(0, 1), (1, 0), (1, 1 << 17)])
def test_impossible_arenas(size: int, slots: int) -> None:
    with pytest.raises(LocalError):
        Arena(size, slots)


@pytest.mark.parametrize("handle", [-1, 0, 5, 1 << 40])
def test_handles_out_of_the_air(handle: int) -> None:
    with pytest.raises(LocalError):
        Arena(100, 2).view(handle)
