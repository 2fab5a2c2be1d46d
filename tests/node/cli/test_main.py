"""The command line as a whole: quick, lazy, one line per mistake, exit codes by sysexits."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from ftnode.node.cli import main as cli
from ftnode.node.cli.lazy_group import OPTIONS_MEANT, LazyGroup
from ftnode.node.cli.main import main
from ftnode.protocol.words.errors import UserError
from tests.node.cli.cli_runner import Seen

HEAVY = ("torch", "hivemind", "libp2p", "trio", "numpy", "rich", "matplotlib", "msgpack", "cryptography", "multiaddr")


def test_help_names_every_command(ftnode: Callable[..., Seen]) -> None:
    seen = ftnode("--help")
    assert seen.code == 0
    for name in ("bootstrap", "join", "run", "status", "peers", "doctor", "demo", "replay", "lab", "id"):
        assert f"\n  {name} " in seen.out


def loaded(statements: str, names: tuple[str, ...]) -> list[str]:
    """Which of these modules a fresh interpreter has after the statements."""
    program = f"{statements}\nimport sys; print(*[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()[-1].split()


def test_help_loads_nothing_heavy() -> None:
    """`ftnode --help` in under 0.3 s stands and falls with this, and this does not depend on the machine."""
    assert loaded("from ftnode.node.cli.main import main; main(['--help'])", HEAVY) == []


@pytest.mark.parametrize(
    "module",
    [f"node.cli.{name}" for name in ("join", "status", "bootstrap", "manifest", "doctor")]
    + [f"lab.commands.{name}" for name in ("benchmarks", "demo", "parts", "recovery", "traces")],
)
def test_commands_load_neither_torch_nor_the_libraries_that_stand_alone(module: str) -> None:
    assert loaded(f"import ftnode.{module}", ("torch", "hivemind", "libp2p", "matplotlib")) == []


def test_the_node_alone_names_the_lab() -> None:
    """Its commands are known by name; nothing of them is loaded for the rest."""
    statements = (
        "from ftnode.node.cli.main import cli, main; main(['config', 'path']); assert len(list(cli.leaves())) > 30"
    )
    assert loaded(statements, ("ftnode.lab",)) == []


@pytest.fixture
def without_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where only the other packages are installed."""
    for name in [name for name in sys.modules if name.startswith("ftnode.lab.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ftnode.lab", None)


@pytest.mark.usefixtures("without_lab")
@pytest.mark.parametrize(
    "words",
    ["demo", "replay trace.jsonl", "lab world", "lab world --help", "dashboard --replay {0}", "config show demo"],
)
def test_without_the_lab_its_commands_say_so(words: str, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode(*words.format(tmp_path).split()).refused(
        69, "ftnode.lab, which is not installed", "[E69-lab_by_name]"
    )


@pytest.mark.usefixtures("without_lab")
def test_without_the_lab_everything_else_works(
    tmp_path: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("[lab.recovery]\nquick = true\n[join]\nhold = 2\n")
    monkeypatch.setenv("FTNODE_JION_HOLD", "1")
    for words in ("--help", "lab --help", "config path", "config show", "id"):
        seen = ftnode(*words.split(), *([] if "--help" in words else ["--home", tmp_path]))
        assert seen.code == 0, seen
        assert "help" in words or "did you mean FTNODE_JOIN_HOLD?" in seen.err


def test_what_is_loaded_is_seen() -> None:
    assert loaded("import json, click", ("click", "torch", "json")) == ["click", "json"]


@pytest.mark.parametrize("group", [cli.cli, cli.run_group, cli.lab_group], ids=lambda group: str(group.name))
def test_the_table_of_a_group_matches_its_commands(group: LazyGroup) -> None:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None and command.name == name


def test_help_is_a_command_too(ftnode: Callable[..., Seen]) -> None:
    assert ftnode("help").out == ftnode("--help").out
    assert ftnode("help", "run", "init").out == ftnode("run", "init", "--help").out
    assert ftnode("run", "help", "init").out == ftnode("run", "init", "--help").out
    assert ftnode("run", "help").out == ftnode("run", "--help").out
    assert ftnode("hlep").refused(64, "did you mean help?")
    assert ftnode("help", "jion").refused(64, "did you mean join?")


def test_a_mistyped_command_is_answered_with_the_nearest(ftnode: Callable[..., Seen]) -> None:
    assert ftnode("joni").refused(64, "no command is called joni; did you mean join?")
    assert ftnode("run", "ini").refused(64, "did you mean init?")
    assert ftnode("run", "check").refused(64, "did you mean validate?")


def test_a_command_that_some_guess_is_shown_where_it_is(ftnode: Callable[..., Seen]) -> None:
    """In another group, or an option of the node."""
    assert ftnode("limits").refused(64, "ftnode join takes --up, --down, --vram, --threads, --nice (see ftnode --help)")
    assert ftnode("hours").refused(64, "ftnode join takes --schedule")
    assert ftnode("max-temp").refused(64, "ftnode join takes --max-temp")
    assert ftnode("audit").refused(64, "did you mean ftnode lab audit?")
    assert ftnode("init").refused(64, "did you mean ftnode run init?")
    assert ftnode("verify").refused(64, "did you mean ftnode snapshots verify?")
    assert ftnode("stop").refused(64, "did you mean leave?")
    assert ftnode("run", "hours").refused(64, "there are init, ")


def test_options_that_are_guessed_as_commands_are_there() -> None:
    taken = {name for option in cli.cli.get_command(click.Context(cli.cli), "join").params for name in option.opts}
    assert {name for names in OPTIONS_MEANT.values() for name in names} <= taken


def test_who_types_too_much_is_shown_how_it_is_used(ftnode: Callable[..., Seen]) -> None:
    assert ftnode("run", "show", "a", "b").refused(
        64,
        "ftnode: unexpected extra argument (b); use: ftnode run show [OPTIONS] MANIFEST (see ftnode run show --help)",
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("run init a.toml --stages 3x", "--stages: '3x' is no whole number, 1 to 256 (see ftnode run init --help)"),
        ("run init a.toml --stages 300", "--stages: 300 is not in the range 1 to 256 (see"),
        ("join a.toml --hold 0", "--hold: 0 is not in the range 1 or more (see"),
        ("join a.toml --timeout soon", "--timeout: 'soon' is no number, more than 0 (see"),
        ("join a.toml --max-load 101", "--max-load: 101.0 is not in the range more than 0, up to 100 (see"),
        (
            "join a.toml --paced-seconds 1 --json",
            "--paced-seconds takes 2 values, FORWARD BACKWARD: '--json' is no number",
        ),
        ("join a.toml --relay of", "--relay: 'of' is not one of 'auto', 'on', 'off' (see"),
        ("join a.toml --peers x", "No such option '--peers'; did you mean --peer or --"),
        ("join a.toml --peer", "--peer needs a value ["),
        ("join", "MANIFEST|LINK is missing; use: ftnode join [OPTIONS] MANIFEST|LINK (see ftnode join --help)"),
        ("snapshots prune", "--keep is missing; use: ftnode snapshots prune [OPTIONS] (see"),
        ("version", "no command is called version; it is: ftnode --version (see"),
    ],
)
def test_what_was_typed_wrongly_is_said_in_plain_words(ftnode: Callable[..., Seen], arguments: str, says: str) -> None:
    assert ftnode(*arguments.split()).refused(64, f"ftnode: {says}")


def test_help_says_ranges_as_a_person_does(ftnode: Callable[..., Seen]) -> None:
    shown = " ".join(ftnode("join", "--help").out.split())
    assert "--threads N Processor cores" in shown and "[1 to 1024]" in shown, shown
    assert "--timeout SECONDS Seconds to look for a peer" in shown and "[default: 60.0; more than 0]" in shown, shown
    assert "RANGE" not in shown and "<=" not in shown
    shown = " ".join(ftnode("run", "init", "--help").out.split())
    assert "[1 to 10000000]" in shown and "[0 to 9223372036854775807]" in shown, shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["join", "x.toml", "--hold", "two"], "--hold"),
        (["run", "init", "x.toml", "--stages", "0"], "--stages"),
        (["status", "--wacth", "2"], "--watch"),
        (["run", "show"], "MANIFEST"),
    ],
)
def test_wrong_usage_is_one_line_with_64(ftnode: Callable[..., Seen], arguments: list[str], says: str) -> None:
    assert ftnode(*arguments).refused(64, says, "--help)")


def program(error: BaseException) -> LazyGroup:
    @click.command("fail")
    def fail() -> None:
        raise error

    group = LazyGroup("ftnode", "", {"fail": ("nowhere:fail", "")})
    group.get_command = lambda ctx, cmd_name: fail  # type: ignore[method-assign]
    return group


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            UserError("port 1 is in use;\n choose another", 69),
            69,
            "ftnode: port 1 is in use; choose another [E69-test_main]\n",
        ),
        (ExceptionGroup("", [ExceptionGroup("", [UserError("no peer", 69)])]), 69, "ftnode: no peer [E69-test_main]\n"),
        (
            BaseExceptionGroup("", [KeyboardInterrupt(), UserError("no peer", 69)]),
            69,
            "ftnode: no peer [E69-test_main]\n",
        ),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), 130, ""),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_expected_errors(
    error: BaseException,
    code: int,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "cli", program(error))
    assert main(["fail"]) == code
    assert said is None or capsys.readouterr().err == said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("service", "user"), ("--help",)])
def test_an_output_that_takes_nothing_is_said(tmp_path: Path, arguments: tuple[str, ...], unbuffered: str) -> None:
    command = [sys.executable, "-c", "from ftnode.node.cli.main import run_and_exit; run_and_exit()", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    said = "ftnode: cannot write to the standard output: No space left on device; see where it leads [E74-cli]\n"
    assert (done.returncode, done.stderr) == (74, said)


NURSERY = """
import sys, click
from ftnode.node.cli import main as cli
@click.command("look")
def look():
    try:
        while True:
            click.echo("x" * 9999)
    except OSError as error:
        raise ExceptionGroup("nurseries", [ExceptionGroup("", [error])])
cli.cli.get_command = lambda context, name: look
cli.cli.table = {"look": ("nowhere:look", "")}
sys.exit(cli.main(["look"]))
"""
"""A command that writes out of nurseries until nobody takes it, as `ftnode status --watch --json`."""


def test_a_reader_that_is_gone_is_no_error_of_the_command() -> None:
    """click would end it with 1 where the pipe breaks while it writes."""
    plain = NURSERY.replace('raise ExceptionGroup("nurseries", [ExceptionGroup("", [error])])', "raise")
    assert plain != NURSERY
    looking = subprocess.Popen([sys.executable, "-c", plain], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert looking.stdout is not None and looking.stderr is not None and looking.stdout.read(5) == b"xxxxx"
    looking.stdout.close()
    with looking.stderr:
        assert (looking.stderr.read(), looking.wait(60)) == (b"", 141)


def test_out_of_nurseries_a_reader_that_is_gone_is_no_error() -> None:
    looking = subprocess.Popen([sys.executable, "-c", NURSERY], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert looking.stdout is not None and looking.stderr is not None and looking.stdout.read(5) == b"xxxxx"
    looking.stdout.close()
    with looking.stderr:
        assert (looking.stderr.read(), looking.wait(60)) == (b"", 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_out_of_nurseries_an_output_that_takes_nothing_is_said() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", NURSERY], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 74 and done.stderr.startswith("ftnode: cannot write to the standard output"), done
    assert done.stderr.count("\n") == 1


def test_ctrl_c_before_anything_has_begun_says_nothing() -> None:
    """SIGINT comes as the command line is looked for, before any of it is loaded."""
    program = """
import os, signal, sys
from ftnode.node.cli import entry
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "ftnode.node.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
entry.run_and_exit()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_is_heard_by_commands_again_once_all_is_loaded() -> None:
    program = """
import os, signal, sys
from ftnode.node.cli import entry, main
def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
main.main = interrupted
signal.signal(signal.SIGINT, getattr(signal, sys.argv[1]))
entry.run_and_exit()
"""
    for handler, code in (("default_int_handler", 130), ("SIG_IGN", 0)):
        done = subprocess.run([sys.executable, "-c", program, handler], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (code, ""), handler


@pytest.mark.parametrize("words", ["--home x id", "snapshots --home x", "snapshots --json list", "--peer x status"])
def test_an_option_before_its_command_is_told_its_place(words: str, ftnode: Callable[..., Seen]) -> None:
    option = next(word for word in words.split() if word.startswith("--"))
    group = "ftnode snapshots" if words.startswith("snapshots") else "ftnode"
    assert ftnode(*words.split()).refused(64, f"{option} goes behind the command: {group} COMMAND {option}")


def test_an_option_that_no_command_has_is_told_none(ftnode: Callable[..., Seen]) -> None:
    assert ftnode("snapshots", "--hime", "x").refused(64, "No such option '--hime'")


def test_a_closed_output_is_none() -> None:
    command = f"exec {shlex.quote(sys.executable)} -m ftnode.node.cli service user >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError(),
        OSError(28, "of a file"),
        ExceptionGroup("", [UserError("x"), ZeroDivisionError()]),
        ExceptionGroup("", [OSError(28, "of a file")]),
        ExceptionGroup("", [BrokenPipeError(32, "of a process")]),
    ],
)
def test_a_bug_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "cli", program(error))
    with pytest.raises(type(error)):
        main(["fail"])


def test_what_a_command_returns_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    group = LazyGroup("ftnode", "", {"seven": ("nowhere:seven", "")})
    monkeypatch.setattr(group, "get_command", lambda ctx, cmd_name: click.Command("seven", callback=lambda: 7))
    monkeypatch.setattr(cli, "cli", group)
    assert main(["seven"]) == 7
