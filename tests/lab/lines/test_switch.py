"""Packets between homes: no faster than the lines, a delay later, and lost when a queue is full. With namespaces."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

from ftnode.lab.lines.headers import UDP, flow_of
from ftnode.lab.lines.network import Counts, open_network, read_counts
from ftnode.lab.lines.switch import QUEUE_SECONDS, Homes, Switch, address, bytes_on_the_line
from ftnode.node.machine.child_processes import is_running
from tests.lab.lines.test_router import packet_of
from tests.namespaces import skipped_without_namespaces

UP, DOWN, DELAY = 1e5, 1e6, 0.03
HOME = (int(ipaddress.IPv4Address("192.168.2.2")), 4101)
OFFLOAD = struct.Struct("<BBHHHH")


def packet(target: int | str, size: int, headers: int = 0, segment: int = 0, source: str = "0.0.0.0") -> bytes:
    target = address(target) if isinstance(target, int) else target
    head = OFFLOAD.pack(0, 0, headers, segment, 0, 0)
    return head + b"\x45" + bytes(11) + socket.inet_aton(source) + socket.inet_aton(target) + bytes(size - 20)


def homes(*rates: tuple[float, float]) -> Homes:
    return Homes(rates or ((UP, DOWN), (UP, DOWN)), DELAY, "")


def test_a_packet_takes_its_time_up_on_its_way_and_down() -> None:
    switch = Switch(homes())
    switch.offer(0.0, 0, packet(1, 1000))
    takes = 1000 / UP + DELAY + 1000 / DOWN
    assert switch.due(takes - 1e-6) == []
    assert [home for home, _ in switch.due(takes + 1e-6)] == [1]
    assert switch.carried() == [(1000, 0), (0, 1000)]


def test_two_packets_of_a_home_share_its_line_and_those_of_two_do_not() -> None:
    switch = Switch(homes((UP, DOWN), (UP, DOWN), (UP, DOWN)))
    for source in (0, 0, 2):
        switch.offer(0.0, source, packet(1, 1000))
    assert len(switch.due(1000 / UP + DELAY + 0.005)) == 2
    assert len(switch.due(1.0)) == 1


def test_what_finds_the_queue_full_is_lost() -> None:
    switch = Switch(homes())
    for _ in range(100):
        switch.offer(0.0, 0, packet(1, 1000))
    arrived = len(switch.due(10.0))
    assert abs(arrived * 1000 / UP - QUEUE_SECONDS) <= 2 * 1000 / UP


def test_a_packet_to_nobody_is_dropped() -> None:
    switch = Switch(homes())
    switch.offer(0.0, 0, packet(7, 1000))
    switch.offer(0.0, 0, b"")
    assert switch.due(10.0) == []


def test_a_home_without_a_router_is_reached_where_its_packets_come_from() -> None:
    switch = Switch(homes())
    switch.offer(0.0, 0, packet("44.77.0.99", 100))
    assert switch.due(1.0) == []
    switch.offer(1.0, 1, packet(0, 100, source="44.77.0.99"))
    switch.offer(1.0, 0, packet("44.77.0.99", 100))
    assert sorted(home for home, _ in switch.due(2.0)) == [0, 1]


def test_a_router_that_moves_is_reached_at_its_new_address_alone() -> None:
    switch = Switch(Homes(((UP, DOWN), (UP, DOWN)), DELAY, "", ("none", "full-cone")))
    out = packet_of(UDP, HOME, (int(ipaddress.IPv4Address(address(0))), 4101))
    switch.offer(0.0, 1, out)
    ((_, before),) = switch.due(1.0)
    switch.move(1, "44.77.0.99")
    switch.offer(1.0, 1, out)
    ((_, after),) = switch.due(2.0)
    seen = [flow_of(before), flow_of(after)]
    assert [str(ipaddress.IPv4Address(flow.source[0])) for flow in seen if flow] == [address(1), "44.77.0.99"]
    for flow in seen:
        assert flow is not None
        switch.offer(2.0, 0, packet_of(UDP, flow.target, flow.source))
    assert [home for home, _ in switch.due(3.0)] == [1], "what comes to the old address is lost"


def test_segments_that_pass_as_one_packet_count_with_a_header_each() -> None:
    assert bytes_on_the_line(packet(1, 52 + 3 * 1448, 52, 1448)) == 3 * (52 + 1448)
    assert bytes_on_the_line(packet(1, 60)) == 60


def test_counts_between_two_moments_are_read_between_the_lines() -> None:
    counts = Counts((0.0, 1.0, 2.0), (((0, 0),), ((100, 10),), ((300, 30),)))
    assert counts.between(0, 0.5, 1.5) == (150.0, 15.0)


def test_a_program_inside_reaches_another_home_at_the_rate_of_its_line_and_nothing_stays(tmp_path: Path) -> None:
    rate, seconds = 2.5e6, 2.0
    wanted = Homes(((rate, rate), (rate, rate)), 0.01, str(tmp_path / "counts.jsonl"))
    before = set(os.listdir("/sys/class/net"))
    with skipped_without_namespaces(), open_network(("near", "far"), wanted) as places:
        switch = int(places["near"].enter[1].split("/")[2])
        listen = f"import socket; s = socket.create_server(('{address(1)}', 4101)); print(flush=True); c = s.accept()"
        take = "n = 0\nwhile d := c[0].recv(1 << 20): n += len(d)\nprint(n)"
        far = subprocess.Popen(
            [*places["far"].enter, sys.executable, "-c", f"{listen}\n{take}"], stdout=subprocess.PIPE, text=True
        )
        assert far.stdout is not None
        far.stdout.readline()
        connect = f"import socket, time; s = socket.create_connection(('{address(1)}', 4101))"
        give = f"{connect}; end = time.time() + {seconds}\nwhile time.time() < end: s.sendall(bytes(4096))"
        subprocess.run([*places["near"].enter, sys.executable, "-c", give], check=True)
        got = int(far.communicate(timeout=20)[0])
        counts = read_counts(Path(wanted.counts))
        first, last = counts.moments[0], counts.moments[-1]
        assert counts.between(0, first, last)[0] >= 0.9 * got
        assert 0.3 * rate * seconds < got < 1.5 * rate * seconds + 1e6
    assert not is_running(switch)
    assert set(os.listdir("/sys/class/net")) == before
