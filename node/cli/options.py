"""Options that several commands share, and checks of what was typed into them."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ftnode.node.home.duration import DURATION_SECONDS_MAX, typed_seconds
from ftnode.node.home.paths import whole_path
from ftnode.node.machine.device_choice import devices_of
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_options"

DEVICE = re.compile(r"cpu|cuda(:\d{1,2})?")
Command = TypeVar("Command", bound=Callable[..., Any])


class Once(click.Option):
    """An option with one value. Given twice it is refused: of any other option the last value counts."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=1)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        given = opts.get(self.name or "")
        if isinstance(given, list):
            if len(given) > 1:
                raise click.BadParameter("given more than once, and takes one value", ctx, self)
            opts = {**opts, self.name or "": given[0]}
        return super().consume_value(ctx, opts)


def warn(line: str) -> None:
    """Of what the command goes on in spite of, beside its output."""
    click.echo(f"ftnode: {line}", err=True)


class WholeRange(click.IntRange):
    """A whole number. Help and errors say its range as a person does."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            int(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no whole number, {range_text(self)}", param, ctx)
        return int(super().convert(value, param, ctx))

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N"

    def _describe_range(self) -> str:
        return range_text(self)


class FiniteRange(click.FloatRange):
    """Without nan, which lies in every range, and infinity, which lies in the open ones."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            finite = math.isfinite(float(value))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no number, {range_text(self)}", param, ctx)
        number = float(super().convert(value, param, ctx))
        if not finite:
            self.fail(f"{value} is no finite number.", param, ctx)
        return number

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "SECONDS" if (getattr(param, "help", "") or "").startswith("Seconds") else "X"

    def _describe_range(self) -> str:
        return range_text(self)


def number_text(number: float) -> str:
    """`0.5`, `20` and, with all its digits, `10000000`: nobody types 1e+07."""
    return str(int(number)) if number == int(number) else f"{number:.10g}"


def range_text(kind: click.IntRange | click.FloatRange) -> str:
    """`1 to 64`, `0 or more`, `more than 0`."""
    low, high = (None if number is None else number_text(number) for number in (kind.min, kind.max))
    if high is None:
        return f"more than {low}" if kind.min_open else f"{low} or more"
    return f"more than {low}, up to {high}" if kind.min_open else f"{low} to {high}"


class TypedPath(click.Path):
    """A path as a person types it, looked at before the command runs: no command has to expect one that this user may
    not look at, or that no file system takes. Whether something is there is for the command to say."""

    def __init__(self, purpose: str, exit_code: int, access: int, dir_okay: bool = True) -> None:
        super().__init__(dir_okay=dir_okay, readable=False, path_type=Path)
        self._purpose, self._exit_code, self._access = purpose, exit_code, access

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if value == "":
            self.fail("is empty; name a file", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if value == "-":
            self.fail("nothing is read from a pipe or written to one here; a file of this name is ./-", param, ctx)
        try:
            path.stat()
            if not os.access(path, self._access):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise UserError(
                f"cannot {self._purpose} {path}: {error.strerror}; check the path, and who owns it", self._exit_code
            ) from None
        return path


INPUT = TypedPath("read", 66, os.R_OK)
OUTPUT = TypedPath("write", 73, os.F_OK)
OUTPUT_FILE = TypedPath("write", 73, os.F_OK, dir_okay=False)

home_option = click.option(
    "--home", metavar="DIR", help="Folder for identities and remembered peers; default: the platform's data folder."
)
unused_home_option = click.option("--home", metavar="DIR", hidden=True, help="Not used; every command takes it.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
snapshot_limit_option = click.option(
    "--snapshot-limit", metavar="GB", type=FiniteRange(0, 1e9, min_open=True), default=20.0, show_default=True,
    help="Disk for all snapshots below --home.",
)  # fmt: skip
port_mapping_option = click.option(
    "--port-mapping/--no-port-mapping", default=True, show_default=True,
    help="Have the router keep a port open for this machine, where it offers that (UPnP, NAT-PMP).",
)  # fmt: skip
relay_option = click.option(
    "--relay", type=click.Choice(["auto", "on", "off"]), default="auto", show_default=True,
    help="Relay for volunteers whom nobody can dial, within --up; auto: not on a metered or slow line.",
)  # fmt: skip
peer_option = click.option(
    "--peer", "peers", multiple=True, metavar="ADDR", help="Multiaddr of a peer, /ip4/…/p2p/12D3…; repeats."
)
run_option = click.option(
    "--run", "run", metavar="RUN", callback=lambda context, option, value: value or "",
    help="Which run, where a meeting point knows several: its name, its id, or the beginning of that.",
)  # fmt: skip
link_argument = click.argument("link", required=False, default="")
"""An ftnode: link, as people pass it on; it names a run and peers."""


def _named(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value == "":  # as of a shell's variable that is not set: it is no word for all of them
        raise click.BadParameter("is empty; give a part of a PeerId, or leave it out", context, option)
    return value


volunteer_option = click.option(
    "--peer", "peer", metavar="PEERID", callback=_named,
    help="Only this one of several; as much of its PeerId as is unique.",
)  # fmt: skip
"""Of this machine's volunteers; `peer_option` names others."""
metrics_option = click.option(
    "--metrics", default="auto", show_default=True, metavar="HOST:PORT",
    help="Where Prometheus finds /metrics. auto: 127.0.0.1:9464, or the next port that is free. none: nowhere.",
)  # fmt: skip


def check_metrics(listen: str) -> None:
    """Raises UserError (64) when it is neither an address nor none."""
    from ftnode.node.watch.metrics_server import parse_listen

    parse_listen(listen)


def seconds_of(_context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Of `30s`, `2m` or `1m30s`; None where nothing is given. Raises UserError (64)."""
    if text is None:
        return None
    seconds = typed_seconds(text)
    if seconds is None or not 0 < seconds <= DURATION_SECONDS_MAX:
        raise UserError(f"{option.opts[0]} {text} is no time; write 30s or 2m")
    return seconds


def _known_device(_context: click.Context, _option: click.Parameter, device: str) -> str:
    if not DEVICE.fullmatch(device):
        raise UserError(f"--device {device} is unknown; use cpu, cuda or cuda:N")
    return device


def _named_devices(_context: click.Context, _option: click.Parameter, devices: str) -> str:
    devices_of(devices)
    return devices


devices_option = click.option(
    "--device", default="auto", show_default=True, callback=_named_devices, metavar="DEVICE[,DEVICE...]",
    help="auto: the NVIDIA card that is free, else the processor. Or cpu, cuda, cuda:N, or several cards: "
    "cuda:0,cuda:1.",
)  # fmt: skip
compile_option = click.option(
    "--compile/--no-compile", "compiled", default=False, show_default=True,
    help="Have torch compile the blocks for the device before a stage is claimed: faster steps, a minute or more at "
    "the start. Takes a C compiler.",
)  # fmt: skip
device_option = click.option(
    "--device", default="cpu", show_default=True, callback=_known_device, help="cpu, cuda or cuda:N."
)


def readable_data(option: str | None) -> Path | None:
    """--data as a path whose file or folder can be opened. Raises UserError (66)."""
    if option is None:
        return None
    path = whole_path(option)
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            next(path.iterdir(), None)
        elif stat.S_ISREG(kind):
            path.open("rb").close()
        else:  # to open a pipe would wait for whoever writes
            raise OSError(errno.EINVAL, "it is a device, a pipe or a socket")
    except OSError as error:
        raise UserError(
            f"cannot read the data {path}: {error.strerror}; pass a text file or a folder of them", 66
        ) from None
    return path
