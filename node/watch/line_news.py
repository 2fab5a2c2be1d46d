"""What a volunteer is told of its own line: once it is known, and again when it is another one by far."""

from __future__ import annotations

from typing import Final

from ftnode.node.home.duration import figure
from ftnode.node.owner.limits import rate_text
from ftnode.node.watch.time_use import TimeUse
from ftnode.protocol.lines.step_estimate import Line, estimate
from ftnode.protocol.manifest.parse import Manifest

CHANGE: Final = 1.5


class LineNews:
    """`told`: bytes a second up that the owner knows of; 0 before that."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.told = 0.0

    def look(self, use: TimeUse | None) -> str:
        """What to say now; "" for nothing."""
        if use is None or use.up is None or self.told / CHANGE < use.up < self.told * CHANGE:
            return ""
        self.told = use.up
        seconds = estimate(self._manifest, Line.of_home(use.up)).seconds
        return (
            f"this line gives about {rate_text(use.up)} up; where all have such lines a step takes about "
            f"{figure(seconds)}; in the last minute this device computed for {use.computed:.0%} of the time, and the "
            f"line was full for {use.full:.0%}"
        )
