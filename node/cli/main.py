"""`ftnode`: one verb per thing that a person does.

Every command lives in a module that is loaded when it is called, so that `ftnode --help` is quick; what a command
needs in turn (torch, libp2p, pictures) loads later still. This is also where the packages meet: commands of the lab
live in `ftnode.lab.commands` and stand here by name alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from traceback import walk_tb
from typing import Any, NoReturn

import click

from ftnode.node.cli.completion import check_request, complete_paths
from ftnode.node.cli.lab_by_name import is_installed, load
from ftnode.node.cli.letters import spell_out
from ftnode.node.cli.typed_wrongly import told
from ftnode.node.home.closed_terminal import forget_output
from ftnode.protocol.words.errors import UserError

ERRORS = "cli"

INTERRUPTED = 130
USAGE = 64
CONFIGURATION = 78
MEANT = {"check": "validate", "new": "init", "create": "init", "stop": "leave", "start": "join", "info": "show"}
"""What some type → the command that does it, where a group has it."""
OPTIONS_MEANT = {"limits": ("--up", "--down", "--vram", "--threads", "--nice"), "hours": ("--schedule",)}
"""What some type as a command → options of `ftnode join`."""
ORIGIN = "ftnode.origin"
"""In click's meta: where the value stands that an error complains of."""


class ReaderGoneError(Exception):
    """A BrokenPipeError that click may not see: it would end the process with 1, which a command that has found
    something wrong ends with."""


class LazyGroup(click.Group):
    """A group that knows the one-line help of its commands without loading them."""

    def __init__(self, name: str, about: str, table: dict[str, tuple[str, str]]) -> None:
        super().__init__(name, help=about, context_settings={"help_option_names": ["-h", "--help"]})
        self.table = table
        """Command name → ("module:attribute", one line of help)."""

    def leaves(
        self, words: tuple[str, ...] = (), installed: bool = False
    ) -> Iterator[tuple[tuple[str, ...], Callable[[], click.Command]]]:
        """Every command below this group by its words, with what loads it; `installed`: those that can be loaded.
        Groups stand in this file."""
        for name, (place, _) in self.table.items():
            module, _, attribute = place.partition(":")
            group = globals().get(attribute)
            if isinstance(group, LazyGroup):
                yield from group.leaves((*words, name), installed)
            elif not installed or is_installed(module):
                yield (*words, name), partial(self._load, name)

    def _load(self, name: str) -> click.Command:
        module, _, attribute = self.table[name][0].partition(":")
        command = getattr(load(module), attribute)
        assert isinstance(command, click.Command)
        return complete_paths(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        return self._load(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.table.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`help` before a command asks for that command's, and alone for the group's own. An option of commands that
        stands before them is told its place."""
        try:
            return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)
        except click.NoSuchOption as error:
            if error.option_name not in ("--home", "--json", "--peer", "--run", "--timeout"):
                raise
            ctx.fail(f"{error.option_name} goes behind the command: {ctx.command_path} COMMAND {error.option_name}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            ctx.fail(f"no command is called {args[0]}; {self._hint(args[0], ctx.command_path)}")
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None and not isinstance(command, click.Group):
            _configure(ctx, command, (*ctx.command_path.split()[1:], name), list(rest))
        return name, command, rest

    def _hint(self, word: str, path: str) -> str:
        """What somebody means who types `word` for a command of this group, which is called `path`."""
        from difflib import get_close_matches

        near = [MEANT[word]] if MEANT.get(word) in self.table else get_close_matches(word, [*self.table, "help"], 1)
        if near:
            return f"did you mean {near[0]}?"
        if word in ("version", "--version"):
            return "it is: ftnode --version"
        if "join" in self.table:
            taken = {name for option in self._load("join").params for name in option.opts}
            if options := [name for name in OPTIONS_MEANT.get(word, (f"--{word}",)) if name in taken]:
                return f"ftnode join takes {', '.join(options)}"
        below = [f"{path} {' '.join(words)}" for words, _ in self.leaves() if words[-1] == word]
        return f"did you mean {' or '.join(below)}?" if below else f"there are {', '.join(self.table)}"

    def invoke(self, ctx: click.Context) -> Any:
        """An error that complains of a value says where that stands, when it was not typed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error
        except (UserError, click.BadParameter) as error:
            where = ctx.meta[ORIGIN](error) if ORIGIN in ctx.meta else ""
            if not where:
                raise
            text = told(error) if isinstance(error, click.BadParameter) else str(error)
            raise UserError(f"in {where}: {text}", CONFIGURATION) from None


def _configure(ctx: click.Context, command: click.Command, words: tuple[str, ...], arguments: list[str]) -> None:
    """Values of the environment and of config.toml, for this command. Its owner can stop a node whatever they say."""
    from ftnode.node.cli.config_file import (
        ConfigFile,
        check_sections,
        check_values,
        config_path,
        forgo,
        home_among,
        named,
        prepare,
        read_config,
    )

    owners = words[0] in ("pause", "resume", "leave")
    path = config_path(home_among(arguments, words))
    file = ConfigFile(path)
    try:
        if words[0] != "config":
            file = read_config(path)
            check_sections(file, [words for words, _ in cli.leaves()])
        prepare(command, words, file)
        if owners:
            check_values(command, words, file)
    except UserError as error:
        if not owners:
            raise
        _say(f"goes on without the configuration: {error} [{error.code}]")
        file = ConfigFile(path)
        forgo(command)
    _warn_of_strays()
    ctx.meta[ORIGIN] = lambda error: named(error, words, arguments, command, file)


def _warn_of_strays() -> None:
    """One line for each variable that is misspelt before its command's name is over: no command would complain."""
    from ftnode.node.cli.config_file import keys_of, stray_line, strays, variable

    for name in strays(os.environ, (words for words, _ in cli.leaves())):
        known = [variable(words, key) for words, command in cli.leaves(installed=True) for key in keys_of(command())]
        _say(stray_line(name, known))


run_group = LazyGroup(
    "run",
    "Write, validate, sign and share the manifest of a run.",
    {
        "init": ("ftnode.node.cli.manifest:init", "Write a commented manifest."),
        "validate": ("ftnode.node.cli.manifest:validate", "Check a manifest and say what it needs."),
        "show": ("ftnode.node.cli.manifest:show", "Print a manifest's values, sizes and link."),
        "sign": ("ftnode.node.cli.manifest:sign_manifest", "Sign a manifest after an edit."),
        "vouch": ("ftnode.node.cli.vouch:vouch", "Vouch for somebody who wants to take part."),
        "fetch": ("ftnode.node.cli.run_peers:fetch", "Get the manifest behind a link."),
        "push": ("ftnode.node.cli.run_peers:push", "Tell a swarm who else may join."),
        "announce": ("ftnode.node.cli.run_peers:announce", "Tell volunteers and watchers something."),
        "rollback": ("ftnode.node.cli.run_rollback:rollback", "Order a swarm to undo steps."),
    },
)

data_group = LazyGroup(
    "data",
    "Make token shards of text to train on, and check them.",
    {
        "tokenizer": ("ftnode.node.cli.data:tokenizer_of", "Train a tokenizer on text."),
        "build": ("ftnode.node.cli.data:build", "Make token shards of text, JSON lines, Parquet or a dataset."),
        "check": ("ftnode.node.cli.data:check", "Hash every file of a folder of shards again."),
    },
)

snapshots_group = LazyGroup(
    "snapshots",
    "What this machine keeps of runs' stages, for a swarm that is switched off.",
    {
        "list": ("ftnode.node.cli.snapshots:list_snapshots", "List the snapshots that are kept here."),
        "show": ("ftnode.node.cli.snapshots:show", "Print what is known of a snapshot."),
        "verify": ("ftnode.node.cli.snapshots:verify", "Read snapshots and compare their hashes."),
        "save": ("ftnode.node.cli.snapshots:save", "Have the node save its stages once, to a folder."),
        "prune": ("ftnode.node.cli.snapshots:prune", "Remove all but the last snapshots of each stage."),
        "divide": ("ftnode.node.cli.snapshots_divide:divide", "Make snapshots for a run with other stages."),
    },
)

config_group = LazyGroup(
    "config",
    "What commands take when nothing is typed.",
    {
        "show": ("ftnode.node.cli.config:show", "Print values, and where each comes from."),
        "path": ("ftnode.node.cli.config:path", "Print where the configuration file is."),
    },
)

lab_group = LazyGroup(
    "lab",
    "Measure, audit and experiment on this machine.",
    {
        "audit": ("ftnode.lab.commands.traces:audit", "Check all traces of a finished run against each other."),
        "transport": ("ftnode.lab.commands.parts:transport", "Tensor path against p2pd, hivemind and py-libp2p."),
        "throughput": ("ftnode.lab.commands.benchmarks:throughput", "A swarm's tokens/s against one torch process."),
        "outage": ("ftnode.lab.commands.benchmarks:outage", "Seconds from the loss of a sole holder to the next step."),
        "pause": (
            "ftnode.lab.commands.benchmarks:pause_cost",
            "What a pause costs the swarm, and how soon it frees memory.",
        ),
        "scaling": ("ftnode.lab.commands.benchmarks:scaling", "What replicas of the slowest stage are worth."),
        "elastic": ("ftnode.lab.commands.benchmarks:elastic", "What joins and losses of replicas cost the others."),
        "encoding": ("ftnode.lab.commands.parts:encoding", "What encoding boundary tensors takes of a stage's work."),
        "reduction": ("ftnode.lab.commands.parts:reduction", "Seconds that a group takes to sum a gradient."),
        "sums": ("ftnode.lab.commands.parts:sums", "Seconds and loss of encoded sums on thin lines."),
        "watch": ("ftnode.lab.commands.parts:watch", "What looking at a swarm costs."),
        "watchers": ("ftnode.lab.commands.parts:watchers", "What many watchers of a public page cost."),
        "export": ("ftnode.lab.commands.benchmarks:export_speed", "Memory and speed of an export while a run goes on."),
        "limits": ("ftnode.lab.commands.benchmarks:limits", "Whether a volunteer's limits hold."),
        "lines": ("ftnode.lab.commands.lines:lines", "What a step takes over volunteers' lines."),
        "routers": ("ftnode.lab.commands.routers:routers", "Which way two volunteers find, by their routers."),
        "codecs": ("ftnode.lab.commands.codecs:codecs", "Steps times seconds of a step, by codec and optimiser."),
        "planner": ("ftnode.lab.commands.planner:planner", "The planner against its rivals, in simulated failures."),
        "gpu": ("ftnode.lab.commands.gpu:gpu", "What one stage makes of a card, against a plain torch loop."),
        "hostile": ("ftnode.lab.commands.hostile:hostile", "What attacks do to a swarm."),
        "liars": ("ftnode.lab.commands.liars:liars", "What volunteers that lie do to a run, and who is found."),
        "memory": ("ftnode.lab.commands.benchmarks:memory", "Resident memory of an idle node, by process."),
        "dashboard": ("ftnode.lab.commands.parts:dashboard_bench", "First paint and memory of the dashboard's page."),
        "world": ("ftnode.lab.commands.parts:world", "Speed of the virtual world."),
        "data": ("ftnode.lab.commands.parts:data", "Speed and memory of data build against the tokenizer library."),
        "snapshots": ("ftnode.lab.commands.parts:snapshots", "What keeping a stage costs, against two libraries."),
        "adapters": ("ftnode.lab.commands.parts:adapters", "Training a part of a model: what it gives, what is lost."),
        "optimisers": ("ftnode.lab.commands.parts:optimisers", "Loss and cost of a step, by optimiser."),
        "recovery": ("ftnode.lab.commands.recovery:recovery", "What each way of rebuilding a lost stage is worth."),
    },
)

cli = LazyGroup(
    "ftnode",
    "Train one model together: a swarm owns the stages of a pipeline, loses some, and rebuilds them by itself.",
    {
        "demo": ("ftnode.lab.commands.demo:demo", "A swarm on this machine trains, loses a stage and heals."),
        "run": ("ftnode.node.cli.main:run_group", "Write, validate, sign and share the manifest of a run."),
        "data": ("ftnode.node.cli.main:data_group", "Make token shards of text to train on."),
        "bootstrap": ("ftnode.node.cli.bootstrap:bootstrap", "Host a meeting point."),
        "join": ("ftnode.node.cli.join:join", "Volunteer for a run."),
        "status": ("ftnode.node.cli.status:status", "Watch a swarm."),
        "dashboard": ("ftnode.node.cli.dashboard:dashboard", "Watch a swarm on a web page."),
        "logs": ("ftnode.node.cli.logs:logs", "Show the newest log of this machine's node."),
        "health": ("ftnode.node.cli.health:health", "Say whether this machine's nodes are well."),
        "service": ("ftnode.node.cli.service:service", "Print a systemd unit for a node."),
        "peers": ("ftnode.node.cli.status:list_peers", "Who is in the swarm."),
        "credits": ("ftnode.node.cli.credits:list_credits", "Who gave what to a run."),
        "doctor": ("ftnode.node.cli.doctor:doctor", "Check what this machine needs, and say what to do."),
        "tensorboard": ("ftnode.node.cli.tensorboard:tensorboard", "A node's metrics for TensorBoard."),
        "pause": ("ftnode.node.cli.pause:pause", "Step aside for a while: hand over, free memory and GPU."),
        "resume": ("ftnode.node.cli.pause:resume", "Go on after a pause."),
        "leave": ("ftnode.node.cli.leave:leave", "Hand over and stop volunteering."),
        "snapshots": ("ftnode.node.cli.main:snapshots_group", "What this machine keeps of runs' stages."),
        "export": ("ftnode.node.cli.export:export", "Take the trained model out, as a Hugging Face checkpoint."),
        "generate": ("ftnode.node.cli.export:generate", "Let an exported model go on with a text."),
        "config": ("ftnode.node.cli.main:config_group", "Show values of config.toml and environment."),
        "id": ("ftnode.node.cli.bootstrap:identity", "Print this machine's PeerId."),
        "replay": ("ftnode.lab.commands.traces:replay", "Run a recorded trace through the core again."),
        "lab": ("ftnode.node.cli.main:lab_group", "Measure, audit and experiment on this machine."),
    },
)


def _version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """One line for scripts; on stderr what a node of this machine has seen to be newer. Asks nobody."""
    if not wanted or context.resilient_parsing:
        return
    from ftnode.node.cli.config_file import home_among
    from ftnode.node.home.identity import home_path
    from ftnode.node.owner.service_homes import homes_beside
    from ftnode.node.watch.versions import VERSION, read_note

    click.echo(f"ftnode {VERSION}")
    with suppress(UserError):  # a user without a home directory
        found = [note for home in homes_beside(home_path(home_among((), ()))) if (note := read_note(home))]
        if found:
            click.echo(str(found[0]), err=True)
    context.exit()


click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version and exit. Says on stderr whether a node of this machine has met a newer one.",
)(cli)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code, by sysexits. What goes wrong by the user's hand is one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    spell_out(sys.stdout, sys.stderr)
    try:
        check_request(os.environ)
        result = cli.main(args=words, prog_name="ftnode", standalone_mode=False)
        if sys.stdout is not None:  # which it is where that was closed
            sys.stdout.flush()
    except BaseExceptionGroup as group:
        return _group(group)
    except (click.exceptions.ClickException, click.Abort, UserError, KeyboardInterrupt, BrokenPipeError) as error:
        return _report(error)
    except ReaderGoneError:
        return _report(BrokenPipeError())
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename is not None:
            return _report(UserError(f"cannot use {error.filename}: {error.strerror}; see who owns it", 77))
        if not _is_of_output(error):
            raise
        return _report(error)
    return result if isinstance(result, int) else 0


def _report(error: BaseException) -> int:
    """Say an expected error in one line, and return its exit code."""
    if isinstance(error, UserError):
        _say(f"{error} [{error.code}]")
        return error.exit_code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    if isinstance(error, click.ClickException):
        _say(f"{told(error)}{_usage(error)} [E64-usage]")
        return USAGE
    if isinstance(error, BrokenPipeError):
        forget_output()  # who reads us has enough, as in `ftnode status | head`
        return 141
    if isinstance(error, OSError):
        forget_output()
        return _report(UserError(f"cannot write to the standard output: {error.strerror}; see where it leads", 74))
    return INTERRUPTED


def _usage(error: click.ClickException) -> str:
    """Where help is; how a command is used, for who uses it otherwise than it is meant."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return ""
    see = f"see {context.command_path} --help"
    asks = type(error) in (click.UsageError, click.MissingParameter)
    if not asks or isinstance(context.command, click.Group):
        return f" ({see})"
    return f"; use: {' '.join((context.command_path, *context.command.collect_usage_pieces(context)))} ({see})"


def _is_of_output(error: BaseException) -> bool:
    """Whether the standard output did not take what a command says, as on a full disk, or still does not."""
    if not isinstance(error, OSError):
        return False
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if frames and frames[-1].f_code is click.echo.__code__:
        return True
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _group(group: BaseExceptionGroup[BaseException]) -> int:
    """Errors out of nurseries: one line when all are expected; else it is a bug, and shown whole."""
    leaves = list(_leaves(group))
    if not all(isinstance(leaf, (UserError, KeyboardInterrupt)) or _is_of_output(leaf) for leaf in leaves):
        raise group
    return _report(next((leaf for leaf in leaves if isinstance(leaf, UserError)), leaves[0]))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


def _say(message: str) -> None:
    """One line. Messages quote files and peers: what could control a terminal becomes a question mark."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in " ".join(message.split()))
    print(f"ftnode: {shown}", file=sys.stderr)


def run_and_exit() -> NoReturn:
    sys.exit(main())
