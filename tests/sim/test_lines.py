"""Lines of hosts in the virtual world: a step takes there what the lines allow, and little more."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ftnode.protocol.lines.line_bound import Work
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.words.messages import Boundary, Message
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Direction
from tests.sim.compute import Tensor
from tests.sim.network import BROKEN, UP, Link
from tests.sim.step_seconds import command, step_seconds
from tests.sim.world import World

MEGABYTE = BoundaryBytes(1_000_000, 1_000_000)
SETTINGS = Settings(run="lines", stages=1, steps=10, microbatches=8, window=8)
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD

NO_HEAD, USUAL = (0.0, 0.0), (0.02, 0.04)
LAYOUTS = {
    "homes": Work(16, BoundaryBytes(983_040, 983_040), (2.5e6, 12.5e6), 0.03, (NO_HEAD, *[USUAL] * 4)),
    "far homes": Work(32, BoundaryBytes(250_000, 250_000), (1.25e6, 6.25e6), 0.1, (NO_HEAD, *[USUAL] * 3)),
    "slow devices": Work(24, BoundaryBytes(100_000, 100_000), (25e6, 125e6), 0.01, (NO_HEAD, *[(0.1, 0.25)] * 3)),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_step_takes_what_the_lines_allow(layout: Work, seed: int) -> None:
    assert 0.98 <= step_seconds(layout, seed).ratio <= 1.1


def test_who_waits_for_its_line_is_not_lost_for_it() -> None:
    """Nine homes with tensors of 8.4 MB: a step takes five minutes, and a gradient comes back after more than one.
    Members were lost because they had not got it done since its activation came, and the first step never ended."""
    layout = Work(36, BoundaryBytes(8_360_000, 8_360_000), (2.5e6, 12.5e6), 0.03, (NO_HEAD, *[USUAL] * 8))
    assert step_seconds(layout, steps=1).ratio <= 1.1


def test_a_layout_of_lab_lines_can_be_asked_for() -> None:
    asked = ("--volunteers", "3", "--line", "20/100Mbit", "--sequences", "4", "--microbatches", "4")
    said = CliRunner().invoke(command(), asked)
    assert said.exit_code == 0 and "in the virtual world" in said.output


class Post:
    """Hosts with lines, and tensors of a megabyte from one to another. Nobody reads them."""

    def __init__(self, **lines: Line) -> None:
        self.world = World(SETTINGS, 1)
        self.world.network.lines.tensors = MEGABYTE
        self.world.network.lines.of.update(lines)
        self.world.receive = self._receive  # type: ignore[method-assign]
        self.hosts = {name: self.world.start(name, 1) for name in lines}
        self.links: dict[tuple[str, str], Link] = {}
        self.came: list[tuple[str, int, float]] = []

    def send(self, source: str, target: str, microbatch: int, direction: Direction = FORWARD, view: int = 0) -> None:
        if (source, target) not in self.links:
            self.links[source, target] = Link(self.hosts[source], self.hosts[target], 0.0)
            self.links[source, target].state = UP
        message = Boundary("line", view, 1, Attempt(1, 1), microbatch, 1, direction, ())
        self.world.network.transmit(self.links[source, target], message, None)

    def _receive(self, link: Link, message: Message, tensor: Tensor | None) -> None:
        if isinstance(message, Boundary) and self.world.now <= link.cut:
            self.came.append((link.target.peer.id, message.microbatch, round(self.world.now, 1)))

    def arrivals(self) -> list[tuple[str, int, float]]:
        """(receiver, microbatch, when)."""
        self.world.run(100.0)
        return self.came


FAST, THIN = Line(1e6, 1e7, 0.0), Line(1e6, 2.5e5, 0.0)


def test_all_links_of_a_host_share_its_line_up_evenly() -> None:
    post = Post(a=FAST, b=FAST, c=FAST)
    for microbatch, target in enumerate("bcb"):
        post.send("a", target, microbatch)
    assert post.arrivals() == [("b", 0, 2.0), ("c", 1, 2.0), ("b", 2, 3.0)]


def test_backward_goes_before_forward_and_early_microbatches_before_late_ones() -> None:
    post = Post(a=FAST, b=FAST)
    post.send("a", "b", 0)
    for microbatch, direction in ((7, FORWARD), (2, FORWARD), (6, BACKWARD), (4, BACKWARD)):
        post.send("a", "b", microbatch, direction)
    assert [microbatch for _, microbatch, _ in post.arrivals()] == [0, 4, 6, 2, 7]


def test_tensors_from_several_hosts_share_the_line_down() -> None:
    post = Post(a=FAST, b=FAST, c=THIN)
    post.send("a", "c", 0)
    post.send("b", "c", 1)
    post.send("b", "a", 2)
    assert post.arrivals() == [("a", 2, 2.0), ("c", 0, 4.0), ("c", 1, 8.0)]


def test_what_is_there_is_not_sent_again_and_says_the_newest() -> None:
    post = Post(a=FAST, b=FAST)
    for view in (0, 0, 1):
        for microbatch in (0, 1):
            post.send("a", "b", microbatch, view=view)
    assert post.arrivals() == [("b", 0, 1.0), ("b", 0, 2.0), ("b", 1, 3.0)], "the first was on the line already"


def test_a_line_carries_nothing_of_broken_links() -> None:
    post = Post(a=FAST, b=FAST, c=FAST)
    for microbatch, target in enumerate("bbbc"):
        post.send("a", target, microbatch)
    post.links["a", "b"].state = BROKEN
    assert post.arrivals() == [("b", 0, 2.0), ("c", 3, 2.0)]


def test_half_of_the_delay_is_on_either_side() -> None:
    lines = Post(a=Line(1.0, 1.0, 0.1), b=Line(1.0, 1.0, 0.02)).world.network.lines
    assert lines.delay("a", "b") == pytest.approx(0.06)
    assert lines.delay("a", "elsewhere") == 0.05 and lines.delay("here", "there") is None
