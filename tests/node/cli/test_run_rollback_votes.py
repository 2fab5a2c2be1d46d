"""`ftnode run rollback --by-members`: this machine's nodes vote, and nothing is signed with the author's key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ftnode.node.cli import leave
from ftnode.node.owner import control_socket
from ftnode.node.owner.control_socket import ControlError
from ftnode.node.owner.join_options import Running
from ftnode.protocol.manifest.parse import parse
from tests.node.cli.cli_runner import Seen

Run = Callable[..., Seen]
NODES = ("12D3KooWFirst", "12D3KooWSecond")


@dataclass
class Home:
    """Nodes that run here, and what each answers; what they were asked."""

    path: Path
    command: Run
    answers: dict[str, dict[str, Any] | str] = field(default_factory=dict)
    asked: list[tuple[str, object]] = field(default_factory=list)

    def vote(self, *options: object) -> Seen:
        return self.command("run", "rollback", self.path, "--by-members", *options)

    def ask(self, path: Path, do: str, **fields: object) -> dict[str, Any]:
        name = next(name for name in NODES if path.stem in name)
        self.asked.append((do, fields["to"]))
        answer = self.answers[name]
        if isinstance(answer, str):
            raise ControlError(answer)
        return answer


@pytest.fixture
def home(tmp_path: Path, text_file: Path, ftnode: Run, monkeypatch: pytest.MonkeyPatch) -> Home:
    path = tmp_path / "kept.toml"
    assert ftnode("run", "init", path, "--data", text_file, "--snapshot-every", 5).code == 0
    made, run = Home(path, ftnode), parse(path.read_text()).run_id

    def chosen(*_: object) -> tuple[Running, ...]:
        running = [Running(1, name, run, (), False) for name in made.answers]
        return (*running, Running(1, "12D3KooWOther", "another run", (), False))

    monkeypatch.setattr(leave, "chosen", chosen)
    monkeypatch.setattr(control_socket, "ask", made.ask)
    return made


def said(votes: dict[str, int], ordered: bool = False) -> dict[str, Any]:
    return {"step": 50, "votes": votes, "voters": 5, "ordered": ordered}


def test_what_is_missing_is_said_and_the_manifest_stays_as_it_is(home: Home) -> None:
    before = home.path.read_text()
    home.answers = {NODES[0]: said({"40": 1}), NODES[1]: said({"30": 1, "40": 2})}
    seen = home.vote("--to-step", 40)
    assert seen.code == 0 and "2 of 5 voters of kept want to roll back to step 40: 1 more makes it an order" in seen.out
    assert "for step 30 there is 1 vote" in seen.out
    assert home.asked == [("undo", 40), ("undo", 40)] and home.path.read_text() == before
    found = json.loads(home.vote("--to-step", 40, "--json").out)
    del found["run"]
    assert found == {
        "to_step": 40, "step": 50, "ordered": False, "votes": 2, "needed": 3, "voters": 5,
        "others": [{"to_step": 30, "votes": 1}], "troubles": {},
    }  # fmt: skip


def test_the_vote_that_makes_it_an_order_says_so(home: Home) -> None:
    home.answers = {NODES[0]: said({}, ordered=True)}
    assert "most voters of kept want it: back to step 40" in home.vote("--to-step", 40).out


def test_a_vote_is_taken_back(home: Home) -> None:
    home.answers = {NODES[0]: said({"40": 2})}
    seen = home.vote("--withdraw")
    assert "nobody here wants kept to roll back any more\nfor step 40 there are 2 votes\n" in seen.out
    assert home.asked == [("undo", None)]


def test_who_has_no_vote_is_told_so(home: Home) -> None:
    home.answers = {NODES[0]: "it has no vote: it holds no stage yet, or is new in the run"}
    assert home.vote("--to-step", 40).refused(75, f"{NODES[0]} cannot vote: it has no vote: it holds no stage yet")
    home.answers[NODES[1]] = said({"40": 1})
    assert f"{NODES[0]} cannot vote: it has no vote" in home.vote("--to-step", 40).out


def test_only_who_takes_part_votes(home: Home) -> None:
    assert home.vote("--to-step", 40).refused(69, "no node of this home is in kept", "ftnode join")


def test_options_that_make_no_sense_together_are_refused(home: Home) -> None:
    assert home.vote().refused(64, "one is needed")
    assert home.vote("--to-step", 3, "--withdraw").refused(64, "exclude each other")
    refused = home.command("run", "rollback", home.path, "--withdraw")
    assert refused.refused(64, "--withdraw takes votes back", "give --by-members with it")
    assert not home.asked
