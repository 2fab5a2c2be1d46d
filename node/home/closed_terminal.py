"""A terminal that is closed: what a program that was started there hears, and where it then prints."""

from __future__ import annotations

import os
import signal
import sys


def heeded(*numbers: signal.Signals) -> tuple[signal.Signals, ...]:
    """Those of the signals that are not ignored: nohup has a program ignore SIGHUP, and that stays so."""
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)


def forget_output() -> None:
    """Nobody reads the standard output any more. Python would complain of it again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
