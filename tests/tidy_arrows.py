"""Who may import whom, declared once. Imports under TYPE_CHECKING count: a name in a signature is a dependency, too.

A package imports only from the packages named here. Inside a package, each room imports only from rooms above it in
its list, so that data flows one way; files that stand at the top of a package are rooms of their own. No two files
import each other, directly or around a circle.
"""

from __future__ import annotations

from typing import Final

PACKAGES: Final = {
    "protocol": {"protocol"},
    "models": {"models"},
    "node": {"node", "protocol", "models"},
    "bootstrap": {"bootstrap", "node", "protocol"},
    "lab": {"protocol", "models", "node", "bootstrap", "lab"},
}
ROOMS: Final[dict[str, tuple[str, ...]]] = {
    "protocol": (
        "words", "manifest", "lines", "wire", "liveness", "step", "planning", "situation", "recovery", "chronicle",
        "views", "leader", "holder", "picture", "participant",
    ),
    "node": (
        "ports", "home", "machine", "links", "owner", "watch", "snapshots", "directory", "data", "reduction",
        "compute", "manifests", "weights", "driver", "export", "life", "cli",
    ),
    "lab": (
        "results", "traces", "swarms", "audit", "demo", "recovery", "parts", "benchmarks", "hostile", "lines",
        "routers", "codecs", "long_recovery", "planner", "liars", "commands",
    ),
}  # fmt: skip
"""From the bottom to the top."""
