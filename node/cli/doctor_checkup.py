"""What a machine needs for ftnode, judged: figures in, one verdict with its fix out. Nothing here looks or asks.

`failed` means that `ftnode join` would not work as it is; `warning`, that it works worse than it could.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ftnode.node.directory.records import CLOCK_SKEW_MS_MAX
from ftnode.node.watch.clock_offset import FIX, SECONDS_GOOD, ClockOffset, median

OK, WARNING, FAILED = "ok", "warning", "failed"
PYTHONS: Final = ((3, 11), (3, 12), (3, 13))
NEEDED: Final = ("torch", "hivemind", "libp2p", "trio", "msgpack")
CLOCK_SECONDS_MAX: Final = CLOCK_SKEW_MS_MAX / 1000
"""Beyond, others refuse what we put into the directory."""
GIB: Final = 1 << 30
DISK_BYTES_MIN: Final = 1 << 29
"""A node's trace, logs and metrics at their bounds: 256 + 2 x 64 + 2 x 16 MiB, and some air."""
DISK_BYTES_GOOD: Final = 2 * GIB
MEMORY_BYTES_MIN: Final = 1 << 29
"""An idle node has 373 MB (docs/reference/performance.md)."""
MEMORY_BYTES_GOOD: Final = 2 * GIB


@dataclass(frozen=True, slots=True)
class Check:
    """One line. `fix` is empty when all is well."""

    name: str
    verdict: str
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What one peer answered; `trouble` when it did not."""

    peer: str
    trouble: str = ""
    version: str = ""
    clock_ahead: float | None = None
    """Seconds that its clock is ahead of ours; None when it does not say."""
    clock_doubt: float = 0.0
    """Half of the time that the answer took."""
    opened: str | None = None
    """Where it got through to us, empty: nowhere; None when it did not try."""


def versions(python: tuple[int, int], installed: Mapping[str, str], p2pd: str) -> Check:
    """`installed`: version by distribution, empty when missing. `p2pd`: what is wrong with it."""
    name = "versions"
    told = ", ".join(f"{package} {installed[package]}" for package in ("ftnode", *NEEDED) if installed.get(package))
    text = f"python {platform.python_version()}, {told}"
    missing = [package for package in NEEDED if not installed.get(package)]
    if python not in PYTHONS:
        return Check(name, FAILED, text, "use Python 3.11, 3.12 or 3.13")
    if missing:
        return Check(name, FAILED, f"{text}; {', '.join(missing)} missing", "install ftnode again with pip install .")
    if p2pd:
        return Check(name, FAILED, f"{text}; {p2pd}", "install hivemind from a wheel")
    return Check(name, OK, text)


def same_version(ours: str, peers: Sequence[PeerAnswer]) -> Check | None:
    """None while nobody answers."""
    told = sorted({peer.version for peer in peers if peer.version})
    if not told:
        return None
    other = [version for version in told if version.split(".")[:2] != ours.split(".")[:2]]
    if other:
        text = f"here {ours}, peers have {', '.join(other)}"
        return Check("peer versions", WARNING, text, "use the version that the others use")
    return Check("peer versions", OK, f"peers have {', '.join(told)}")


def home(trouble: str, where: str, there: bool = True) -> Check:
    """`there`: it has been made."""
    if trouble:
        return Check("home", FAILED, trouble, "make the folder yours, or choose another with --home")
    return Check("home", OK, f"{where} can be written" if there else f"{where} is not there yet; ftnode join makes it")


def signed_words(unusable: Sequence[str]) -> Check | None:
    """`unusable`: files of the home with what others have signed, and why. None while all can be read."""
    if not unusable:
        return None
    more = f" (and {len(unusable) - 1} more)" if len(unusable) > 1 else ""
    fix = "see to its rights; a damaged one is of no use, so remove it"
    return Check("signed words", WARNING, f"{unusable[0]}{more}", fix)


def port(listen: Sequence[str], trouble: str, running: Sequence[str]) -> Check:
    """`running`: addresses of nodes of this home that listen already."""
    if running:
        return Check("port", OK, f"a node of this home listens on {', '.join(running[:2])}")
    if trouble:
        cause, _, fix = trouble.partition("; ")
        return Check("port", FAILED, cause, fix or "choose another --listen")
    return Check("port", OK, f"can listen on {', '.join(listen)}")


def peers(asked: Sequence[PeerAnswer], given: bool) -> Check:
    """`given`: the user named them, so that silence is a failure."""
    if not asked:
        fix = "pass --peer ADDR of a meeting point or a volunteer; without one nobody can say whether you are reachable"
        return Check("peers", WARNING, "none is known", fix)
    answered = [peer for peer in asked if not peer.trouble]
    if answered:
        return Check("peers", OK, f"{len(answered)} of {len(asked)} answered")
    why = "; ".join(f"{peer.peer[-6:]}: {peer.trouble}" for peer in asked[:3])
    return Check("peers", FAILED if given else WARNING, f"none answers ({why})", "check the address and your firewall")


def reachability(asked: Sequence[PeerAnswer], reach: str) -> Check | None:
    """`reach`: what a node that runs here found out. None while nobody can tell."""
    name = "reachability"
    fix = "forward the port and use --announce, or let a meeting point relay (docs/how-to/watch-a-run.md)"
    if reach:
        kind = reach.split(":", 1)[0]
        verdict = {"direct": OK, "punched": OK, "nobody": FAILED}.get(kind, WARNING)
        return Check(name, verdict, reach, "" if verdict == OK else fix)
    tried = [peer for peer in asked if peer.opened is not None]
    if not tried:
        return None
    deaf = [peer for peer in tried if not peer.opened]
    if deaf:
        return Check(name, WARNING, f"{deaf[0].peer[-6:]} does not get through to this machine", fix)
    where = tried[0].opened or ""
    near = "; it is on this machine, ask one elsewhere" if "/127.0.0.1/" in where or "/::1/" in where else ""
    return Check(name, OK, f"{tried[0].peer[-6:]} gets through at {where}{near}")


def clock(asked: Sequence[PeerAnswer]) -> Check | None:
    """By the majority of those who tell the time: the median. None when nobody does."""
    offset = median([ClockOffset(peer.clock_ahead, peer.clock_doubt) for peer in asked if peer.clock_ahead is not None])
    if offset is None:
        return None
    if offset.off > CLOCK_SECONDS_MAX:
        return Check("clock", FAILED, f"{offset}; beyond {CLOCK_SECONDS_MAX:.0f} s others refuse our records", FIX)
    wrong = offset.off > SECONDS_GOOD
    return Check("clock", WARNING if wrong else OK, str(offset), FIX if wrong else "")


def disk(free: int, where: str) -> Check:
    text = f"{free / GIB:.1f} GiB free at {where}"
    if free >= DISK_BYTES_GOOD:
        return Check("disk", OK, text)
    fix = "make room, or choose another place with --log-dir"
    return Check("disk", FAILED if free < DISK_BYTES_MIN else WARNING, f"{text}; logs and traces take half of one", fix)


def memory(available: int | None) -> Check:
    if available is None:
        return Check("memory", WARNING, "this system does not say how much is free", "use Linux")
    text = f"{available / GIB:.1f} GiB free"
    if available >= MEMORY_BYTES_GOOD:
        return Check("memory", OK, text)
    fix = "end other programs; ftnode run show says what a stage of the run needs"
    return Check("memory", FAILED if available < MEMORY_BYTES_MIN else WARNING, f"{text}; a node needs 0.4 itself", fix)


def gpu(found: Mapping[str, Any], card: bool) -> Check:
    """`found`: compute_probe's answer, or `trouble` alone. `card`: the system has an NVIDIA card."""
    devices = found.get("devices") or []
    if devices:
        told = ", ".join(
            f"{each['name']} ({each['memory_free'] / GIB:.0f} GiB free, {each['precision']})" for each in devices[:4]
        )
        return Check("gpu", OK, f"{told}; ftnode join takes one that is free")
    trouble = str(found.get("trouble") or "")
    if found.get("late"):
        fix = "end other programs, since this machine is busy or its disk slow, and check again"
        return Check("gpu", FAILED, f"torch took too long to start: {trouble}", fix)
    if "torch" not in found:
        return Check("gpu", FAILED, f"torch does not start: {trouble or 'it said nothing'}", "install torch again")
    if card:
        why = trouble or ("this torch has no CUDA" if not found.get("cuda") else "torch sees none")
        return Check("gpu", WARNING, f"there is an NVIDIA card, but {why}", "install its driver and a torch with CUDA")
    return Check("gpu", OK, "none; the processor computes")
