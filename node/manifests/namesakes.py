"""Runs of the same name with another id: somebody has edited the manifest, has an old one, or likes the name.

A name belongs to nobody; a run is its id. So that a stranger's notice can stop nobody, all of it is one line of text.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from ftnode.node.directory.directory import read_statements
from ftnode.node.directory.link import DirectoryDown, DirectoryLink
from ftnode.node.directory.records import RUNS_KEY, RunNotice
from ftnode.protocol.manifest.parse import Manifest

log = logging.getLogger(__name__)


IDS_SHOWN: Final = 3


async def namesakes_line(link: DirectoryLink, manifest: Manifest) -> str:
    """What to tell the owner when the directory knows runs of this name with other ids, and not this one; else ""."""
    try:
        notices = await read_statements(link, RUNS_KEY, int(time.time() * 1000))
    except DirectoryDown as error:
        log.info("no look at other runs: %s", error)
        return ""
    named = {
        notice.run for notice in notices if isinstance(notice.body, RunNotice) and notice.body.name == manifest.run.name
    }
    if not named or manifest.run_id in named:
        return ""
    others = ", ".join(run[:8] for run in sorted(named)[:IDS_SHOWN])
    more = f" and {len(named) - IDS_SHOWN} more" if len(named) > IDS_SHOWN else ""
    return (
        f"somebody announces another run named {manifest.run.name!r} ({others}{more}); this file is run "
        f"{manifest.run_id[:8]}, and nobody else of it is here yet. If you meant theirs, get its file from them"
    )
