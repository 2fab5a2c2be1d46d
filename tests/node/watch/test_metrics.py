"""`/metrics`: what is in it, what the dashboard file asks of it, and who gets it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from ftnode.node.watch import metrics_server
from ftnode.node.watch.metrics import families
from ftnode.node.watch.metrics_server import AUTO, MetricsServer, is_public, parse_listen
from ftnode.node.watch.stage_summary import summarize
from ftnode.node.watch.status import Member, PeerRow, RecoveryRow, Speaker, StageRow, SwarmStatus
from ftnode.protocol.words.errors import UserError

ROWS = (StageRow(0, "a", "training", 0, 7, 3, 1, 0.5, 90.0), StageRow(1, "", "vacant", 2, 0, 0, 0, 0.0))
FULL = SwarmStatus(
    Speaker("12D3KooWme", "0.1.0", "cpu", "volunteer"), run="abc", name='ti"ny\n', step=7, steps=300, loss=2.5,
    validation=2.4, validation_step=5, perplexity=11.0, tokens_per_second=1234.0, eta_seconds=60.0, volunteers=3,
    view=3, state="waiting", waiting="a volunteer for stage 1", stages=ROWS, standbys=("s",), commit_age=1.5,
    summaries=summarize(ROWS, lambda stage: 0.25),
    recoveries=(
        RecoveryRow(1, 6, "blend", 3, "x", "y", "silent", 2.5), RecoveryRow(2, 7, "copy", 4, "x", "y", "", None),
    ),
    peers=(
        PeerRow("b", "holder", (1,), (), "relayed", 0.02, "0.1.0", 1.0, 0.25, 0.75, 0.125, 0.5, 2.5e6),
        PeerRow("c", "standby", (), (), "none", None, "", None),
    ),
    limiting_peer="b", limited_by="line",
)  # fmt: skip
NOTHING = SwarmStatus(Speaker("12D3KooWpoint", "0.1.0", "none", "bootstrap"), members=(Member("r", "n", "p", ()),) * 2)


def figures(status: SwarmStatus) -> dict[str, float]:
    """`name{label="value"}` → value."""
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in families(status)
        for sample in family.samples
    }


def test_a_status_in_figures() -> None:
    found = figures(FULL)
    for name, value in {
        "ftnode_step{}": 7, "ftnode_validation_perplexity{}": 11.0, "ftnode_waiting{}": 1, "ftnode_eta_seconds{}": 60,
        'ftnode_stage_holders{"stage": "1"}': 0, 'ftnode_stage_tokens_per_second{"stage": "0"}': 90.0,
        'ftnode_stage_stalled{"stage": "1"}': 1, 'ftnode_recoveries_total{"rung": "blend"}': 1,
        "ftnode_recovery_seconds{}": 2.5, 'ftnode_state{"state": "waiting"}': 1, 'ftnode_peers{"path": "relayed"}': 1,
        'ftnode_peer_latency_seconds{"path": "relayed", "peer": "b", "role": "holder"}': 0.02,
        'ftnode_peer_time_share{"doing": "computed", "peer": "b"}': 0.25,
        'ftnode_peer_time_share{"doing": "sent", "peer": "b"}': 0.75,
        'ftnode_peer_time_share{"doing": "waited", "peer": "b"}': 0.125,
        'ftnode_peer_time_share{"doing": "line_full", "peer": "b"}': 0.5,
        'ftnode_peer_line_up_bytes_per_second{"peer": "b"}': 2.5e6,
        'ftnode_limiting{"kind": "line", "peer": "b"}': 1,
    }.items():  # fmt: skip
        assert found[name] == value, name


def test_what_is_not_known_is_left_out() -> None:
    unknown = figures(replace(FULL, loss=None, validation=None, perplexity=None, eta_seconds=None, commit_age=None))
    assert not [name for name in unknown if re.search(r"loss|perplexity|eta|commit_age", name)]
    assert 'ftnode_stage_tokens_per_second{"stage": "1"}' not in unknown
    assert 'ftnode_peer_latency_seconds{"path": "none", "peer": "c", "role": "standby"}' not in unknown
    assert not [name for name in unknown if "time_share" in name and '"c"' in name]
    assert not [name for name in figures(replace(FULL, limiting_peer="")) if "limiting" in name]


def test_a_meeting_point_counts_members() -> None:
    assert figures(NOTHING)['ftnode_members{"run": "r"}'] == 2


def queries(panel: object) -> Iterator[str]:
    if isinstance(panel, dict):
        for name, value in panel.items():
            if name in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from queries(value)
    elif isinstance(panel, list):
        for each in panel:
            yield from queries(each)


def test_the_dashboard_file_asks_for_metrics_that_exist() -> None:
    path = Path(__file__).parents[3] / "docs" / "how-to" / "grafana.json"
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    known = {sample.name for status in (FULL, NOTHING) for family in families(status) for sample in family.samples}
    known.add("process_resident_memory_bytes")
    asked = {name for query in queries(dashboard) for name in re.findall(r"\b(?:ftnode|process)_\w+", query)}
    assert len(asked) > 12 and asked <= known, asked - known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_page_on_watching_lists_every_metric() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "watch-a-run.md").read_text(encoding="utf-8")
    names = {sample.name for status in (FULL, NOTHING) for family in families(status) for sample in family.samples}
    assert not [name for name in names if f"`{name}`" not in page]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("none", None), ("127.0.0.1:9464", ("127.0.0.1", 9464)), ("localhost:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)), ("0.0.0.0:9464", ("0.0.0.0", 9464)),
    ],
)  # fmt: skip
def test_where_to_listen(text: str, where: tuple[str, int] | None) -> None:
    assert parse_listen(text) == where


@pytest.mark.parametrize("text", ["", "9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "example.org:1", ":1"])
def test_what_is_nowhere_to_listen(text: str) -> None:
    with pytest.raises(UserError, match="neither HOST:PORT"):
        parse_listen(text)


def test_loopback_is_not_public() -> None:
    assert [is_public(host) for host in ("127.0.0.1", "127.3.2.1", "::1", "0.0.0.0", "192.0.2.7", "::")] == (
        [False, False, False, True, True, True]
    )


def test_a_port_in_use_is_one_clear_line_and_the_default_takes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is in use; choose another --metrics"):
            MetricsServer(f"127.0.0.1:{port}", lambda: FULL)
        monkeypatch.setattr(metrics_server, "DEFAULT", f"127.0.0.1:{port}")
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is in use"):
            MetricsServer(f"127.0.0.1:{port}", lambda: FULL)
        server = MetricsServer("auto", lambda: FULL)
        assert port < server.port < port + metrics_server.PORTS_TRIED
        server.close()


def on_loopback(test: Callable[[MetricsServer], Awaitable[None]]) -> None:
    async def main() -> None:
        server = MetricsServer("127.0.0.1:0", lambda: FULL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            await test(server)
            nursery.cancel_scope.cancel()

    trio.run(main)


async def exchange(port: int, request: bytes) -> tuple[bytes, bytes]:
    """(head, body) of the answer."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    with trio.fail_after(10):
        await stream.send_all(request)
        answer = b"".join([chunk async for chunk in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


def test_prometheus_reads_it() -> None:
    async def test(server: MetricsServer) -> None:
        host = f"127.0.0.1:{server.port}".encode()
        head, body = await exchange(server.port, b"GET /metrics HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and b"text/plain; version=0.0.4" in head
        parsed = {family.name: family for family in text_string_to_metric_families(body.decode())}
        assert parsed["ftnode_step"].samples[0].value == 7
        assert parsed["ftnode_info"].samples[0].labels["name"] == 'ti"ny\n'
        assert parsed["process_resident_memory_bytes"].samples[0].value > 1e6
        head, body = await exchange(server.port, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and body == b""

    on_loopback(test)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /../etc HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n", b"421"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"421"),
        (b"nonsense\r\n\r\n", b""),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70000 + b"\r\n\r\n", b""),
    ],
    ids=range(8),
)  # fmt: skip
def test_everything_else_is_refused(request_: bytes, status: bytes) -> None:
    async def test(server: MetricsServer) -> None:
        try:
            head, body = await exchange(server.port, request_)
        except trio.BrokenResourceError:  # it hung up while we wrote
            head = body = b""
        assert head.split(b" ")[1:2] == ([status] if status else []), head
        assert b"ftnode_step" not in body

    on_loopback(test)


def test_who_asks_nothing_is_hung_up_on_and_so_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTIONS_MAX", 2)

    async def main() -> None:
        server = MetricsServer("127.0.0.1:0", lambda: FULL)
        pairs = [trio.testing.memory_stream_pair() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            for _, theirs in pairs[:2]:
                nursery.start_soon(server.serve, theirs)
            await trio.testing.wait_all_tasks_blocked()
            await server.serve(pairs[2][1])
            assert trio.current_time() == began, "the third is hung up on at once"
        assert trio.current_time() - began == metrics_server.REQUEST_SECONDS
        server.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_default_is_off_the_public_interface() -> None:
    where = parse_listen(AUTO)
    assert where is not None and not is_public(where[0])
