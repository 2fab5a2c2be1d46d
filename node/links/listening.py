"""Whether we can listen where the user wants, and announce what the user says, asked before p2pd starts.

p2pd sets SO_REUSEPORT: a second one on the same port starts without complaint and takes half of the first one's
connections. So the port is tried first with an ordinary bind, which another listener makes fail.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from ftnode.node.links.names import name_in, with_host
from ftnode.protocol.words.errors import UserError

EXAMPLE = "/ip4/0.0.0.0/tcp/31337"
FAMILIES = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}
KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def address_bytes(address: str) -> bytes:
    """Binary form of a multiaddr. Raises ValueError when it is none."""
    try:
        data: bytes = Multiaddr(address).to_bytes()
    except (MultiaddrError, ValueError, TypeError) as error:
        raise ValueError(f"{address[:200]!r} is no multiaddr") from error
    return data


def address_text(data: bytes) -> str:
    """Text form of a binary multiaddr. Raises ValueError when it is none."""
    try:
        return str(Multiaddr(data))
    except (MultiaddrError, ValueError, TypeError) as error:
        raise ValueError("no multiaddr") from error


def socket_address(address: str) -> tuple[socket.AddressFamily, socket.SocketKind, str, int] | None:
    """(family, kind, host, port) of an address that starts with /ip4|ip6/HOST/tcp|udp/PORT; None for other kinds.

    Relayed addresses are other kinds: what answers there is the relay. Raises ValueError when it is no multiaddr.
    """
    address_bytes(address)
    parts = address.strip("/").split("/")
    if "p2p-circuit" in parts or len(parts) < 4 or parts[0] not in FAMILIES or parts[2] not in KINDS:
        return None
    return FAMILIES[parts[0]], KINDS[parts[2]], parts[1], int(parts[3])


def everywhere(port: int) -> tuple[str, ...]:
    """All addresses of this machine, of each version of IP that it has; 0: ports that the system chooses."""
    every = (("/ip4/0.0.0.0", socket.AF_INET, "127.0.0.1"), ("/ip6/::", socket.AF_INET6, "::1"))
    return tuple(f"{unspecified}/tcp/{port}" for unspecified, family, loopback in every if _speaks(family, loopback))


def _speaks(family: socket.AddressFamily, loopback: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((loopback, 0))
    except OSError:
        return False
    return True


def check_listen(addresses: Iterable[str]) -> None:
    """Raises UserError when an address is no multiaddr to listen on, or cannot be bound now."""
    for address in addresses:
        try:
            target = socket_address(address)
        except ValueError:
            raise UserError(f"{address!r} is no multiaddr; write it like {EXAMPLE}", 64) from None
        if target is None or target[1] is not socket.SOCK_STREAM:  # links are of TCP alone
            raise UserError(f"cannot listen on {address!r}; write it like {EXAMPLE}", 64)
        _check_bind(address, *target)


def check_announce(addresses: Sequence[str], listen: Sequence[str]) -> None:
    """Raises UserError when an address is none that others could dial, or leads nowhere as we listen nowhere."""
    if addresses and not listen:
        raise UserError("--announce needs a --listen address where what comes there arrives; leave --listen none out")
    for address in addresses:
        try:
            target = socket_address(with_host(address, "192.0.2.1") if name_in(address) else address)
        except ValueError:
            target = None
        if target is None or target[3] == 0 or ipaddress.ip_address(target[2]).is_unspecified:
            raise UserError(
                f"cannot announce {address!r}; write what others dial, like /ip4/192.0.2.7/tcp/31337 or "
                "/dns4/swarm.example.org/tcp/31337"
            )


def from_here(listen: Sequence[str]) -> tuple[str, ...]:
    """Where this machine itself reaches what listens there. A port that the system chooses is not known yet."""
    found = []
    for address in listen:
        target = socket_address(address)
        if target is not None and target[3]:
            loopback = "::1" if target[0] == socket.AF_INET6 else "127.0.0.1"
            found.append(with_host(address, loopback if ipaddress.ip_address(target[2]).is_unspecified else target[2]))
    return tuple(found)


def on_loopback(listen: Sequence[str]) -> bool:
    """Whether nobody but this machine can come in: it listens on loopback alone, or nowhere."""
    targets = [socket_address(address) for address in listen]
    return all(target is not None and ipaddress.ip_address(target[2]).is_loopback for target in targets)


def _check_bind(address: str, family: socket.AddressFamily, kind: socket.SocketKind, host: str, port: int) -> None:
    with _socket(address, family, kind) as probe:
        if family == socket.AF_INET6:  # as p2pd does: who listens on IPv4 alone has another port
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:  # else the last owner's closing connections would count as in use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(*_bind_error(address, port, error)) from None


def _socket(address: str, family: socket.AddressFamily, kind: socket.SocketKind) -> socket.socket:
    try:
        return socket.socket(family, kind)
    except OSError:
        raise UserError(f"{address}: this machine has no such addresses; leave it out", 69) from None


def _bind_error(address: str, port: int, error: OSError) -> tuple[str, int]:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {address} is in use; choose another, or 0 for any free one", 69
    if error.errno == errno.EADDRNOTAVAIL:
        everything = "/ip6/::" if address.startswith("/ip6/") else "/ip4/0.0.0.0"
        return f"{address} is no address of this machine; use {everything}/tcp/{port} for all of them", 69
    if error.errno == errno.EACCES:
        return f"no permission to listen on {address}; choose a port above 1023", 77
    return f"cannot listen on {address}: {error.strerror}", 69
