"""Who else uses the GPU that this node computes on, and how hot it is, by NVML (nvidia-ml-py, an optional extra).

CUDA and NVML may count GPUs in different orders; a node that computes on one makes CUDA count as NVML and nvidia-smi
do (by PCI bus), and follows CUDA_VISIBLE_DEVICES. What counts as another program: a process with a compute context on
that GPU, unless it is an ftnode's own. One that /proc does not show lives in another container, and nobody
can say whose it is: it is not counted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

log = logging.getLogger(__name__)

OURS: Final = (b"ftnode.node.compute.process", b"ftnode.node.compute.probe")
"""An ftnode's processes that have a context on a card: what computes, and what looks for cards for a moment."""
NAMES_MAX: Final = 4
NAME_LETTERS_MAX: Final = 40
TEMPERATURE_GPU: Final = 0
"""NVML_TEMPERATURE_GPU."""
PROCESSES: Final = Path("/proc")


class Nvml(Protocol):
    """What we use of the module `pynvml`."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> Any: ...
    def nvmlShutdown(self) -> Any: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]: ...
    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...


class GpuWatch:
    """Of one device. What NVML raises becomes OSError."""

    def __init__(self, nvml: Nvml, device: str, environment: Mapping[str, str], processes: Path = PROCESSES) -> None:
        """`device`: cuda or cuda:N. Raises ValueError for a device that is not there."""
        self.device = device
        self._nvml, self._processes = nvml, processes
        which = visible_device(device, environment)
        with self._mapped():
            nvml.nvmlInit()
            try:
                if isinstance(which, str):
                    self._handle = nvml.nvmlDeviceGetHandleByUUID(which)
                else:
                    self._handle = nvml.nvmlDeviceGetHandleByIndex(which)
            except nvml.NVMLError:
                nvml.nvmlShutdown()
                raise

    def programs(self) -> tuple[str, ...]:
        """Names of other programs that compute there, a few at most."""
        names: list[str] = []
        with self._mapped():
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        for process in processes:
            name = program_of(int(process.pid), self._processes)
            if name and name not in names:
                names.append(name)
        return tuple(sorted(names)[:NAMES_MAX])

    def temperature(self) -> float:
        """Degrees Celsius."""
        with self._mapped():
            return float(self._nvml.nvmlDeviceGetTemperature(self._handle, TEMPERATURE_GPU))

    def memory_free(self) -> int:
        """Bytes."""
        with self._mapped():
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).free)

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from None


def visible_device(device: str, environment: Mapping[str, str]) -> int | str:
    """NVML's index or UUID of CUDA's device. Raises ValueError when it is hidden."""
    number = int(device.partition(":")[2] or 0)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return number
    names = [name.strip() for name in visible.split(",")]
    if number >= len(names) or not names[number]:
        raise ValueError(f"CUDA_VISIBLE_DEVICES={visible} hides {device}")
    return int(names[number]) if names[number].isdecimal() else names[number]


def program_of(pid: int, processes: Path = PROCESSES) -> str:
    """The name of a process; empty for an ftnode's compute process and for one that cannot be seen."""
    try:
        words = (processes / str(pid) / "cmdline").read_bytes().split(b"\0")
        name = (processes / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
    return "" if any(word in OURS for word in words) else (name or f"process {pid}")[:NAME_LETTERS_MAX]


def count_as_nvml(device: str) -> None:
    """From now on CUDA, in children too, numbers GPUs as NVML and nvidia-smi do, unless the owner said otherwise."""
    if device.startswith("cuda") and os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID") != "PCI_BUS_ID":
        log.warning("CUDA_DEVICE_ORDER is not PCI_BUS_ID: %s may be another GPU than the one that is watched", device)


def open_gpu_watch(
    device: str, say: Callable[[str, str], None], load: Callable[[str], Any] = import_module
) -> GpuWatch | None:
    """None where there is nothing to watch or nothing to watch it with; the owner is told why."""
    if not device.startswith("cuda"):
        return None
    try:
        nvml = load("pynvml")
    except ImportError:
        why = "nvidia-ml-py is not installed; pip install 'ftnode[gpu]'"
    else:
        try:
            return GpuWatch(nvml, device, os.environ)
        except (ValueError, OSError) as error:
            why = str(error)
    say("gpu", blind_text(device, why))
    return None


def blind_text(device: str, why: str) -> str:
    """To the owner, whose rule has no effect."""
    return f"cannot see who else uses {device} ({why}): other programs do not pause this node"
