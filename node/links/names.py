"""Host names in multiaddrs, and the IP addresses that they stand for now. p2pd looks names up by itself; who dials
without it does it here. Nobody dials a name at somebody else's word (dial_rules.py), so what others are told has none.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio

from ftnode.protocol.words.errors import UserError

FAMILIES: Final = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}
NUMBERS_MAX: Final = 8
"""IP addresses of one name that are used."""


def name_in(address: str) -> str:
    """The name that stands in a multiaddr like /dns4/NAME/tcp/31337; empty where there is an IP address."""
    kind, _, rest = address.strip("/").partition("/")
    return rest.partition("/")[0] if kind in FAMILIES else ""


def with_host(address: str, host: str) -> str:
    """The address with an IP address in place of its first two parts."""
    rest = address.strip("/").split("/")[2:]
    return "/".join(["", "ip6" if ":" in host else "ip4", host, *rest])


async def look_up(address: str) -> tuple[str, ...]:
    """The address by number, once for each IP address of its name; without a name, itself. Who calls it has the
    deadline. Raises OSError, whose `strerror` says why the name leads nowhere."""
    if not name_in(address):
        return (address,)
    with _no_name_is_an_oserror():
        found = await trio.socket.getaddrinfo(name_in(address), None, _family(address), socket.SOCK_STREAM)
    return _numbered(address, found)


def looked_up(addresses: Sequence[str]) -> tuple[str, ...]:
    """As `look_up`, for a command before its start. Raises UserError (69)."""
    numbered: list[str] = []
    for address in addresses:
        name = name_in(address)
        if not name:
            numbered.append(address)
            continue
        try:
            with _no_name_is_an_oserror():
                found = socket.getaddrinfo(name, None, _family(address), socket.SOCK_STREAM)
        except OSError as error:
            raise UserError(f"the name {name} leads nowhere: {error.strerror}; write an IP address", 69) from None
        numbered += _numbered(address, found)
    return tuple(dict.fromkeys(numbered))


@contextmanager
def _no_name_is_an_oserror() -> Iterator[None]:
    """What cannot be a host's name Python does not even look up."""
    try:
        yield
    except UnicodeError:
        raise OSError(errno.EINVAL, "it is no host name") from None


def _family(address: str) -> socket.AddressFamily:
    return FAMILIES[address.strip("/").partition("/")[0]]


def _numbered(address: str, found: Sequence[tuple[Any, ...]]) -> tuple[str, ...]:
    hosts = dict.fromkeys(str(entry[4][0]) for entry in found)
    return tuple(with_host(address, host) for host in list(hosts)[:NUMBERS_MAX])
