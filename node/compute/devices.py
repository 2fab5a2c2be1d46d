"""What torch finds on this machine, asked from a process that does not load it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from ftnode.protocol.words.errors import UserError

PROBE_SECONDS: Final = 60.0
"""Importing torch from a cold disk."""


def found_by_torch() -> dict[str, Any]:
    """The word of probe.py, out of a process of its own; `trouble` alone where it has none."""
    command = [sys.executable, "-m", "ftnode.node.compute.probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        return {"trouble": f"no answer within {PROBE_SECONDS:.0f} s"}
    except (OSError, ValueError) as error:
        return {"trouble": str(error)}
    if not isinstance(found, dict):
        return {"trouble": (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]}
    return found


def check_device(device: str) -> None:
    """Raises UserError (69) when torch has no such CUDA device. Takes two seconds for one, and none for cpu."""
    if not device.startswith("cuda"):
        return
    found = found_by_torch()
    devices, number = found.get("devices") or [], int(device.partition(":")[2] or 0)
    if number >= len(devices):
        why = found.get("trouble") or f"torch finds {len(devices)} CUDA devices here"
        raise UserError(f"--device {device}: {why}; use cpu, and see ftnode doctor", 69)
