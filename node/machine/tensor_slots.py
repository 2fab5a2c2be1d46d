"""Shared memory for boundary tensors: one memfd of equal slots, mapped by the node and by its compute process.

A tensor is received straight into a slot and read there by torch. Only the node takes and releases slots; a handle
carries its slot's generation, so that a handle used after its release is noticed instead of naming another tensor.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass

from ftnode.protocol.words.errors import LocalError
from ftnode.protocol.words.types import Handle

SLOTS_MAX = 1 << 16
RESERVED_SLOTS = 2
"""Left to the step in progress by transfers of state."""
ALIGNMENT = 4096
"""Bytes of a page: each slot can be pinned by itself."""


class SlotMap:
    """The mapping of an arena's file. `view(slot)` is its bytes; the compute process needs nothing else.

    `descriptor` stays open as long as its owner likes: the mapping does not need it.
    """

    def __init__(self, descriptor: int, slot_bytes: int, slots: int) -> None:
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.stride = stride(slot_bytes)
        self._memory = mmap.mmap(descriptor, self.stride * slots)
        self._whole = memoryview(self._memory)

    def view(self, slot: int) -> memoryview:
        """Writable, `slot_bytes` long. Raises LocalError for a slot that does not exist."""
        if not 0 <= slot < self.slots:
            raise LocalError(f"the arena has no slot {slot}")
        return self._whole[slot * self.stride : slot * self.stride + self.slot_bytes]


@dataclass(slots=True)
class _Slot:
    """0 <= pins. `doomed`: released while pinned, free at the last unpin."""

    generation: int = 0
    taken: bool = False
    doomed: bool = False
    pins: int = 0


class Arena:
    """Who uses which slot. Not for threads: only the node's trio thread touches it."""

    def __init__(self, slot_bytes: int, slots: int) -> None:
        if slot_bytes <= 0 or not 0 < slots <= SLOTS_MAX:
            raise LocalError(f"an arena of {slots} slots of {slot_bytes} bytes cannot be")
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.descriptor = shared_file(stride(slot_bytes) * slots)
        """For the compute process: pass it on, and map it there with SlotMap(descriptor, slot_bytes, slots). It is
        closed when the arena goes."""
        self._closing = weakref.finalize(self, os.close, self.descriptor)
        self._map = SlotMap(self.descriptor, slot_bytes, slots)
        self._slots = [_Slot() for _ in range(slots)]
        self._free = list(range(slots - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many slots can be taken."""
        return len(self._free)

    def take(self) -> Handle:
        """A free slot's new handle; its bytes are whatever the last tensor left. Raises LocalError when none is free:
        whoever can do without a slot asks `free` first."""
        if not self._free:
            raise LocalError(f"all {self.slots} slots of the arena are taken")
        index = self._free.pop()
        slot = self._slots[index]
        slot.generation += 1
        slot.taken = True
        return slot.generation * SLOTS_MAX + index

    def slot(self, handle: Handle) -> int:
        """The slot of a live handle, for the compute process. Raises LocalError when it was released."""
        self._live(handle)
        return handle % SLOTS_MAX

    def view(self, handle: Handle) -> memoryview:
        """The slot's bytes, writable. Keep no view beyond the handle."""
        return self._map.view(self.slot(handle))

    def is_live(self, handle: Handle) -> bool:
        """It was not released. Of a handle that is pinned."""
        return not self._named(handle).doomed

    def pin(self, handle: Handle) -> None:
        """Keep the bytes until `unpin`, also when the handle is released meanwhile."""
        self._live(handle).pins += 1

    def unpin(self, handle: Handle) -> None:
        slot = self._named(handle)
        if slot.pins == 0:
            raise LocalError(f"handle {handle} is not pinned")
        slot.pins -= 1
        if slot.doomed and slot.pins == 0:
            self._give_back(handle, slot)

    def release(self, handle: Handle) -> None:
        """The tensor is needed no more; its slot is free as soon as nothing pins it."""
        slot = self._live(handle)
        if slot.pins:
            slot.doomed = True
        else:
            self._give_back(handle, slot)

    def close(self) -> None:
        """Let go of the file; its memory goes with the last mapping. A second call does nothing."""
        self._closing()
        self.descriptor = -1

    def _give_back(self, handle: Handle, slot: _Slot) -> None:
        slot.taken = slot.doomed = False
        self._free.append(handle % SLOTS_MAX)

    def _named(self, handle: Handle) -> _Slot:
        index, generation = handle % SLOTS_MAX, handle // SLOTS_MAX
        if index >= self.slots or self._slots[index].generation != generation or not self._slots[index].taken:
            raise LocalError(f"handle {handle} names no tensor")
        return self._slots[index]

    def _live(self, handle: Handle) -> _Slot:
        slot = self._named(handle)
        if slot.doomed:
            raise LocalError(f"handle {handle} was released")
        return slot


def stride(slot_bytes: int) -> int:
    """Distance between slots in bytes."""
    return -(-slot_bytes // ALIGNMENT) * ALIGNMENT


def shared_file(size: int) -> int:
    """A file in memory without a name. Sealed where the kernel can, so that no child of ours shrinks it under us."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("ftnode-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor
