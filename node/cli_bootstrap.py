"""`ftnode bootstrap` and `ftnode id`: who this machine is, and a meeting point for others."""

from __future__ import annotations

import click

from ftnode.node.cli_options import check_metrics, home_option, metrics_option


@click.command()
@click.option(
    "--listen", multiple=True, metavar="ADDR", default=("/ip4/0.0.0.0/tcp/31337",), show_default=True,
    help="Multiaddr to listen on; repeats.",
)  # fmt: skip
@metrics_option
@home_option
def bootstrap(listen: tuple[str, ...], metrics: str, home: str | None) -> int | None:
    """Host a meeting point: newcomers dial it first. It trains nothing and holds nothing of a run. Ctrl-C ends it."""
    from ftnode.bootstrap.server import run
    from ftnode.node.identity import home_directory
    from ftnode.node.listening import check_listen

    check_metrics(metrics)
    check_listen(listen)
    return run(listen=listen, home=home_directory(home), metrics=metrics)


@click.command("id")
@home_option
def identity(home: str | None) -> None:
    """Print the PeerId that the next node of this home will have; made when there is none yet."""
    from ftnode.node.identity import home_directory, take_identity

    taken = take_identity(home_directory(home))
    click.echo(taken.peer_id)
    taken.release()
