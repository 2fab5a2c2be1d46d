"""Runs of the same name with another manifest: what a volunteer is told when nobody of its own run is to be found."""

from __future__ import annotations

import logging
import time

from ftnode.node.directory import read_statements
from ftnode.node.directory_link import DirectoryDown, DirectoryLink
from ftnode.node.directory_records import RUNS_KEY, RunNotice
from ftnode.protocol.errors import UserError
from ftnode.protocol.manifest import Manifest

log = logging.getLogger(__name__)


async def namesake(link: DirectoryLink, manifest: Manifest) -> UserError | None:
    """What is wrong (78) when peers announced a run of this name, but not this one: the manifest was edited."""
    try:
        notices = await read_statements(link, RUNS_KEY, int(time.time() * 1000))
    except DirectoryDown as error:
        log.info("no look at other runs: %s", error)
        return None
    named = {
        notice.run for notice in notices if isinstance(notice.body, RunNotice) and notice.body.name == manifest.run.name
    }
    if not named or manifest.run_id in named:
        return None
    return UserError(
        f"manifest hash differs: the swarm's run {manifest.run.name!r} is {min(named)[:8]}, this file is "
        f"{manifest.run_id[:8]}; get the swarm's file, or give yours another run.name to start a new run",
        78,
    )
