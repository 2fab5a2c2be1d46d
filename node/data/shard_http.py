"""Missing shards from a folder behind an http(s) address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from ftnode.node.data.shard_sources import BLOCK_SECONDS, Delivery, NotFetched
from ftnode.node.links.bandwidth import Gate

CONNECT_SECONDS: Final = 10.0
REDIRECTS_MAX: Final = 5


class HttpShards:
    """A folder behind an address, with the index in it. What came is kept, and the rest asked for by Range."""

    def __init__(self, base: str, limit: Gate | None = None) -> None:
        """`base` may have a name and a password, of which nothing is shown. `limit`: of what this node takes from
        others."""
        self.label, self._auth = _apart(base)
        self._limit = limit
        self._base = self.label.rstrip("/")

    @asynccontextmanager
    async def open(self, name: str, start: int, size_max: int) -> AsyncIterator[Delivery]:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        timeout = httpx.Timeout(BLOCK_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with (
                httpx.AsyncClient(
                    auth=self._auth, timeout=timeout, follow_redirects=True, max_redirects=REDIRECTS_MAX
                ) as client,
                client.stream("GET", f"{self._base}/{name}", headers=headers) as answer,
            ):
                begins, size = _range(answer, start)
                if size > size_max:
                    raise NotFetched(f"{name} has {size} bytes there, where at most {size_max} are right")
                yield Delivery(begins, size, _within(self._limit, answer.aiter_raw()))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotFetched(f"{name}: {str(error) or type(error).__name__}") from None

    def blame(self, reason: str) -> None:
        """An address cannot be struck; the reason is told."""


def _apart(base: str) -> tuple[str, httpx.BasicAuth | None]:
    """The address, and the name and password that it had."""
    try:
        parts = urlsplit(base)
    except ValueError:
        return base, None  # which nobody can open
    if parts.username is None:
        return base, None
    shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return shown, httpx.BasicAuth(unquote(parts.username), unquote(parts.password or ""))


async def _within(limit: Gate | None, blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for block in blocks:
        if limit is not None:
            await limit.spend(len(block))
        yield block


def _range(answer: httpx.Response, start: int) -> tuple[int, int]:
    """Where the bytes begin, and the file's length as far as the server says it. Raises NotFetched."""
    if answer.status_code == httpx.codes.PARTIAL_CONTENT:
        unit, _, rest = answer.headers.get("Content-Range", "").partition(" ")
        begins = rest.partition("-")[0]
        if unit != "bytes" or begins != str(start):
            raise NotFetched("an answer with another range than asked for")
        return start, start + _length(answer)
    if answer.status_code != httpx.codes.OK:
        absent = answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.GONE)
        raise NotFetched(f"{answer.request.url}: {answer.status_code} {answer.reason_phrase}", absent)
    return 0, _length(answer)


def _length(answer: httpx.Response) -> int:
    length = answer.headers.get("Content-Length", "0")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 16 else 0
