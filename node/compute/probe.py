"""What torch finds on this machine, for `ftnode doctor`: one line of JSON. Runs as a process of its own.

{"torch": "2.13.0", "cuda": "13.0", "devices": [{"name": ..., "memory": bytes, "memory_free": bytes}], "trouble": ""}
"""

from __future__ import annotations

import json
from typing import Any

import torch


def probe() -> dict[str, Any]:
    """Versions and graphics cards; `trouble` says why a card that torch knows of cannot be used."""
    devices, trouble = [], ""
    try:
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            devices.append({"name": torch.cuda.get_device_name(number), "memory": total, "memory_free": free})
    except (RuntimeError, AssertionError) as error:
        trouble = (str(error).splitlines() or [type(error).__name__])[0]
    return {"torch": str(torch.__version__), "cuda": torch.version.cuda, "devices": devices, "trouble": trouble}


if __name__ == "__main__":
    print(json.dumps(probe()))
