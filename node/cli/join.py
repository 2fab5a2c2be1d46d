"""`ftnode join`: check all that can be checked here, then become a node."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftnode.node.cli.limits import limits_options
from ftnode.node.cli.options import (
    FiniteRange,
    WholeRange,
    check_metrics,
    compile_option,
    devices_option,
    home_option,
    json_option,
    metrics_option,
    peer_option,
    port_mapping_option,
    readable_data,
    relay_option,
    seconds_of,
    snapshot_limit_option,
    warn,
)
from ftnode.node.home.paths import typed_path, whole_path
from ftnode.node.owner.join_options import JoinConfig, log_root
from ftnode.node.owner.limits import Limits, check_limits
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.compute.devices import Devices

ERRORS = "cli_join"

VOUCHER_BYTES_MAX = 16_384
SITE = re.compile(r"[\w.:/-]{0,64}")


def _site(_context: click.Context, _option: click.Parameter, name: str) -> str:
    if not SITE.fullmatch(name):
        raise UserError(f"--site {name} is no name; write letters, digits, . : / - and _, 64 at most")
    return name


def _voucher(_context: click.Context, _option: click.Parameter, given: str) -> str:
    """What was typed, or what stands in the file of that name. Raises UserError: 65 for what is none, 66 for a file
    that cannot be read."""
    if not given:
        return ""
    from ftnode.node.manifests.joining import read_voucher
    from ftnode.node.manifests.voucher import BEGINNING

    text = given.strip()
    if not text.startswith(BEGINNING):
        path = typed_path(given)
        try:
            with path.open("rb") as file:
                text = file.read(VOUCHER_BYTES_MAX).decode("ascii", "replace").strip()
        except OSError as error:
            why = error.strerror
            raise UserError(f"--voucher {given[:60]}: {why}; pass the text that begins with ftvouch1.", 66) from None
    read_voucher(text)
    return text


@click.command()
@click.argument("run", metavar="MANIFEST|LINK")
@peer_option
@click.option(
    "--voucher", metavar="TEXT|FILE", default="", callback=_voucher,
    help="By which a volunteer of the run vouches for this node (ftnode run vouch). It is kept for the next start.",
)  # fmt: skip
@click.option("--allow-unsigned", is_flag=True, help="Join a run whose manifest nobody has signed.")
@click.option("--hold", type=WholeRange(1), help="Stages to hold at most; default: as many as fit into memory.")
@click.option(
    "--data", metavar="PATH",
    help="Corpus, a text file or a folder of them, needed to hold the head; of token shards those that are here, or an "
    "http(s) address of their folder.",
)  # fmt: skip
@click.option(
    "--from", "start", metavar="FOLDER",
    help="Folder of the model that the run begins with; default: its layers are fetched from others.",
)  # fmt: skip
@click.option(
    "--data-limit", metavar="GB", type=FiniteRange(0, 1e9, min_open=True), default=50.0, show_default=True,
    help="Fetch the run's token shards only when they are not larger.",
)  # fmt: skip
@click.option(
    "--keep-snapshots", type=WholeRange(0, 1000), default=2, show_default=True, metavar="N",
    help="Snapshots of each of its own stages that this node keeps on its disk, where the run asks for them; 0: none.",
)  # fmt: skip
@snapshot_limit_option
@devices_option
@click.option("--threads", type=WholeRange(1, 1024), help="Processor cores to use; default: all.")
@compile_option
@limits_options
@click.option(
    "--listen", multiple=True, metavar="ADDR",
    help="Multiaddr to listen on; repeats. Default: all of this machine, IPv4 and IPv6. none: nowhere, others reach us "
    "through a relay.",
)  # fmt: skip
@click.option(
    "--announce", multiple=True, metavar="ADDR",
    help="Multiaddr where others reach us instead of where we listen, as behind a forwarded port; repeats.",
)  # fmt: skip
@port_mapping_option
@relay_option
@click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=60.0, show_default=True,
    help="Seconds to look for a peer before giving up.",
)  # fmt: skip
@click.option(
    "--log-dir",
    metavar="DIR",
    help="Folder for log and trace, beside earlier ones; default: a new one in the platform's state folder or home.",
)
@click.option(
    "--log-limit", metavar="GB", type=FiniteRange(0, 1e6, min_open=True), default=2.0, show_default=True,
    help="Disk for the logs of all starts; the oldest are removed at the next start. Not with --log-dir.",
)  # fmt: skip
@click.option("--dump-rebuilds", is_flag=True, help="Keep weights of rebuilds and of the end as files.")
@click.option("--until-exported", is_flag=True, help="Leave when all steps are done and somebody has the model.")
@click.option(
    "--hash-every", type=WholeRange(0), default=0, show_default=True, metavar="STEPS",
    help="Hash the weights after every so many steps, for the audit; 0: never.",
)  # fmt: skip
@click.option(
    "--compute", type=click.Choice(["torch", "paced"]), default="torch", show_default=True,
    help="paced sleeps instead of computing, to measure pipelines.",
)  # fmt: skip
@click.option(
    "--paced-seconds", type=(FiniteRange(0, 60), FiniteRange(0, 60)), default=(0.02, 0.04), show_default=True,
    metavar="FORWARD BACKWARD", help="Of a paced stage, per microbatch.",
)  # fmt: skip
@click.option(
    "--schedule", multiple=True, metavar="[DAYS] HH:MM-HH:MM",
    help="Hours of local time to work in, as 22:00-07:00 or 'sat,sun 00:00-24:00'; repeats. Outside of them it pauses.",
)  # fmt: skip
@click.option(
    "--max-temp", type=FiniteRange(0, 150, min_open=True), metavar="DEGREES",
    help="Pause while the device (the GPU, else the processor) is hotter, in Celsius.",
)  # fmt: skip
@click.option(
    "--max-load", type=FiniteRange(0, 100, min_open=True), metavar="PERCENT",
    help="Pause while other programs use more of all cores.",
)  # fmt: skip
@click.option(
    "--pause-on-battery/--run-on-battery", default=True, show_default=True, help="Pause while no charger is plugged in."
)
@click.option(
    "--pause-for-gpu/--share-gpu", default=True, show_default=True,
    help="Pause while another program computes on the same GPU.",
)  # fmt: skip
@click.option(
    "--hand-over", type=FiniteRange(0), default=60.0, show_default=True, metavar="SECONDS",
    help="A pause waits so long at most for others to learn what only this node holds.",
)  # fmt: skip
@click.option(
    "--notice", metavar="TIME", callback=seconds_of,
    help="End so long after SIGTERM, as 30s, having handed over what is worth most; default: when all is handed over.",
)  # fmt: skip
@click.option(
    "--name", metavar="NAME", default="",
    help="What others are shown beside this node's PeerId, in lists of who gave what; default: nothing.",
)  # fmt: skip
@click.option(
    "--site", metavar="NAME", default="", callback=_site,
    help="Where this machine is, as a building or a provider's region; default: what its public address implies.",
)  # fmt: skip
@metrics_option
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Of node.log."
)
@click.option("--quiet", is_flag=True, help="Keep no live line at the bottom of a terminal.")
@json_option
@home_option
def join(
    run: str, peers: tuple[str, ...], voucher: str, allow_unsigned: bool, hold: int | None, data: str | None,
    start: str | None, data_limit: float, keep_snapshots: int, snapshot_limit: float, device: str, threads: int | None,
    compiled: bool, listen: tuple[str, ...], announce: tuple[str, ...], port_mapping: bool, relay: str, timeout: float,
    log_dir: str | None, log_limit: float, dump_rebuilds: bool, until_exported: bool, hash_every: int, compute: str,
    paced_seconds: tuple[float, float], schedule: tuple[str, ...], max_temp: float | None, max_load: float | None,
    pause_on_battery: bool, pause_for_gpu: bool, hand_over: float, notice: float | None, name: str, site: str,
    metrics: str, log_format: str, quiet: bool, as_json: bool, home: str | None, limits: Limits,
) -> int | None:  # fmt: skip
    """Volunteer for the run of the file MANIFEST, or of the ftnode: LINK that somebody gave you. Ctrl-C leaves
    cleanly."""
    url = data if data is not None and data.startswith(("http://", "https://")) else ""
    path = readable_data(None if url else data)

    from ftnode.node.home.identity import home_path
    from ftnode.node.home.name_card import check_name
    from ftnode.node.manifests.joining import find_run
    from ftnode.node.owner.hours import parse_schedule
    from ftnode.node.owner.pause_rules import OwnerRules

    rules = OwnerRules(parse_schedule(schedule), max_temp, pause_on_battery, pause_for_gpu, max_load)
    name = check_name(name)
    check_metrics(metrics)
    listen = listen_addresses(listen)
    announce = _announced(announce, listen)
    folder = home_path(home)
    checked, text, invited = find_run(run, folder, timeout, allow_unsigned, joins=True)
    _check_data(checked, path, url)
    model_folder = _checked_start(checked, start)
    check_limits(limits, checked)
    devices = _devices(device, compute, checked, shared=not pause_for_gpu)
    config = JoinConfig(
        manifest=checked,
        manifest_text=text,
        peers=_peers(folder, (*peers, *invited)),
        hold=min(hold or checked.pipeline.stages + 1, checked.pipeline.stages + 1),
        data=path,
        device=devices.names,
        device_why=devices.why,
        threads=threads or os.cpu_count() or 1,
        compiled=compiled,
        listen=listen,
        announce=announce,
        port_mapping=port_mapping,
        relay=relay,
        home=folder,
        timeout=timeout,
        log_directory=_log_directory(log_dir, home, checked),
        dump_rebuilds=dump_rebuilds,
        hash_every=hash_every,
        compute_backend=compute,
        forward_seconds=paced_seconds[0],
        backward_seconds=paced_seconds[1],
        json=as_json,
        metrics=metrics,
        log_format=log_format,
        quiet=quiet,
        until_exported=until_exported,
        data_url=url,
        data_bytes_max=int(data_limit * 1e9),
        keep_snapshots=keep_snapshots,
        snapshot_bytes_max=int(snapshot_limit * 1e9),
        rules=rules,
        hand_over_seconds=hand_over,
        notice_seconds=notice or 0.0,
        limits=limits,
        given=(*peers, *invited),
        log_bytes_max=0 if log_dir else int(log_limit * 1e9),
        name=name,
        site=site,
        start=model_folder,
        voucher=voucher,
    )

    from ftnode.node.life.lives import run as volunteer

    return volunteer(config)


def _announced(announce: tuple[str, ...], listen: tuple[str, ...]) -> tuple[str, ...]:
    """Where others reach us, with numbers for names. Raises UserError for addresses that cannot be, `listen`'s too."""
    from ftnode.node.links.listening import check_announce, check_listen
    from ftnode.node.links.names import looked_up

    check_listen(listen)
    check_announce(announce, listen)
    return looked_up(announce)


def _devices(named: str, compute: str, manifest: Manifest, shared: bool) -> Devices:
    """What a paced node is said to compute on has nothing to do. Raises UserError (69)."""
    from ftnode.node.compute.devices import Devices, decide
    from ftnode.node.home.waiting import spoken
    from ftnode.node.machine.device_choice import AUTO, CONTEXT_BYTES

    if compute != "torch":
        return Devices("cpu" if named == AUTO else named)
    with spoken("torch to say what it finds"):
        return decide(named, manifest.stage_state_bytes + CONTEXT_BYTES, shared)


def _check_data(manifest: Manifest, path: Path | None, url: str) -> None:
    """Raises UserError when what was passed as --data is nothing for this run."""
    kind = manifest.data.kind
    if url and kind != "shards":
        raise UserError(f"--data {url}: only token shards come over http, and this run's data.kind is {kind}")
    if path is not None and kind == "shards":
        from ftnode.node.data.corpus import check_shards

        check_shards(path, manifest)


def _checked_start(manifest: Manifest, given: str | None) -> Path | None:
    """The folder passed as --from. Raises UserError when it is nothing for this run."""
    if given is None:
        return None
    if not manifest.start.weights:
        raise UserError(f"--from {given}: this run begins with random weights; leave it out")
    path = typed_path(given)
    if not path.is_dir():
        raise UserError(f"--from {given}: there is no such folder; leave it out, and others' layers are fetched", 66)
    from ftnode.models.config import ModelConfig
    from ftnode.models.first_weights import open_checkpoint
    from ftnode.models.huggingface import NoModel

    try:
        open_checkpoint(path, ModelConfig.of(manifest.model))
    except NoModel as error:
        raise UserError(f"--from: {error}; pass the folder of the run's model, or leave it out", 65) from None
    except OSError as error:
        raise UserError(f"--from: cannot read {error.filename or path}: {error.strerror}; leave it out", 66) from None
    return path


def listen_addresses(given: tuple[str, ...]) -> tuple[str, ...]:
    """`none`, by itself, is no address; without any, all of this machine are meant. Raises UserError (64)."""
    if "none" not in given:
        from ftnode.node.links.listening import everywhere

        return given or everywhere(0)
    if len(given) > 1:
        raise UserError("--listen none stands alone; leave the other --listen out, or none", 64)
    return ()


def _peers(home: Path, given: tuple[str, ...]) -> tuple[str, ...]:
    """Those given first, then those remembered. Raises UserError (64) when an address is none, or there is no peer."""
    from ftnode.node.links.addresses import full_addresses, parse_peers, remembered_peers
    from ftnode.node.owner.service_homes import nodes_here

    checked = [full for peer in parse_peers(given) for full in full_addresses(peer.peer_id, peer.addresses)]
    peers = tuple(dict.fromkeys([*checked, *remembered_peers(home, warn)]))
    if not peers and (here := [node for node in nodes_here(home) if node.addresses]):
        what = "a volunteer" if here[0].run else "a meeting point"
        raise UserError(f"no peer to start from; {what} runs here: pass --peer {here[0].addresses[0]}")
    if not peers:
        raise UserError("no peer to start from; pass --peer ADDR, or start a meeting point with: ftnode bootstrap")
    return peers


def _log_directory(option: str | None, home: str | None, manifest: Manifest) -> Path:
    """A folder of this node's own, so that no trace is ever written over."""
    if option is not None:
        return whole_path(option)
    started = time.strftime("%Y%m%d-%H%M%S")
    return log_root(home) / f"{manifest.run.name}-{manifest.run_id[:8]}" / f"{started}-{os.getpid()}"
