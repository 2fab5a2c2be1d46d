"""What `ftnode dashboard --public` answers: anyone, under any name and behind any path, but each only so often."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from ftnode.node.watch.http_server import HttpLimits, HttpRequest, HttpResponse
from ftnode.node.watch.public_clients import CONNECTIONS_MAX, PublicClients
from ftnode.node.watch.public_page import Document, PublicPage

IDLE_SECONDS: Final = 10.0
REQUEST_BYTES_MAX: Final = 1 << 14
"""Nginx and Caddy pass on as much or less."""
FILE_SECONDS: Final = 300
"""For which files may be kept: after an update of ftnode they may be old for as long."""


class PublicSite:
    """`files`: by path. `clock`: seconds."""

    def __init__(
        self,
        page: PublicPage,
        clients: PublicClients,
        files: Mapping[str, HttpResponse],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._page, self._clients, self._files, self._clock = page, clients, files, clock
        self.limits = HttpLimits(
            CONNECTIONS_MAX, True, IDLE_SECONDS, REQUEST_BYTES_MAX, requests=None,
            connections_of=clients.connections_of,
        )  # fmt: skip

    def answer(self, question: HttpRequest) -> HttpResponse:
        client = self._clients.of(question.sender, question.forwarded)
        wait = self._clients.wait(client, self._clock())
        if wait:
            told = f"too many questions; ask again in {wait} s\n".encode()
            return HttpResponse(HTTPStatus.TOO_MANY_REQUESTS, "text/plain", told, retry_seconds=wait)
        found = self._found(question)
        self._clients.got(client, len(found.packed or found.body))
        return found

    def _found(self, question: HttpRequest) -> HttpResponse:
        if question.method not in ("GET", "HEAD") or question.has_body:
            return HttpResponse(HTTPStatus.NOT_IMPLEMENTED, "text/plain", b"there is only GET, without a body\n")
        if question.path == "/look":
            return _json(self._page.news())
        if question.path == "/past":
            return _json(self._page.past())
        nothing = HttpResponse(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n")
        return self._files.get(question.path, nothing)


def _json(document: Document) -> HttpResponse:
    cache = f"public, max-age={document.seconds}"
    return HttpResponse(HTTPStatus.OK, "application/json", document.body, document.packed, cache)
