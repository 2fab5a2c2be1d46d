"""Who asks a public page, and how often each may: so many at once, and so many a second from then on.

Behind a reverse proxy all connections come from the proxy, which writes into X-Forwarded-For whom it asks for. That
header says the truth only as far as proxies of ours wrote it: everybody else can write anything into it, and would be a
new client at every question. So it is read from its end, as long as the one who wrote the entry is a proxy of ours.
The machine's own addresses are; others have to be named. A home has a network of IPv6 to itself, of 2^64 addresses,
and is one client.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from typing import Final

from ftnode.node.links.hosts import Ip, household
from ftnode.node.links.newest import newest
from ftnode.node.links.tokens import Tokens
from ftnode.protocol.words.errors import UserError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PER_SECOND: Final = 10.0
"""Twenty pages at a time, as behind the router of a school."""
AT_ONCE: Final = 100.0
"""To open a page takes 20 or so."""
TOKEN_BYTES: Final = 1 << 14
"""An answer costs one token, and one for each so many bytes."""
CLIENTS_MAX: Final = 4096
"""Whose tokens are remembered; the one that was silent for longest is forgotten first."""
HOPS_MAX: Final = 8
CONNECTIONS_MAX: Final = 512
CONNECTIONS_EACH: Final = 16
"""A browser opens six."""
THIS_MACHINE: Final[tuple[Network, ...]] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


def parse_proxies(texts: Sequence[str]) -> tuple[Network, ...]:
    """Those named, and this machine. Raises UserError (64)."""
    found: list[Network] = [*THIS_MACHINE]
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise UserError(f"--proxy {text} is no network; write 10.0.0.2 or 10.0.0.0/24") from None
    return tuple(found)


def client_of(sender: str, forwarded: str, proxies: Sequence[Network]) -> str:
    """Who asks. `sender`: the other end of the connection. `forwarded`: X-Forwarded-For as it came."""
    found = _address(sender)
    for entry in reversed(forwarded.split(",")[-HOPS_MAX:]):
        if found is None or not _is_among(found, proxies):
            break
        named = _address(entry)
        if named is None:
            break
        found = named
    return "" if found is None else household(str(found))


class PublicClients:
    """How much each client may still ask. Not thread-safe."""

    def __init__(self, proxies: Sequence[Network]) -> None:
        self._proxies = proxies
        self._tokens: dict[str, Tokens] = {}

    def of(self, sender: str, forwarded: str) -> str:
        return client_of(sender, forwarded, self._proxies)

    def wait(self, client: str, now: float) -> int:
        """Whole seconds until it may ask again; 0: it may, and this is a question."""
        tokens = self._tokens.get(client) or Tokens(PER_SECOND, AT_ONCE, now)
        newest(self._tokens, client, tokens, CLIENTS_MAX)
        missing = 1 - tokens.left(now)
        if missing > 0:
            return math.ceil(missing / PER_SECOND)
        tokens.take()
        return 0

    def got(self, client: str, size: int) -> None:
        """An answer of so many bytes, after `wait` let it ask."""
        self._tokens[client].take(size // TOKEN_BYTES)

    def connections_of(self, sender: str) -> int:
        """At a time; those of a proxy are everybody's."""
        address = _address(sender)
        shared = address is not None and _is_among(address, self._proxies)
        return CONNECTIONS_MAX if shared else CONNECTIONS_EACH


def _address(text: str) -> Ip | None:
    """What a header says is not led further than to ::ffff:, so that nothing else passes for a proxy of ours."""
    try:
        found = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _is_among(address: Ip, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
