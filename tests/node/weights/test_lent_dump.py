"""A full disk ends the dump of what is lent, and not the lending."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ftnode.node.weights.lent_dump import LentDump
from ftnode.protocol.words.effects import Install
from ftnode.protocol.words.events import Installed
from ftnode.protocol.words.types import Rung
from tests.node.weights.lending import Host, Network
from tests.node.weights.test_installer import plan, run

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no disk that is always full")


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["at its end", "in its midst"])
@needs_full
def test_what_cannot_be_written_is_no_file(size: int, tmp_path: Path) -> None:
    path, failed = tmp_path / "lent", list[OSError]()
    path.symlink_to(FULL)
    dump = LentDump(path, failed.append)
    assert dump.name == "lent"
    for _ in range(2):
        dump.write(memoryview(bytes(size)))
    dump.close()
    dump.close()
    assert (len(failed), dump.name, path.is_symlink()) == (1, "", False)


def full(folder: Path, effect: Install) -> None:
    """Whatever is dumped there."""
    folder.mkdir()
    for donor in effect.plan.donors:
        base = effect.base
        (folder / f"lent-{donor.stage}-{base.step}-{base.commit[:12]}-wcomer.weights").symlink_to(FULL)


@pytest.mark.parametrize("disk", [pytest.param("full", marks=needs_full), "gone"])
def test_weights_are_lent_where_they_cannot_be_dumped(
    disk: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(nursery: trio.Nursery) -> None:
        folder, effect = tmp_path / "dumps", plan(2, Rung.BLEND, (1, "donor"), (3, "donor"))
        if disk == "full":
            full(folder, effect)
        donor, newcomer = Host("donor", folder).holds(1, 0.0, 1.0).holds(3, 8.0, 1.0), Host("newcomer")
        network = Network(nursery, donor)
        assert isinstance((await newcomer.installer(network).install(effect)).event, Installed)
        assert isinstance((await newcomer.installer(network).install(effect)).event, Installed)
        assert len(donor.exported) == 4 and not donor.exported[-1].dump
        assert not network.struck and donor.arena.free == donor.arena.slots
        assert caplog.text.count("is not written to") == 1

    run(main)
