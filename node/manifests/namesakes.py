"""A run of the same name with other values: somebody has edited the manifest, or has an old one."""

from __future__ import annotations

import logging
import time

from ftnode.node.directory.directory import read_statements
from ftnode.node.directory.link import DirectoryDown, DirectoryLink
from ftnode.node.directory.records import RUNS_KEY, RunNotice
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError

log = logging.getLogger(__name__)


async def find_namesake(link: DirectoryLink, manifest: Manifest) -> UserError | None:
    """What to tell the owner when the directory knows a run of this name with another id, and not this one."""
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
        f"{manifest.run_id[:8]}; get the swarm's file, or give yours another run.name to start a new run", 78,
    )  # fmt: skip
