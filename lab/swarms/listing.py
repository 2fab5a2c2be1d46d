"""A run that only listed volunteers may join, signed by an author of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftnode.lab.swarms.swarm import Swarm
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.manifests.authorship import author_key, sign
from ftnode.protocol.manifest.parse import Manifest, Membership, parse, render


def list_volunteers(swarm: Swarm, manifest: Manifest, names: Sequence[str], join: str = "listed") -> Manifest:
    """`manifest`, signed, for the volunteers of these names alone, or with `join="vouched"` also for whom they vouch
    for. The swarm's file has it from now on."""
    membership = Membership(join=join, peers=tuple(peer_id(swarm, name) for name in names), revision=1)
    key = author_key(home_directory(str(swarm.directory / "author")))
    signed = sign(render(replace(manifest, membership=membership)), key)
    key.release()
    swarm.manifest.write_text(signed, encoding="utf-8")
    return parse(signed)


def peer_id(swarm: Swarm, name: str) -> str:
    """Of the volunteer that has this home, or will have it; no node may run there now."""
    taken = take_identity(home_directory(str(swarm.directory / "homes" / name)))
    taken.release()
    return taken.peer_id
