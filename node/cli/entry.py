"""Where `ftnode` begins. While its modules load, a tenth of a second or more, Ctrl-C just ends the process: nothing is
begun yet, and Python would show which import it was in."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> int:
    """The exit code of `ftnode.node.cli.main.main`. Where SIGINT is ignored, as behind a shell's &, it stays so."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ftnode.node.cli.main import main as run

    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:  # in the moment between
        return 130


def run_and_exit() -> NoReturn:
    sys.exit(main())
