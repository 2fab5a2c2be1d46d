"""What the machine is used for besides us: battery, temperature, processor, GPU.

Only what the owner's rules ask for is read; what cannot be read says nothing. psutil reads load and temperature.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import psutil
import trio

from ftnode.node.machine.gpu import blind_text, count_as_nvml, open_gpu_watch
from ftnode.node.owner.join_options import JoinConfig
from ftnode.node.owner.pause_rules import Readings

POWER: Final = Path("/sys/class/power_supply")
PROCESSOR_SENSORS: Final = ("coretemp", "k8temp", "k10temp", "zenpower", "cpu", "soc", "acpitz", "x86_pkg_temp")
"""Beginnings of the names of sensors in or at the processor; drives, radios and GPUs have theirs beside them."""
THERMAL_MAX: Final = 200.0
"""Degrees; a sensor that says more is broken."""
READ_SECONDS: Final = 5.0


class MachineUse:
    """`read` in any task, `close` at the end."""

    def __init__(self, config: JoinConfig, say: Callable[[str, str], None]) -> None:
        self._rules, self._device, self._on_card = config.rules, config.device, config.on_card
        count_as_nvml(config.device)
        wanted = self._rules.pause_for_gpu or self._rules.temperature_max is not None
        watches = [open_gpu_watch(device, say) for device in config.devices] if wanted else []
        self._cards = [watch for watch in watches if watch is not None]
        """Of the node; all that it can look at."""
        self._load = OthersLoad() if self._rules.load_max is not None else None
        self._say = say
        self._untold: dict[tuple[str, str], str] = {}
        """What cannot be seen, by its kind and device. A look finds it in its thread, and who asked for that look says
        it."""
        self._told: set[tuple[str, str]] = set()
        self._one: Any = trio.CapacityLimiter(1)
        """Look at a time: the threads of a driver that hangs would pile up, and others wait for theirs."""
        self._last = Readings()
        if self._rules.temperature_max is not None and self._temperature() is None:
            self._trouble("temperature", self._device, self._no_temperature(self._device))
        self._tell()

    async def read(self) -> Readings:
        """In a thread: a driver may take its time. One that has not answered within READ_SECONDS is taken to say what
        it said last, and its late answer counts from the next reading on."""
        if not self._one.borrowed_tokens:
            look: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
            with trio.move_on_after(READ_SECONDS):
                await look(self._look, abandon_on_cancel=True, limiter=self._one)
        self._tell()
        return self._last

    def close(self) -> None:
        for card in self._cards:
            card.close()

    def _look(self) -> None:
        self._last = self._read()

    def _read(self) -> Readings:
        time.tzset()  # a machine that travels changes its clock's zone under us
        return Readings(
            gpu_used_by=self._programs() if self._rules.pause_for_gpu else (),
            temperature=self._temperature() if self._rules.temperature_max is not None else None,
            on_battery=self._rules.pause_on_battery and on_battery(),
            load=None if self._load is None else self._load.read(),
        )

    def _programs(self) -> tuple[str, ...]:
        """On any of the cards."""
        found: dict[str, None] = {}
        for card in self._cards:
            try:
                found.update(dict.fromkeys(card.programs()))
            except OSError as error:
                self._trouble("gpu", card.device, blind_text(card.device, str(error)))
        return tuple(found)

    def _temperature(self) -> float | None:
        """Of the hottest card."""
        if not self._on_card:
            return processor_temperature()
        found = []
        for card in self._cards:
            try:
                found.append(card.temperature())
            except OSError as error:
                self._trouble("temperature", card.device, self._no_temperature(card.device, f" ({error})"))
        return max(found, default=None)

    def _no_temperature(self, device: str, why: str = "") -> str:
        return f"nothing here tells the temperature of {device}{why}: --max-temp has no effect"

    def _trouble(self, kind: str, device: str, text: str) -> None:
        self._untold.setdefault((kind, device), text)

    def _tell(self) -> None:
        """Each kind of trouble of a device once, however often it comes and goes."""
        for trouble in [trouble for trouble in list(self._untold) if trouble not in self._told]:
            self._told.add(trouble)
            self._say(trouble[0], self._untold[trouble])


def on_battery(folder: Path = POWER) -> bool:
    """Whether a battery of this machine (not of a mouse) is being emptied and no charger is plugged in.

    On Linux this is ours: psutil looks at one battery, the first by name, which may be the mouse's, and knows of no
    charger but those that are called AC and AC0.
    """
    if sys.platform != "linux":
        battery = psutil.sensors_battery()
        return battery is not None and battery.power_plugged is False
    empties = False
    for supply in _entries(folder):
        kind = _word(supply / "type")
        if kind == "Battery" and _word(supply / "scope") != "Device":
            empties = empties or _word(supply / "status") == "Discharging"
        elif kind in ("Mains", "USB") and _word(supply / "online") == "1":
            return False
    return empties


class Sensor(Protocol):
    """What we use of psutil's."""

    @property
    def current(self) -> float | None: ...


def all_sensors() -> Mapping[str, Sequence[Sensor]]:
    """By the name of the chip; nothing on systems of which psutil cannot say it."""
    look: Callable[[], Mapping[str, Sequence[Sensor]]] | None = getattr(psutil, "sensors_temperatures", None)
    return {} if look is None else look()


def processor_temperature(sensors: Callable[[], Mapping[str, Sequence[Sensor]]] = all_sensors) -> float | None:
    """The hottest of the processor's sensors in degrees Celsius; where none is known to be one, of all."""
    found = {chip: list(_sane(each)) for chip, each in sensors().items()}
    known = [degrees for chip, each in found.items() if chip.startswith(PROCESSOR_SENSORS) for degrees in each]
    return max(known or [degrees for each in found.values() for degrees in each], default=None)


def _sane(sensors: Iterable[Sensor]) -> Iterator[float]:
    for sensor in sensors:
        if sensor.current is not None and 0 < sensor.current < THERMAL_MAX:
            yield sensor.current


class Spent(NamedTuple):
    """Seconds of all cores since the machine started."""

    busy: float
    """For others."""
    total: float


class OthersLoad:
    """Per cent of all cores that programs other than this node and its children used since the last reading."""

    def __init__(self, own: int | None = None) -> None:
        self._own = os.getpid() if own is None else own
        self._last = self._look()

    def read(self) -> float | None:
        before, self._last = self._last, self._look()
        if before is None or self._last is None or self._last.total <= before.total:
            return None
        busy, total = self._last.busy - before.busy, self._last.total - before.total
        return max(0.0, min(100.0, 100.0 * busy / total))

    def _look(self) -> Spent | None:
        try:
            times = psutil.cpu_times()._asdict()
            family = [psutil.Process(self._own)]
            family += family[0].children(recursive=True)
        except (OSError, psutil.Error, ValueError, IndexError, TypeError):  # the last three: of odd lines in /proc
            return None
        total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)  # which are in the others
        idle = times["idle"] + times.get("iowait", 0.0)
        return Spent(total - idle - sum(map(_spent_by, family)), total)


def _spent_by(process: psutil.Process) -> float:
    """Seconds, with those of its children that ended and were waited for."""
    try:
        times = process.cpu_times()
    except psutil.Error:  # it ended while we looked
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


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
