"""State out of a node: several chunks at once, in order, and every slot given back."""

from __future__ import annotations

import struct

import pytest
import trio

from ftnode.node.ports import ComputeError
from ftnode.node.weights.reading import begin_reading, closing
from tests.node.weights.lending import BASE, CHUNK, Host


@pytest.mark.parametrize(("slots", "together"), [(16, 8), (6, 3), (3, 1)])
def test_a_donor_asks_for_several_chunks_at_once_and_leaves_half_of_the_arena(slots: int, together: int) -> None:
    async def main() -> None:
        numbers = 10 * CHUNK // 4
        donor = Host("donor", slots=slots).holds(1, 0.0, 1.0, numbers=numbers)
        read = b""
        begun = await begin_reading(donor.compute, donor.arena, 1, BASE.step, "weights")
        async with closing(begun) as reading:
            for index in range(reading.header.chunks - 1):
                chunk = await reading.chunk(index)
                asked = [fields["index"] for op, fields in donor.compute.calls if op == "export_chunk"]
                assert sorted(asked) == list(range(min(10, together * (index // together + 1))))
                read += bytes(donor.arena.view(chunk.handle)[: chunk.length])
                donor.arena.release(chunk.handle)
        assert donor.arena.free == slots, "also that of the last, which nobody took"
        assert struct.unpack(f"<{numbers - CHUNK // 4}f", read) == tuple(range(numbers - CHUNK // 4))

    trio.run(main)


def test_a_chunk_that_fails_takes_its_companions_along() -> None:
    async def main() -> None:
        donor = Host("donor", slots=16).holds(1, 0.0, 1.0)
        async with closing(await begin_reading(donor.compute, donor.arena, 1, BASE.step, "weights")) as reading:
            donor.compute.fails = "export_chunk"
            with pytest.raises(ComputeError, match="does not fit"):
                await reading.chunk(0)
            assert donor.arena.free == donor.arena.slots

    trio.run(main)
