"""`ftnode`: one verb per thing that a person does.

Every command lives in a module that is loaded when it is called (lazy_group.py); what a command needs in turn (torch,
libp2p, pictures) loads later still. This is also where the packages meet: commands of the lab live in
`ftnode.lab.commands` and stand here by name alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from ftnode.node.cli.complaints import ReaderGoneError, is_of_output, report, report_group
from ftnode.node.cli.completion import check_request
from ftnode.node.cli.lazy_group import LazyGroup
from ftnode.node.cli.letters import spell_out
from ftnode.protocol.words.errors import UserError

ERRORS = "cli"

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
        "run": (run_group, "Write, validate, sign and share the manifest of a run."),
        "data": (data_group, "Make token shards of text to train on."),
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
        "snapshots": (snapshots_group, "What this machine keeps of runs' stages."),
        "export": ("ftnode.node.cli.export:export", "Take the trained model out, as a Hugging Face checkpoint."),
        "generate": ("ftnode.node.cli.export:generate", "Let an exported model go on with a text."),
        "config": (config_group, "Show values of config.toml and environment."),
        "id": ("ftnode.node.cli.bootstrap:identity", "Print this machine's PeerId."),
        "replay": ("ftnode.lab.commands.traces:replay", "Run a recorded trace through the core again."),
        "lab": (lab_group, "Measure, audit and experiment on this machine."),
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
        return report_group(group)
    except (click.exceptions.ClickException, click.Abort, UserError, KeyboardInterrupt, BrokenPipeError) as error:
        return report(error)
    except ReaderGoneError:
        return report(BrokenPipeError())
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename is not None:
            return report(UserError(f"cannot use {error.filename}: {error.strerror}; see who owns it", 77))
        if not is_of_output(error):
            raise
        return report(error)
    return result if isinstance(result, int) else 0


def run_and_exit() -> NoReturn:
    sys.exit(main())
