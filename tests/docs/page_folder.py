"""What the pages take for granted: some texts, a tokenizer's file, a manifest, and a run that is going on."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.docs.markdown_page import Block
from tests.docs.shell_session import BlockFailed, Session
from tests.node.data.corpora import text_folder, tokenizer_file, words

SMALL_RUN = "run.toml"
START_SECONDS = 600.0
"""A busy machine starts torch slowly."""


def prepare(folder: Path) -> None:
    """Whatever a page does not make by itself, under the names that the pages use."""
    text_folder(folder / "texts", count=400)
    (folder / "text.txt").write_text("".join(words(f"line {number}", 40) for number in range(400)))
    lines = (f'{{"text": "{words(f"record {number}", 40).strip()}"}}\n' for number in range(40))
    (folder / "more.jsonl").write_text("".join(lines))
    tokenizer_file(folder)


class SmallRun:
    """A meeting point and a volunteer of a small run, which pages that make no manifest of their own share. It starts
    anew after a page that has ended it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session: Session | None = None
        self._peer = ""

    def lend(self, folder: Path) -> tuple[str, Path]:
        """The address of the meeting point, and the home. `folder` gets the manifest, and the traces as a demo's."""
        if self._session is None or not self._goes_on(self._session):
            self.end()
            session = Session(Path(self._folder) / str(len(list(self._folder.iterdir()))))
            self._session = session
            session.run(Block(0, "sh", "", MAKE), START_SECONDS)
            self._peer = start(session, SMALL_RUN)
            session.run(Block(0, "sh", "", SNAPSHOT), START_SECONDS)
        shutil.copy(self._session.folder / SMALL_RUN, folder)
        (folder / "ftnode-demo").symlink_to(self._session.home / "logs")
        return self._peer, self._session.home

    def _goes_on(self, session: Session) -> bool:
        try:
            return "training" in session.run(Block(0, "sh", "", f"ftnode status --peer {self._peer}"), START_SECONDS)
        except BlockFailed:
            return False

    def end(self) -> None:
        if self._session is not None:
            self._session.end()


def start(session: Session, manifest: str) -> str:
    """Starts both in the session's home, and waits for the first step. Returns the address of the meeting point."""
    session.run(Block(0, "sh", "", START.format(manifest=manifest)), START_SECONDS)
    return (session.folder / ".peer").read_text().strip()


MAKE = f"""
ftnode run init {SMALL_RUN} --stages 2 --steps 1000000
sed -i -E 's/^snapshot_every = .*/snapshot_every = 10/; s/^dim = .*/dim = 32/; s/^hidden = .*/hidden = 64/
    s/^(microbatches|sequences|layers) = .*/\\1 = 2/; s/^window = .*/window = 2/' {SMALL_RUN}
ftnode run sign {SMALL_RUN}
"""
"""Steps of some milliseconds, so that all that a step brings is soon there."""
SNAPSHOT = """
until ls "$FTNODE_HOME"/snapshots/*/*/*/index.json > /dev/null 2>&1; do sleep 0.2; done
"""
START = """
ftnode bootstrap --listen /ip4/127.0.0.1/tcp/0 --metrics none > .meeting.log 2>&1 &
until grep -q '^to join' .meeting.log; do sleep 0.2; done
sed -n 's/^address: //p' .meeting.log | head -n 1 > .peer
ftnode join {manifest} --peer "$(cat .peer)" --threads 1 --metrics none > .volunteer.log 2>&1 &
VOLUNTEER=$!
until grep -qs '"commit"' "$FTNODE_HOME"/logs/*/*/metrics.jsonl; do
    kill -0 $VOLUNTEER || {{ cat .volunteer.log; exit 1; }}
    sleep 0.2
done
"""
