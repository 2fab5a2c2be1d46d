"""Values from the environment and from config.toml: which one counts, where it is from, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import ftnode.node
from ftnode.node.cli.config_file import OURS, config_path
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.links.addresses import remember_peers
from ftnode.node.owner.join_options import JoinConfig
from ftnode.node.owner.limits import Limits, Memory
from tests.node.cli.cli_runner import Seen, runner

ERRORS = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("FTNODE_") and name != "FTNODE_UPDATE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "platform"))
    return home_directory(str(tmp_path / "home"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], home: Path) -> Callable[..., Seen]:
    return runner(capsys)


def write(home: Path, text: str) -> str:
    """The name of the file, as errors say it."""
    (home / "config.toml").write_text(text)
    return str(home / "config.toml")


def shown(run: Callable[..., Seen], home: Path, *command: str) -> dict[str, tuple[object, str, str]]:
    seen = run("config", "show", *command, "--home", home, "--json")
    assert seen.code == 0, seen
    return {each["option"]: (each["value"], each["origin"], each["where"]) for each in json.loads(seen.out)["values"]}


def test_environment_over_file_over_default(
    run: Callable[..., Seen], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write(home, '[join]\nhold = 2\nmax-temp = 80\nschedule = "22:00-07:00"\n')
    monkeypatch.setenv("FTNODE_JOIN_HOLD", "3")
    monkeypatch.setenv("FTNODE_JOIN_RUN_ON_BATTERY", "")
    monkeypatch.delenv("FTNODE_JOIN_RUN_ON_BATTERY")
    monkeypatch.setenv("FTNODE_JOIN_PAUSE_ON_BATTERY", "no")
    found = shown(run, home, "join")
    assert found["hold"] == (3, "environment", "FTNODE_JOIN_HOLD")
    assert found["pause-on-battery"] == (False, "environment", "FTNODE_JOIN_PAUSE_ON_BATTERY")
    assert found["max-temp"] == (80.0, "file", f"{name}, line 3")
    assert found["schedule"] == (["22:00-07:00"], "file", f"{name}, line 4")
    assert found["threads"] == (None, "default", "") and found["hand-over"] == (60.0, "default", "")
    text = run("config", "show", "join", "--home", home).out
    assert f"max-temp = 80.0                               # {name}, line 3" in text and "# threads = " in text


def test_every_command_can_be_shown(run: Callable[..., Seen], home: Path) -> None:
    seen = run("config", "show", "--home", home, "--json")
    commands = {value["command"] for value in json.loads(seen.out)["values"]}
    assert {"join", "run init", "lab recovery", "status", "pause"} <= commands
    assert run("config", "show", "jion", "--home", home).refused(64, "no command is called jion")


def test_where_the_file_is(run: Callable[..., Seen], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("config", "path", "--home", home).out.strip() == str(home / "config.toml")
    assert run("config", "path").out.strip() == str(config_path(None))
    monkeypatch.setenv("FTNODE_HOME", str(home))
    assert run("config", "path").out.strip() == str(home / "config.toml")
    for there in (False, True):
        assert json.loads(run("config", "show", "join", "--json").out)["exists"] == there
        told = {"format": 1, "file": str(home / "config.toml"), "exists": there}
        assert json.loads(run("config", "path", "--json").out) == told
        write(home, "")
    write(home, "[oops")
    assert run("config", "path").code == 0
    assert run("status").refused(78, "is no TOML")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[join]\n\nmax-tmp = 80", ("line 3", "no option --max-tmp", "did you mean max-temp?")),
        ("[jion]\nhold = 1", ("line 1", "jion is no section", "did you mean join?")),
        ("hold = 1", ("line 1", "hold is no key outside of a section")),
        (
            "[run.init]\nsteps = 7\n[run.inti]\nsteps = 7",
            ("line 3", "run.inti is no section", "mean run.init?"),
        ),
        ("[snapshots.prnue]\nkeep = 1", ("line 1", "snapshots.prnue is no section", "did you mean snapshots.prune?")),
        ("[snapshots]\n\nkeep = 1", ("line 3", "snapshots.keep is no key of a command", "are commands")),
        ("lab = 3", ("line 1", "lab is a command; write [lab]")),
        ("join = 3", ("line 1", "join is a command; write [join]")),
        ("[join]\nhome = '/elsewhere'", ("line 2", "--home or FTNODE_HOME")),
        ("[join]\nhold = true", ("line 2", "hold is no yes-or-no")),
        ("[join]\npause-on-battery = 1", ("line 2", "true or false")),
        ("[join]\nhold = [1]", ("line 2", "hold is one value")),
        ("[join]\npaced-seconds = 1.0", ("line 2", "paced-seconds is a list")),
        ("[join]\nhold = 2026-01-01", ("line 2", "no such kind of value")),
        ("[join.hold]\nx = 1", ("line 1", "no such kind of value")),
        ("[join]\nhold" + ".a" * 2000 + " = 1", ("line", "no such kind of value: a table")),
        ("[join]\nschedule = [[['22:00-07:00']]]", ("line 2", "no such kind of value: a list")),
        (f"[join]\nhold = 0x1{'0' * 9000}", ("line 2", "no such kind of value: a number of more than 64 bits")),
        ("[join]\nhold = 0", ("line 2", "--hold", "0 is not in the range")),
        ("[join]\nkeep-snapshots = 0.9", ("line 2", "keep-snapshots is a whole number, not 0.9")),
        ("[join]\n\nthreads = 2.7", ("line 3", "threads is a whole number, not 2.7")),
        ("[join]\nhold = inf", ("line 2", "hold is a whole number, not inf")),
        ("[join]\nhold = nan", ("line 2", "hold is a whole number, not nan")),
        ("[join]\nhold = 1e400", ("line 2", "hold is a whole number, not inf")),
        ("[join]\nhold = 1e300", ("line 2", "hold is a whole number, not 1e+300")),
        ("[join]\nup = 2500000", ("line 2", "--up", "'2500000' is no rate")),
        ("[join]\nup = 2500000.0", ("line 2", "--up", "'2500000.0' is no rate")),
        ("[join]\nvram = 12.5", ("line 2", "--vram", "neither a share")),
        ("[join]\ndevice = 'gpu'", ("line 2", "--device gpu is unknown")),
        ("[join]\nschedule = ['22-7']", ("line 2", "--schedule 22-7 is no window")),
        ("[join]\nhold = 1\nhold = 2", ("is no TOML",)),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    run: Callable[..., Seen], home: Path, text: str, says: tuple[str, ...]
) -> None:
    name = write(home, text)
    seen = run("join", "manifest.toml", "--home", home)
    assert seen.refused(78, name, *says)
    assert f"`{seen.err.rpartition('[')[2].strip()[:-1]}` |" in ERRORS.read_text(), seen.err
    assert run("config", "show", "--home", home).code == (0 if "'gpu'" in text or "['22-7']" in text else 78)


def test_a_bad_variable_is_named(run: Callable[..., Seen], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTNODE_JOIN_HOLD", "many")
    assert run("join", "manifest.toml", "--home", home).refused(78, "FTNODE_JOIN_HOLD: ", "'many' is no whole number")
    assert "FTNODE_JOIN_HOLD" not in run("join", "manifest.toml", "--hold", "0", "--home", home).err
    monkeypatch.delenv("FTNODE_JOIN_HOLD")
    monkeypatch.setenv("FTNODE_JOIN_HODL", "1")
    assert run("join", "m", "--home", home).refused(
        78, "FTNODE_JOIN_HODL is no option", "did you mean FTNODE_JOIN_HOLD?"
    )
    assert run("status", "--home", home).code == 64, "it is no business of another command"


def test_a_variable_of_no_command_is_said_and_changes_nothing(
    run: Callable[..., Seen], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FTNODE_JION_HOLD", "FTNODE_RUN_INTI_STEPS", "FTNODE_HOEM", "FTNODE_QXZ"):
        monkeypatch.setenv(name, "1")
    for name in sorted(OURS):
        monkeypatch.setenv(name, str(home))
    seen = run("config", "path", "--home", home)
    assert (seen.code, seen.out.strip()) == (0, str(home / "config.toml"))
    assert [line.partition("; ")[0].split()[1] for line in seen.err.splitlines()] == [
        "FTNODE_HOEM", "FTNODE_JION_HOLD", "FTNODE_QXZ", "FTNODE_RUN_INTI_STEPS",
    ]  # fmt: skip
    for near in ("FTNODE_HOME", "FTNODE_JOIN_HOLD", "FTNODE_RUN_INIT_STEPS"):
        assert f"did you mean {near}?\n" in seen.err
    assert "FTNODE_QXZ is no variable of ours and changes nothing; ftnode config show" in seen.err
    for name in ("FTNODE_JION_HOLD", "FTNODE_RUN_INTI_STEPS", "FTNODE_HOEM", "FTNODE_QXZ"):
        monkeypatch.delenv(name)
    assert run("config", "path", "--home", home).err == ""


def test_what_is_typed_wins_and_is_blamed_alone(run: Callable[..., Seen], home: Path) -> None:
    write(home, "[join]\nhold = 0\n")
    seen = run("join", "manifest.toml", "--hold", "many", "--home", home)
    assert seen.code == 64 and "config.toml" not in seen.err
    assert run("join", "manifest.toml", "--hold", "1", "--home", home).refused(66, "there is no manifest")


def test_a_whole_number_may_have_a_point(run: Callable[..., Seen], home: Path) -> None:
    write(home, "[join]\nhold = 2.0\n")
    assert shown(run, home, "join")["hold"][0] == 2


def test_the_last_home_counts(run: Callable[..., Seen], home: Path) -> None:
    """For the file as for the command."""
    other = home_directory(str(home.parent / "other"))
    write(home, "[status]\ntimeout = 'soon'\n")
    for last in (["--home", other], [f"--home={other}"]):
        assert run("config", "path", "--home", home, *last).out.strip() == str(other / "config.toml")
        assert run("pause", "--home", home, *last).err == "" and (other / "paused").exists()
        assert "config.toml" not in run("status", "--home", home, *last).err
        assert "config.toml" in run("status", *last, "--home", home).err


def test_a_group_has_tables_in_its_table(run: Callable[..., Seen], home: Path) -> None:
    name = write(home, "[run.init]\nsteps = 7\n[run]\nsign = {}\n")
    assert shown(run, home, "run", "init")["steps"] == (7, "file", f"{name}, line 2")


def test_the_owner_can_pause_whatever_the_file_says(run: Callable[..., Seen], home: Path) -> None:
    write(home, "[join\n")
    seen = run("pause", "--home", home)
    assert seen.code == 0 and "starts paused" in seen.out and "goes on without the configuration" in seen.err
    assert run("resume", "--home", home).code == 0
    assert run("leave", "--home", home).code == 69
    assert run("status", "--home", home).code == 78


@pytest.mark.parametrize("verb", ["pause", "leave", "resume"])
def test_the_owner_can_pause_whatever_the_values_are(
    run: Callable[..., Seen], home: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """What `leave` says with nobody there shows that it came so far."""
    expected = {"pause": 0, "leave": 69, "resume": 0}[verb]
    key, value = ("json", "7") if verb == "resume" else ("timeout", '"soon"')
    write(home, f"[{verb}]\n{key} = {value}\n")
    seen = run(verb, "--home", home)
    assert seen.code == expected and "line 2" in seen.err and "goes on without the configuration" in seen.err
    assert "[E78-config_file]" in seen.err
    write(home, "")
    monkeypatch.setenv(f"FTNODE_{verb.upper()}_{key.upper()}", value.strip('"'))
    monkeypatch.setenv("FTNODE_HOME", str(home))
    seen = run(verb)
    assert seen.code == expected and f"FTNODE_{verb.upper()}_{key.upper()}" in seen.err
    assert (home / "paused").exists() or verb == "leave"
    assert verb == "resume" or run(verb, "--timeout", "soon").code == 64


def test_a_command_gets_its_values(
    run: Callable[..., Seen], home: Path, manifest_file: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[JoinConfig] = []
    fake = SimpleNamespace(run=lambda config: told.append(config) or 0)  # type: ignore[func-returns-value]
    monkeypatch.setitem(__import__("sys").modules, "ftnode.node.life.lives", fake)
    monkeypatch.setattr(ftnode.node, "daemon", fake, raising=False)
    taken = take_identity(home_directory(str(home.parent / "other")))
    taken.release()
    remember_peers(home, (f"/ip4/192.0.2.7/tcp/31337/p2p/{taken.peer_id}",))
    write(
        home,
        f"[join]\nallow-unsigned = true\ndata = {json.dumps(str(text_file))}\nhold = 2\nmax-temp = 75.5\n"
        "pause-for-gpu = false\nvram = 0.5\npaced-seconds = [0.5, 1]\nhand-over = 5\n",
    )
    monkeypatch.setenv("FTNODE_JOIN_SCHEDULE", "mon-fri 22:00-07:00 sat,sun 00:00-24:00")
    seen = run("join", manifest_file, "--home", home, "--hold", 1)
    assert seen.code == 0, seen
    (config,) = told
    assert config.limits == Limits(Memory(share=0.5))
    assert (config.hold, config.rules.temperature_max, config.rules.pause_for_gpu) == (1, 75.5, False)
    assert (config.forward_seconds, config.backward_seconds, config.hand_over_seconds) == (0.5, 1.0, 5.0)
    assert [len(window.days) for window in config.rules.schedule.windows] == [5, 2]
