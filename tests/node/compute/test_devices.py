"""Which device --device means on this machine, by fakes of torch's word and of NVML; and on this machine as it is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftnode.node.compute import devices
from ftnode.node.compute.devices import NO_CARDS, automatic, built_for_cards, decide
from ftnode.protocol.words.errors import UserError
from tests.node.owner.test_machine_use import FakeNvml

GB = 10**9
CUDA: dict[str, Any] = {"torch": "2", "cuda": "13.0", "hip": None, "trouble": ""}


def card(free: int, processors: int = 80) -> dict[str, Any]:
    return {"name": "RTX 3090", "memory": 24 * GB, "memory_free": free, "processors": processors}


def chosen(found: dict[str, Any], nvml: Any = None, needed: int = GB, shared: bool = False) -> tuple[str, str]:
    def load(name: str) -> Any:
        assert name == "pynvml"
        if nvml is None:
            raise ImportError(name)
        return nvml

    made = automatic(found, needed, shared, load, {})
    return made.names, made.why


def test_a_card_that_somebody_else_uses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftnode.node.machine.gpu.program_of", lambda pid, processes: {8: "game"}.get(pid, ""))
    found = {**CUDA, "devices": [card(23 * GB), card(8 * GB)]}
    nvml = FakeNvml((8,), ())
    device, why = chosen(found, nvml)
    assert (device, why) == ("cuda:1", "computes on cuda:1 (RTX 3090, 20.0 GB free); cuda:0 is used by game")
    assert nvml.open == 0
    assert chosen({**CUDA, "devices": [card(23 * GB)]}, FakeNvml((8,)))[0] == "cpu"
    assert chosen({**CUDA, "devices": [card(23 * GB)]}, FakeNvml((8,)), shared=True)[0] == "cuda:0"


def test_memory_is_what_nvml_says_since_the_probe_takes_some_itself() -> None:
    """The first of the fake's cards has 10 GB free, the second 20."""
    device, why = chosen({**CUDA, "devices": [card(24 * GB), card(GB // 2)]}, FakeNvml((), ()))
    assert device == "cuda:1" and "20.0 GB free" in why


@pytest.mark.parametrize(
    ("nvml", "says"),
    [
        (None, "nobody can say who else uses it: nvidia-ml-py is not installed"),
        (FakeNvml((), broken="init"), "nobody can say who else uses it: NVML: init failed"),
        (FakeNvml((), broken="processes"), "nobody can say who else uses it: NVML: processes failed"),
        (FakeNvml((), broken="memory"), "nobody can say who else uses it: NVML: memory failed"),
    ],
)
def test_without_nvml_torchs_word_counts_and_that_is_said(nvml: Any, says: str) -> None:
    device, why = chosen({**CUDA, "devices": [card(23 * GB)]}, nvml)
    assert device == "cuda:0" and why == f"computes on cuda:0 (RTX 3090, 23.0 GB free); {says}"
    assert nvml is None or nvml.open == 0


def test_a_rocm_build_goes_the_same_way_without_nvml() -> None:
    found = {**CUDA, "cuda": None, "hip": "7.1", "devices": [card(15 * GB)]}
    assert chosen(found, FakeNvml(()))[1].endswith("nobody can say who else uses it: NVML knows no AMD cards")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({**CUDA, "cuda": None, "devices": []}, NO_CARDS),
        ({**CUDA, "devices": []}, "torch finds none"),
        ({**CUDA, "devices": [], "trouble": "the driver is too old"}, "the driver is too old"),
        ({"trouble": "no answer within 60 s"}, "no answer within 60 s"),
    ],
)  # fmt: skip
def test_without_a_card_the_processor_computes_and_the_reason_is_said(found: dict[str, Any], why: str) -> None:
    assert chosen(found) == ("cpu", f"computes on the CPU: no CUDA device ({why})")


def test_what_is_named_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count_as_nvml", lambda device: None)
    monkeypatch.setattr(devices, "found_by_torch", lambda: {**CUDA, "devices": [{}, {}]})
    for names in ("cuda", "cuda:1", "cuda:0,cuda:1", "cpu", "cpu,cpu"):
        assert decide(names) == devices.Devices(names)
    with pytest.raises(UserError, match="--device cuda:2: torch finds 2 CUDA devices here; use cpu"):
        decide("cuda:1,cuda:2")


def test_the_processor_alone_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> dict[str, Any]:
        raise AssertionError("torch was asked")

    monkeypatch.setattr(devices, "found_by_torch", none)
    assert decide("cpu").names == "cpu"
    monkeypatch.setattr(devices, "built_for_cards", lambda: False)
    assert decide("auto") == devices.Devices("cpu", f"computes on the CPU: no CUDA device ({NO_CARDS})")


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", True),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.1.2'\n", True),
        ("cuda = '12.8'\n", True),
        (None, True),
    ],
)
def test_for_what_torch_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, built: bool
) -> None:
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(devices, "find_spec", lambda name: spec)
    assert built_for_cards() == built


def test_this_torch_is_built_as_it_says() -> None:
    assert built_for_cards() == bool(torch.version.cuda or torch.version.hip)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_this_machine_without_a_card() -> None:
    made = decide("auto", load=import_module)
    assert made.names == "cpu" and made.why.startswith("computes on the CPU: no CUDA device (")
    with pytest.raises(UserError, match="--device cuda"):
        decide("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_this_machine_with_one() -> None:
    assert decide("auto", shared=True).names.startswith("cuda:")
