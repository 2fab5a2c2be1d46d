"""What torch finds on this machine, asked from a process that does not load it, and which of it is used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ftnode.node.machine.device_choice import AUTO, Card, choose, devices_of, number_of
from ftnode.node.machine.gpu import GpuWatch, count_as_nvml
from ftnode.protocol.words.errors import UserError

PROBE_SECONDS: Final = 60.0
"""Importing torch from a cold disk."""
CARD_BUILD: Final = re.compile(r"^(cuda|hip)\b[^=]*= *'", re.MULTILINE)
"""In torch/version.py, of a build that knows cards; that of others says None."""
NO_CARDS: Final = "this torch is built without CUDA"


def found_by_torch() -> dict[str, Any]:
    """The word of probe.py, out of a process of its own; `trouble` alone where it has none, and `late` where it took
    too long to say so."""
    command = [sys.executable, "-m", "ftnode.node.compute.probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        return {"trouble": f"no answer within {PROBE_SECONDS:.0f} s", "late": True}
    except (OSError, ValueError) as error:
        return {"trouble": str(error)}
    if not isinstance(found, dict):
        return {"trouble": (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]}
    return found


@dataclass(frozen=True, slots=True)
class Devices:
    """What computes, as --device would name it, and one line of why; empty where the owner named it."""

    names: str
    why: str = ""


def decide(
    words: str, needed: int = 0, shared: bool = False, load: Callable[[str], Any] = import_module,
    environment: Mapping[str, str] = os.environ,
) -> Devices:  # fmt: skip
    """What --device means here. `needed`: bytes that one stage takes of a card. `shared`: programs of others on it do
    not matter. Raises UserError (69) when torch has no such card. Takes two seconds where torch is built for cards, and
    none for the processor alone."""
    named = devices_of(words)
    if "cpu" in named:
        return Devices(words)
    if named == (AUTO,) and not built_for_cards():
        return Devices("cpu", f"computes on the CPU: no CUDA device ({NO_CARDS})")
    count_as_nvml(words if words != AUTO else "cuda")
    found = found_by_torch()
    if named == (AUTO,):
        return automatic(found, needed, shared, load, environment)
    cards = found.get("devices") or []
    for device in named:
        if number_of(device) >= len(cards):
            why = found.get("trouble") or f"torch finds {len(cards)} CUDA devices here"
            raise UserError(f"--device {device}: {why}; use cpu, and see ftnode doctor", 69)
    return Devices(words)


def automatic(
    found: Mapping[str, Any], needed: int, shared: bool, load: Callable[[str], Any], environment: Mapping[str, str]
) -> Devices:
    """The best of what torch has found (`found`, as of probe.py)."""
    devices = found.get("devices") or []
    if not devices:
        built = found.get("cuda") or found.get("hip")
        why = found.get("trouble") or ("torch finds none" if built else NO_CARDS)
        return Devices("cpu", f"computes on the CPU: no CUDA device ({why})")
    blind = "NVML knows no AMD cards" if found.get("hip") else ""
    nvml = None
    if not blind:
        try:
            nvml = load("pynvml")
        except ImportError:
            blind = "nvidia-ml-py is not installed"
    cards = []
    for number, each in enumerate(devices):
        card = Card(f"cuda:{number}", each["name"], each["memory_free"], each.get("processors", 0))
        if nvml is not None:
            card, trouble = _as_nvml_sees(card, nvml, environment)
            blind = blind or trouble
        cards.append(card)
    return Devices(*choose(cards, needed, shared, blind))


def _as_nvml_sees(card: Card, nvml: Any, environment: Mapping[str, str]) -> tuple[Card, str]:
    """With the programs that compute there, and the memory that is free now, without the probe's own context. As it
    was, and why, where NVML does not say."""
    try:
        watch = GpuWatch(nvml, card.device, environment)
    except (ValueError, OSError) as error:
        return card, str(error)
    try:
        return Card(card.device, card.name, watch.memory_free(), card.processors, watch.programs()), ""
    except OSError as error:
        return card, str(error)
    finally:
        watch.close()


def built_for_cards() -> bool:
    """Whether this torch could use a card at all, without loading it; True when nobody can say."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        with suppress(OSError, UnicodeDecodeError):
            return CARD_BUILD.search((Path(folder) / "version.py").read_text()) is not None
    return True
