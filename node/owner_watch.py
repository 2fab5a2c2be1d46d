"""What the machine is used for besides us: battery, temperature, processor, GPU. Only what the owner's rules ask for is
read; what cannot be read says nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import trio

from ftnode.node.configuration import JoinConfig
from ftnode.node.gpu_watch import blind_text, count_as_nvml, open_gpu_watch
from ftnode.node.pausing import Readings

POWER: Final = Path("/sys/class/power_supply")
THERMAL: Final = Path("/sys/class/thermal")
PROCESSES: Final = Path("/proc")
THERMAL_MAX: Final = 200.0
"""Degrees; a sensor that says more is broken."""


class OwnerWatch:
    """`read` in any task, `close` at the end."""

    def __init__(self, config: JoinConfig, say: Callable[[str, str], None]) -> None:
        self._rules, self._device = config.rules, config.device
        count_as_nvml(config.device)
        wanted = self._rules.pause_for_gpu or self._rules.temperature_max is not None
        self._gpu = open_gpu_watch(config.device, say) if wanted else None
        self._load = OthersLoad() if self._rules.load_max is not None else None
        self._say = say
        self._untold: dict[str, str] = {}
        """What cannot be seen, by its kind. A look finds it in its thread, and who asked for that look says it."""
        self._told: set[str] = set()
        self._one: Any = trio.CapacityLimiter(1)
        """Look at a time: the threads of a driver that hangs would pile up, and others wait for theirs."""
        self._last = Readings()
        if self._rules.temperature_max is not None and self._temperature() is None:
            self._trouble("temperature", self._no_temperature())
        self._tell()

    async def read(self) -> Readings:
        """In a thread: a driver may take its time. While it does not answer it says what it said last."""
        if not self._one.borrowed_tokens:
            look: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
            self._last = await look(self._read, abandon_on_cancel=True, limiter=self._one)
            self._tell()
        return self._last

    def close(self) -> None:
        if self._gpu is not None:
            self._gpu.close()

    def _read(self) -> Readings:
        time.tzset()  # a machine that travels changes its clock's zone under us
        return Readings(
            gpu_used_by=self._programs() if self._rules.pause_for_gpu else (),
            temperature=self._temperature() if self._rules.temperature_max is not None else None,
            on_battery=self._rules.pause_on_battery and on_battery(),
            load=None if self._load is None else self._load.read(),
        )

    def _programs(self) -> tuple[str, ...]:
        try:
            return () if self._gpu is None else self._gpu.programs()
        except OSError as error:
            self._trouble("gpu", blind_text(self._device, str(error)))
            return ()

    def _temperature(self) -> float | None:
        if self._gpu is None:
            return processor_temperature() if self._device == "cpu" else None
        try:
            return self._gpu.temperature()
        except OSError as error:
            self._trouble("temperature", self._no_temperature(f" ({error})"))
            return None

    def _no_temperature(self, why: str = "") -> str:
        return f"nothing here tells the temperature of {self._device}{why}: --max-temp has no effect"

    def _trouble(self, kind: str, text: str) -> None:
        self._untold.setdefault(kind, text)

    def _tell(self) -> None:
        """Each kind of trouble once, however often it comes and goes."""
        for kind in [kind for kind in list(self._untold) if kind not in self._told]:
            self._told.add(kind)
            self._say(kind, self._untold[kind])


def on_battery(folder: Path = POWER) -> bool:
    """Whether a battery of this machine (not of a mouse) is being emptied and no charger is plugged in."""
    empties = False
    for supply in _entries(folder):
        kind = _word(supply / "type")
        if kind == "Battery" and _word(supply / "scope") != "Device":
            empties = empties or _word(supply / "status") == "Discharging"
        elif kind in ("Mains", "USB") and _word(supply / "online") == "1":
            return False
    return empties


def processor_temperature(folder: Path = THERMAL) -> float | None:
    """The hottest zone in degrees Celsius."""
    found = []
    for zone in _entries(folder):
        text = _word(zone / "temp") if zone.name.startswith("thermal_zone") else ""
        if text.lstrip("-").isdecimal() and 0 < int(text) / 1000 < THERMAL_MAX:
            found.append(int(text) / 1000)
    return max(found, default=None)


class OthersLoad:
    """Per cent of all cores that programs other than this node and its children used since the last reading."""

    def __init__(self, processes: Path = PROCESSES, own: int | None = None) -> None:
        self._processes, self._own = processes, os.getpid() if own is None else own
        self._last = self._look()

    def read(self) -> float | None:
        before, self._last = self._last, self._look()
        if before is None or self._last is None or self._last[1] <= before[1]:
            return None
        busy, total = (now - then for now, then in zip(self._last, before, strict=True))
        return max(0.0, min(100.0, 100.0 * busy / total))

    def _look(self) -> tuple[int, int] | None:
        """(ticks that others were busy, ticks there were) since the machine started."""
        try:
            fields = [int(word) for word in (self._processes / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        if len(fields) < 8:
            return None
        total, idle = sum(fields), fields[3] + fields[4]
        return total - idle - self._ours(), total

    def _ours(self) -> int:
        """Ticks of this process, its children and their children, ended ones that were waited for included."""
        ticks, parents = {}, {}
        for entry in self._processes.glob("[0-9]*/stat"):
            try:
                after_name = entry.read_text().rpartition(")")[2].split()
                number = int(entry.parent.name)
                parents[number] = int(after_name[1])
                ticks[number] = sum(map(int, after_name[11:15]))
            except (OSError, ValueError, IndexError):  # it ended while we looked
                continue
        ours = {self._own}
        while more := {child for child, parent in parents.items() if parent in ours} - ours:
            ours |= more
        return sum(ticks.get(number, 0) for number in ours)


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return ()


def _word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
