"""The Quart app: the whole API behind Hypercorn, over HTTP/1.1 and h2c.

Quart's own routing is not used. It would see the decoded path and answer in HTML; here every method and
every raw path goes to the one route table. A client that leaves while its request is under way cancels
it, down to the shard.
"""

import time
from collections.abc import Callable
from typing import cast

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from quart import Quart
from quart.wrappers import Request as QuartRequest
from quart.wrappers import Response as QuartResponse
from quart.wrappers import Websocket as QuartWebsocket
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest, TrioResponse
from quart_trio.wrappers.request import TrioBody

from gateway.context import Gateway
from gateway.door import answer
from gateway.http import Headers, Request, Response, error_response, path_of
from topics import errors


class _Body(TrioBody):
    """A body that can be given up: what still arrives is dropped, not collected."""

    given_up = False

    def append(self, data: bytes) -> None:
        if not self.given_up:
            super().append(data)


class _Request(TrioRequest):
    body_class = _Body


class _Connection(TrioASGIHTTPConnection):
    """One request and its response.

    Quart's version cancels the task that sends when Hypercorn reports the end of the stream, and that task
    is then still inside Hypercorn, about to start the idle timer of the connection. Without the timer an
    idle connection would hold up a shutdown. Here only the handler is cancelled, never the sending.
    """

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        # Quart parses `path` and may fail on it; ours is `raw_path`.
        super().__init__(app, cast("HTTPScope", {**scope, "path": "/"}))

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        gateway = cast("GatewayApp", self.app).gateway
        gateway.under_way += 1
        try:
            await self._answer(receive, send)
        finally:
            gateway.under_way -= 1

    async def _answer(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        request = self._create_request_from_scope(send)
        response: QuartResponse | None = None
        async with trio.open_nursery() as nursery:
            handling = trio.CancelScope()
            nursery.start_soon(self._receive, request, receive, handling.cancel)
            with handling:
                response = await self.app.handle_request(request)  # type: ignore[assignment]
            if response is not None:
                await self._send_response(send, response)
            nursery.cancel_scope.cancel()

    async def _receive(
        self, request: QuartRequest, receive: ASGIReceiveCallable, client_left: Callable[[], None]
    ) -> None:
        await super(TrioASGIHTTPConnection, self).handle_messages(request, receive)
        client_left()


class GatewayApp(QuartTrio):
    asgi_http_class = _Connection
    request_class = _Request

    def __init__(self, gateway: Gateway) -> None:
        super().__init__("gateway", static_folder=None)
        self.gateway = gateway
        # Ours are in gateway/body.py; a long-poll may take as long as it was asked to.
        self.config["MAX_CONTENT_LENGTH"] = None
        self.config["BODY_TIMEOUT"] = None
        self.config["RESPONSE_TIMEOUT"] = None

    async def handle_request(self, quart_request: QuartRequest) -> QuartResponse:
        scope = cast("HTTPScope", quart_request.scope)
        body = cast("_Body", quart_request.body)
        request = Request(
            method=scope["method"],
            raw_path=path_of(scope["raw_path"]),
            query_string=scope["query_string"],
            headers=Headers(scope["headers"]),
            arrived_ns=time.monotonic_ns(),
        )
        response = await answer(self.gateway, request, body)
        body.given_up = True
        return _quart_response(response)

    async def handle_websocket(self, websocket: QuartWebsocket) -> QuartResponse:
        return _quart_response(error_response(errors.RouteNotFound(websocket.path), time.monotonic_ns()))


def _quart_response(response: Response) -> QuartResponse:
    converted = TrioResponse(response.body, response.status)
    converted.headers.clear()
    for name, value in response.headers:
        converted.headers.add(name, value)
    return converted
