"""What may be taken of the host, by files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftnode.node.machine import host_memory
from ftnode.node.machine.host_memory import available, whole

MIB = 1 << 20
UNLIMITED = 9223372036854771712


def machine(folder: Path, group: str) -> Path:
    """/proc of one with 16 GiB available."""
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(f"MemTotal: {32 << 20} kB\nMemAvailable:   {16 << 20} kB\n")
    (folder / "self" / "cgroup").write_text(group)
    return folder


def write(folder: Path, names: tuple[str, str, str], limit: object, used: int, files: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {files}\nactive_file 7\n")


@pytest.mark.parametrize(
    ("group", "place", "names"),
    [
        ("0::/\n", ".", host_memory.SECOND),  # a container by the second version, with a name space of its own
        ("0::/system.slice/ftnode.service\n", "system.slice/ftnode.service", host_memory.SECOND),
        ("0::/system.slice/ftnode.service\n", "system.slice", host_memory.SECOND),
        ("3:cpu:/\n4:memory:/docker/ab\n0::/docker/ab\n", "memory", host_memory.FIRST),  # seen from within
        ("4:hugetlb,memory:/docker/ab\n", "memory/docker/ab", host_memory.FIRST),
    ],
)
def test_a_groups_limit_counts(group: str, place: str, names: tuple[str, str, str], tmp_path: Path) -> None:
    proc, groups = machine(tmp_path / "proc", group), tmp_path / "groups"
    assert available(proc, groups) == 16 << 30
    write(groups / place, names, 4096 * MIB, 1000 * MIB, 400 * MIB)
    assert available(proc, groups) == (4096 - 1000 + 400) * MIB, "files that were read are given back"
    assert whole(proc, groups) == 4096 * MIB
    write(groups / place, names, 100 * MIB, 1000 * MIB, 400 * MIB)
    assert available(proc, groups) == 0


@pytest.mark.parametrize(("limit", "names"), [("max", host_memory.SECOND), (UNLIMITED, host_memory.FIRST)])
def test_a_group_without_a_limit_takes_nothing_away(limit: object, names: tuple[str, str, str], tmp_path: Path) -> None:
    proc, groups = machine(tmp_path / "proc", "0::/\n4:memory:/\n"), tmp_path / "groups"
    write(groups / ("memory" if names is host_memory.FIRST else "."), names, limit, 1000 * MIB, 0)
    assert available(proc, groups) == 16 << 30
    assert whole(proc, groups) == whole(tmp_path / "none", tmp_path / "none") > 1 << 30


def test_groups_beside_ours_do_not_count(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path / "proc", "0::/../other\n"), tmp_path / "groups"
    write(groups / "system.slice", host_memory.SECOND, MIB, 0, 0)
    assert available(proc, groups) == 16 << 30


def test_what_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert available(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("nonsense")
    assert available(tmp_path, tmp_path) is None


def test_this_machine_has_some() -> None:
    assert 0 < (available() or 0) <= whole()
