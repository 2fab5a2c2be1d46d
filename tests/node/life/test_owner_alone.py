"""Nobody commands a volunteer's machine from outside: what peers can reach never leads to pauses or limits.

Read off the sources. Peers reach a node through the protocols that it serves and through the core's messages; the
owner through the command line, the control socket, notes in the home and signals.
"""

from __future__ import annotations

import ast
from functools import cache

import pytest

from ftnode.node.owner.control_socket import ControlServer
from ftnode.protocol.words import messages
from tests.syntax_trees import ROOT, nodes, trees_of

OWNERS = {
    "owner.control_socket", "owner.machine_use", "owner.pause_rules", "owner.pause_notes", "owner.hours", "machine.gpu",
    "life.owner_wishes", "cli.config_file",
}  # fmt: skip
"""What decides when a node works, and how it is told."""
OWNERS_SIDE = {
    "life.lives", "cli.main", "cli.lazy_group", "cli.pause", "cli.leave", "cli.config", "cli.health", "cli.join",
    "cli.snapshots", "cli.run_rollback_votes", "owner.join_options", "snapshots.same_home", "compute.devices", *OWNERS,
}  # fmt: skip
"""Who may know them: commands, the lives of a node that start what they allow, the settings that they read, what asks
the home's other nodes for their state, and what looks for a free card before a node begins."""


@cache
def trees() -> dict[str, ast.Module]:
    """room.file → its syntax tree."""
    found = {
        path.removeprefix("node/").removesuffix(".py").replace("/", "."): tree
        for path, tree in trees_of("node").items()
    }
    assert len(found) > 100 and found.keys() >= OWNERS_SIDE, "every file that is named here is there"
    return found


def imported(tree: ast.Module) -> set[str]:
    """room.file of each file of the node that it imports; of a name in it, too, which does no harm."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ftnode.node"):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("ftnode.node.") for name in found}


def intruders(files: dict[str, ast.Module]) -> list[str]:
    """Files that know of the owner's side and are none of it."""
    return sorted(name for name, tree in files.items() if imported(tree) & OWNERS and name not in OWNERS_SIDE)


def callers(files: dict[str, ast.Module], name: str) -> list[str]:
    """Files that call something of that name, as a function or as a method."""

    def calls(tree: ast.Module) -> bool:
        called = [node.func for node in nodes(tree) if isinstance(node, ast.Call)]
        return name in {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called}

    return sorted(file for file, tree in files.items() if calls(tree))


def test_nothing_that_serves_peers_knows_of_the_owners_side() -> None:
    assert intruders(trees()) == []
    serving = set(callers(trees(), "serve"))
    assert {"life.node", "links.transport"} <= serving, "those who serve peers are among the files that were read"
    assert serving & OWNERS_SIDE == set()


def test_a_file_that_does_is_found() -> None:
    planted = {"links.dial_back": ast.parse("def f():\n    from ftnode.node.owner.pause_notes import write_word")}
    assert intruders(planted) == ["links.dial_back"]


def test_only_the_owners_word_makes_a_node_leave_or_rest() -> None:
    """`Leave` is the core's event, `Departure` makes it and stops compute; the owner's side alone asks it to."""
    files = trees()
    assert callers(files, "Leave") == ["life.departure"]
    assert callers(files, "Departure") == ["life.node"]
    assert callers(files, "freeze") == ["compute.group", "life.departure"], "a group passes it on to its processes"
    assert callers(files, "write_word") == ["cli.pause"]


def test_nodes_of_a_home_ask_each_other_for_their_state_alone() -> None:
    calls = [node for node in ast.walk(trees()["snapshots.same_home"]) if isinstance(node, ast.Call)]
    asked = [ast.unparse(call.args[1]) for call in calls if isinstance(call.func, ast.Name) and call.func.id == "ask"]
    assert asked == ["'state'"]


def test_no_message_of_peers_speaks_of_pauses_or_limits() -> None:
    names = [name.lower() for name in vars(messages) if isinstance(vars(messages)[name], type)]
    assert len(names) > 20
    assert [name for name in names if any(word in name for word in ("pause", "limit", "schedule", "throttle"))] == []


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_the_control_socket_has_no_address_on_a_network(family: str) -> None:
    source = (ROOT / "node" / "owner" / "control_socket.py").read_text(encoding="utf-8")
    assert family + "," not in source and "AF_UNIX" in source and ControlServer.__doc__
