"""Attacks on real swarms that once stopped them, as `ftnode lab hostile` carries them out.

docs/reference/hostile.md has what they were measured to do. `make night` carries all of them out, CI one: authority
that nobody gave. That a stage is taken, that steps go on and that no process ends is shown in the virtual world.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import pytest

from ftnode.lab.hostile.attacks import ATTACKS
from ftnode.lab.hostile.outcome import BROKEN

pytestmark = pytest.mark.timeout(400)
SHARE: Final = 0.3
"""Of the rate before. Broken swarms had less than an eighth; other tests run on this machine at the same time."""

ALWAYS: Final = "forged-certificate"


def carried_out(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "ftnode.node.cli", "lab", "hostile", "--quick", "--json", "--only", name]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    (figures,) = json.loads(said)["attacks"]
    found: dict[str, Any] = figures
    return found


@pytest.mark.parametrize(
    "name",
    [each.name if each.name == ALWAYS else pytest.param(each.name, marks=pytest.mark.night) for each in ATTACKS],
)
def test_the_swarm_goes_on_during_the_attack_and_after_it(name: str) -> None:
    found = carried_out(name)
    assert found["rate_before"] > 0 and found["outcome"] != BROKEN, found
    assert min(found["rate_during"], found["rate_after"]) >= SHARE * found["rate_before"], found
