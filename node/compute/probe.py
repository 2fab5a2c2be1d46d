"""What torch finds on this machine, for `ftnode join` and `ftnode doctor`: one line of JSON, from a process of its own.

{"torch": "2.13.0", "cuda": "13.0", "hip": null, "devices": [{"name": ..., "memory": bytes, "memory_free": bytes,
"processors": 132, "precision": "bfloat16"}], "trouble": ""}
"""

from __future__ import annotations

import json
from typing import Any

import torch

from ftnode.models.device_precision import precision_of


def probe() -> dict[str, Any]:
    """Versions and graphics cards; `trouble` says why a card that torch knows of cannot be used."""
    devices, trouble = [], ""
    try:
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            devices.append(
                {
                    "name": torch.cuda.get_device_name(number), "memory": total, "memory_free": free,
                    "processors": torch.cuda.get_device_properties(number).multi_processor_count,
                    "precision": precision_of(f"cuda:{number}"),
                }
            )  # fmt: skip
    except (RuntimeError, AssertionError) as error:
        trouble = (str(error).splitlines() or [type(error).__name__])[0]
    version = torch.version
    return {
        "torch": str(torch.__version__), "cuda": version.cuda, "hip": version.hip, "devices": devices,
        "trouble": trouble,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(probe()))
