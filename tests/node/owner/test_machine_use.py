"""What the machine is used for besides us: NVML by a fake of its module, the rest by made-up folders and figures."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import trio

from ftnode.node.machine.device_choice import devices_of
from ftnode.node.machine.gpu import GpuWatch, count_as_nvml, open_gpu_watch, program_of, visible_device
from ftnode.node.owner import machine_use
from ftnode.node.owner.machine_use import MachineUse, OthersLoad, all_sensors, on_battery, processor_temperature
from ftnode.node.owner.pause_rules import OwnerRules, Readings

OURS = "ftnode.node.compute.process"


class FakeNvml:
    """The part of `pynvml` that is used, for GPUs that processes compute on."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus: tuple[int, ...], degrees: int = 50, broken: str = "") -> None:
        self.gpus, self.degrees, self.broken = gpus, degrees, broken
        self.open = 0

    def _fail(self, what: str) -> None:
        if self.broken == what:
            raise self.NVMLError(f"{what} failed")

    def nvmlInit(self) -> None:
        self._fail("init")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= len(self.gpus):
            raise self.NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return self.nvmlDeviceGetHandleByIndex(int(uuid.removeprefix("GPU-")))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        self._fail("processes")
        return [SimpleNamespace(pid=pid) for pid in self.gpus[handle]]

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == 0
        self._fail("temperature")
        return self.degrees + handle

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        self._fail("memory")
        return SimpleNamespace(free=(handle + 1) * 10**10)


def owner(device: str, **rules: Any) -> Any:
    """What MachineUse wants of the options."""
    devices = devices_of(device)
    return SimpleNamespace(rules=OwnerRules(**rules), device=device, devices=devices, on_card=devices != ("cpu",))


@pytest.fixture
def processes(tmp_path: Path) -> Path:
    """A /proc with an editor (7), a game (8), two compute processes of nodes (9, 10), and one that looks for cards."""
    for pid, name, words in [
        (7, "editor", ["editor"]),
        (8, "game", ["/opt/game", OURS + "x"]),
        (9, "python", ["python", "-m", OURS, "--socket-fd", "5"]),
        (10, "python", ["python", "-m", OURS]),
        (11, "python", ["python", "-m", "ftnode.node.compute.probe"]),
    ]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
        (tmp_path / str(pid) / "comm").write_text(name + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("pids", "programs"),
    [((), ()), ((9, 10, 11), ()), ((8,), ("game",)), ((9, 8, 7, 8), ("editor", "game")), ((4711,), ())],
)
def test_programs_other_than_ours(processes: Path, pids: tuple[int, ...], programs: tuple[str, ...]) -> None:
    assert GpuWatch(FakeNvml(pids), "cuda", {}, processes).programs() == programs


def test_only_the_device_in_use_counts(processes: Path) -> None:
    nvml = FakeNvml((8,), (9,), degrees=71)
    assert GpuWatch(nvml, "cuda:0", {}, processes).programs() == ("game",)
    assert GpuWatch(nvml, "cuda:1", {}, processes).programs() == ()
    assert GpuWatch(nvml, "cuda:0", {"CUDA_VISIBLE_DEVICES": "1"}, processes).programs() == ()
    assert GpuWatch(nvml, "cuda", {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}, processes).programs() == ("game",)
    assert GpuWatch(nvml, "cuda:1", {}, processes).temperature() == 72.0
    assert GpuWatch(nvml, "cuda:1", {}, processes).memory_free() == 2 * 10**10


@pytest.mark.parametrize(
    ("device", "visible", "which"),
    [("cuda", None, 0), ("cuda:3", None, 3), ("cuda:1", "4, 2", 2), ("cuda", "GPU-abc", "GPU-abc")],
)
def test_cudas_number_and_nvmls(device: str, visible: str | None, which: int | str) -> None:
    assert visible_device(device, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == which


@pytest.mark.parametrize(("device", "visible"), [("cuda", ""), ("cuda:1", "0")])
def test_a_hidden_device_is_none(device: str, visible: str) -> None:
    with pytest.raises(ValueError, match="hides"):
        visible_device(device, {"CUDA_VISIBLE_DEVICES": visible})


def test_what_nvml_cannot_do_is_an_error_of_the_system(processes: Path) -> None:
    nvml = FakeNvml((8,), broken="processes")
    watch = GpuWatch(nvml, "cuda", {}, processes)
    with pytest.raises(OSError, match="processes failed"):
        watch.programs()
    assert watch.temperature() == 50.0
    watch.close()
    assert nvml.open == 0


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")  # so that it is put back in any case
        monkeypatch.delenv(name)
    return []


def test_without_a_way_to_look_the_owner_is_told(said: list[str]) -> None:
    def none(name: str) -> Any:
        raise ImportError(name)

    def tell(kind: str, text: str) -> None:
        said.append(text)

    assert open_gpu_watch("cpu", tell, none) is None and said == []
    assert open_gpu_watch("cuda", tell, none) is None
    assert "pip install 'ftnode[gpu]'" in said[-1]
    broken = FakeNvml((), broken="init")
    assert open_gpu_watch("cuda", tell, lambda name: broken) is None and "init failed" in said[-1]
    few = FakeNvml(())
    assert open_gpu_watch("cuda:5", tell, lambda name: few) is None and few.open == 0
    assert open_gpu_watch("cuda", tell, lambda name: few) is not None and len(said) == 3


def test_who_cannot_list_programs_says_so_once(
    said: list[str], processes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look is at the start; a driver may also fail later."""
    config = owner("cuda", temperature_max=80.0)

    def watch_of(nvml: FakeNvml) -> MachineUse:
        gpu = GpuWatch(nvml, "cuda", {}, processes)
        monkeypatch.setattr(machine_use, "open_gpu_watch", lambda device, say: gpu)
        return MachineUse(config, lambda kind, text: said.append(f"{kind}: {text}"))

    blind = "gpu: cannot see who else uses cuda (NVML: processes failed): other programs do not pause this node"
    watch = watch_of(FakeNvml((8,), broken="processes"))
    assert trio.run(watch.read).gpu_used_by == () and trio.run(watch.read).temperature == 50.0
    assert said == [blind]
    said.clear()
    later = FakeNvml((8,))
    watch = watch_of(later)
    assert trio.run(watch.read).gpu_used_by == ("game",) and said == []
    for later.broken in ("processes", "", "processes", "temperature"):
        trio.run(watch.read)
    assert said == [
        blind, "temperature: nothing here tells the temperature of cuda (NVML: temperature failed): "
        "--max-temp has no effect",
    ]  # fmt: skip


def test_a_temperature_that_nothing_tells_is_said_at_once(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GpuWatch(FakeNvml((8,), broken="temperature"), "cuda", {})
    monkeypatch.setattr(machine_use, "open_gpu_watch", lambda device, say: gpu)
    config = owner("cuda", temperature_max=80.0)
    MachineUse(config, lambda kind, text: said.append(text))
    assert said == ["nothing here tells the temperature of cuda (NVML: temperature failed): --max-temp has no effect"]


def test_all_cards_of_a_node_count(said: list[str], processes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program on any of them, the hottest of them; and one that cannot be seen does not hide the others."""
    nvml = FakeNvml((9, 8), (), (7,), (10,))
    monkeypatch.setattr(machine_use, "open_gpu_watch", lambda device, say: GpuWatch(nvml, device, {}, processes))
    watch = MachineUse(owner("cuda:1,cuda:2", temperature_max=80.0), lambda kind, text: said.append(text))
    assert trio.run(watch.read) == Readings(gpu_used_by=("editor",), temperature=52.0)
    other = MachineUse(owner("cuda:1,cuda:3", temperature_max=80.0), lambda kind, text: said.append(text))
    assert trio.run(other.read) == Readings(gpu_used_by=(), temperature=53.0) and said == []
    nvml.broken = "processes"
    trio.run(watch.read)
    assert [text.split(" (")[0] for text in said] == [f"cannot see who else uses cuda:{n}" for n in (1, 2)]
    watch.close()
    other.close()
    assert nvml.open == 0


@pytest.mark.usefixtures("said")
def test_cuda_counts_as_nvml_does(monkeypatch: pytest.MonkeyPatch) -> None:
    count_as_nvml("cpu")
    assert "CUDA_DEVICE_ORDER" not in os.environ
    count_as_nvml("cuda:1")
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    count_as_nvml("cuda:1")
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_a_real_gpu_says_who_uses_it() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        watch = GpuWatch(pynvml, "cuda", {})
    except OSError as error:
        pytest.skip(f"no GPU to ask: {error}")
    assert all(isinstance(name, str) for name in watch.programs())
    assert 0 < watch.temperature() < 150
    watch.close()


def test_this_process_has_a_name_and_a_dead_one_has_none() -> None:
    assert program_of(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert program_of(child.pid) == ""


# -- battery and temperature


def supply(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


@pytest.mark.parametrize(
    ("supplies", "empties"),
    [
        ({}, False),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}, "AC": {"type": "Mains", "online": "0"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}, "AC": {"type": "Mains", "online": "1"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Charging"}, "AC": {"type": "Mains", "online": "1"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Not charging"}}, False),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}, "C": {"type": "USB", "online": "1"}}, False),
        ({"odd": {}}, False),
    ],
)
def test_on_battery(tmp_path: Path, supplies: dict[str, dict[str, str]], empties: bool) -> None:
    for name, files in supplies.items():
        supply(tmp_path, name, **files)
    assert on_battery(tmp_path) == empties
    assert not on_battery(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("sensors", "hottest"),
    [
        ({}, None),
        ({"acpitz": [45.0, 71.5, -40.0, 400.0, None]}, 71.5),
        ({"coretemp": [50.0, 61.0], "nvme": [80.0], "amdgpu": [75.0]}, 61.0),
        ({"k10temp": [58.0], "acpitz": [20.0]}, 58.0),
        ({"k10temp": [-5.0], "nvme": [44.0]}, 44.0),
        ({"cpu_thermal": [52.0], "gpu_thermal": [60.0]}, 52.0),
        ({"big0-thermal": [52.0], "other": [57.0]}, 57.0),
        ({"coretemp": []}, None),
    ],
)
def test_the_hottest_sensor_of_the_processor_counts_and_nonsense_does_not(
    sensors: dict[str, list[float | None]], hottest: float | None
) -> None:
    chips = {chip: [SimpleNamespace(current=degrees) for degrees in each] for chip, each in sensors.items()}
    assert processor_temperature(lambda: chips) == hottest


def test_this_machine_tells_its_sensors_or_none() -> None:
    for chip, sensors in all_sensors().items():
        assert chip and all(sensor.current is None or isinstance(sensor.current, float) for sensor in sensors)
    degrees = processor_temperature()
    assert degrees is None or 0 < degrees < 150


def test_without_sensors_of_psutil_there_is_no_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has none on macOS and Windows."""
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    assert processor_temperature() is None


@pytest.mark.parametrize(("plugged", "empties"), [(True, False), (False, True), (None, False)])
def test_where_there_is_no_sys_psutil_says_whether_a_battery_empties(
    plugged: bool | None, empties: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(psutil, "sensors_battery", lambda: SimpleNamespace(power_plugged=plugged), raising=False)
    assert on_battery() == empties
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert not on_battery()


# -- load


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A /proc whose numbers can be set: (ticks of everybody, idle ticks, ticks of us and of our child)."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))

    def stat(everybody: int, idle: int, ours: int, child: int) -> None:
        (tmp_path / "stat").write_text(f"cpu  {everybody} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1\nbtime 1700000000\n")
        for pid, parent, ticks in ((100, 1, ours), (101, 100, child), (102, 1, 10**6)):
            (tmp_path / str(pid)).mkdir(exist_ok=True)
            (tmp_path / str(pid) / "stat").write_text(
                f"{pid} (a b) c) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks - 1} 1 0 0 20 0 1 0 {pid}{' 0' * 30}\n"
            )

    stat.folder = tmp_path  # type: ignore[attr-defined]
    yield stat


@pytest.mark.skipif(sys.platform != "linux", reason="psutil reads /proc on Linux alone")
def test_our_own_work_is_no_load_of_others(machine: Any) -> None:
    machine(1000, 1000, 100, 200)
    load = OthersLoad(own=100)
    machine(1600, 1400, 200, 600)
    assert load.read() == pytest.approx(10.0), "600 busy of 1000, 500 of them ours"
    assert load.read() is None, "no time has passed"
    machine(1700, 1400, 800, 600)
    assert load.read() == 0.0
    (machine.folder / "stat").write_text("")
    assert load.read() is None


BUSY = "import time\nwhile time.process_time() < 0.5: pass"


def test_a_busy_child_of_ours_is_no_load_of_others() -> None:
    """On this machine, whatever else it does. An idle process counts the child's work as that of others."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as idle:
        as_ours, as_others = OthersLoad(), OthersLoad(own=idle.pid)
        subprocess.run([sys.executable, "-c", BUSY], check=True)
        others, all_of_it = as_ours.read(), as_others.read()
    assert others is not None and all_of_it is not None and others < all_of_it


def test_a_driver_that_hangs_keeps_one_thread_and_says_what_it_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    config = owner("cpu", pause_for_gpu=False, load_max=50.0)
    watch, hangs, looks = MachineUse(config, lambda kind, text: None), threading.Event(), []

    def look() -> Readings:
        looks.append(threading.current_thread())
        if len(looks) > 1:
            hangs.wait(20)
        return Readings(load=float(len(looks)))

    monkeypatch.setattr(watch, "_read", look)

    async def scenario() -> None:
        assert await watch.read() == Readings(load=1.0)
        with trio.move_on_after(0.05) as late:
            await watch.read()
        assert late.cancelled_caught
        with trio.fail_after(5):
            for _ in range(5):
                assert await watch.read() == Readings(load=1.0)
        assert len(looks) == 2
        hangs.set()
        with trio.fail_after(5):
            while (await watch.read()).load == 1.0:
                await trio.lowlevel.checkpoint()

    trio.run(scenario)
    watch.close()


def test_a_driver_that_is_always_late_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    config = owner("cpu", pause_for_gpu=False, load_max=50.0)
    watch, answers = MachineUse(config, lambda kind, text: None), threading.Semaphore(0)
    monkeypatch.setattr(machine_use, "READ_SECONDS", 0.01)

    def look() -> Readings:
        answers.acquire(timeout=20)
        return Readings(load=70.0)

    monkeypatch.setattr(watch, "_read", look)

    async def scenario() -> None:
        assert await watch.read() == Readings()
        answers.release()
        with trio.fail_after(5):
            while await watch.read() == Readings():
                await trio.lowlevel.checkpoint()

    trio.run(scenario)
    answers.release()
    watch.close()
