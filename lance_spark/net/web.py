"""An ASGI application behind a port, in a thread of this process.

The server is uvicorn, an extra that importing this file needs. It is held to the rules
of `net`: the port is taken before it starts, every connection is counted and has a
deadline, TLS is that of `tls`, and it installs no signal handlers. Failures are logged
under the name of this module; uvicorn's own log only says that it starts and stops.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lance_spark.errors import LanceError
from lance_spark.net.address import Address
from lance_spark.net.listener import listen
from lance_spark.net.tls import TlsContext
from lance_spark.net.tls_stream import read_peer

logger = logging.getLogger(__name__)
# What uvicorn says of single requests. That a stranger sent nonsense is no news.
_requests_logger = logging.getLogger(f"{__name__}.request")
_requests_logger.setLevel(logging.ERROR)

# More than people who look at a page have. Each is a descriptor that clients lack.
CONNECTIONS_MAX = 128
_BACKLOG = 64
_HANDSHAKE_S = 10
# How long a connection may take for its first request, and be silent between two.
_REQUEST_S = 10.0
_KEEP_ALIVE_S = 10
_HEADER_BYTES_MAX = 32 * 1024
# How long a peer may take to read what waits for it, and how much waits at a time.
# A peer that is slower than that, some kilobytes per second, is cut off.
_SEND_S = 30.0
_PIECE_BYTES = 256 * 1024
# How often the time of day is written anew, which answers have in their head.
_TICK_S = 1.0
_START_S = 10.0
# How long answers that are under way may take when the server stops, and how often it
# is looked whether they have ended. Those that are cut off get a moment to clean up.
_DRAIN_S = 2.0
_DRAIN_TICK_S = 0.05
_CANCEL_S = 1.0
_STOP_S = 5.0


class WebServer:
    """Serves an application until it is stopped.

    Args:
        app: the application.
        address: where to listen; port 0 takes a free one.
        tls: to speak HTTPS, and nothing else.
        ending: called in the server's event loop when it begins to stop; answers that
            go on by themselves have to end then.

    Raises:
        OptionError: the address can't be listened on.
    """

    def __init__(
        self,
        app: Any,
        address: Address,
        *,
        tls: TlsContext | None = None,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        config = uvicorn.Config(
            _send_in_pieces(app),
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            # A header that any client can send must not decide who the client is.
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
        )
        config.load()
        config.ssl = tls
        self._server = _Server(config, ending)
        self._sock = listen(address, _BACKLOG)
        host, port = self._sock.getsockname()[:2]
        self.address = Address(host, port)
        self._thread = threading.Thread(target=self._run, name="lance-web", daemon=True)

    def start(self) -> None:
        """Begin to serve; returns when it does.

        Raises:
            LanceError: it does not.
        """
        self._thread.start()
        if not self._server.serving.wait(_START_S) or not self._server.started:
            self.stop()
            raise LanceError(f"the web server at {self.address} does not start")

    def stop(self) -> None:
        """Stop listening and end all connections; may be called again."""
        self._server.leave()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
            if self._thread.is_alive():
                logger.warning("%s: requests did not end in time", self.address)
        self._sock.close()

    def _run(self) -> None:
        loop = _Loop()
        try:
            loop.run_until_complete(self._server.serve(sockets=[self._sock]))
        except BaseException:
            logger.exception("%s: the web server failed", self.address)
        finally:
            self._server.serving.set()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


class _Server(uvicorn.Server):
    """Says when it serves and when it begins to stop; `leave` makes it stop."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self.serving = threading.Event()
        self._ending = ending
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Event | None = None

    def leave(self) -> None:
        """Begin to stop; any thread may say so."""
        self.should_exit = True
        if self._loop is not None and self._leaving is not None:
            # The loop may have ended by itself.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._leaving.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._leaving = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.serving.set()

    async def main_loop(self) -> None:
        # In place of one that wakes up ten times a second to see whether it is over.
        assert self._leaving is not None
        while not await self.on_tick(0):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # In place of one that leaves connections open behind it, and says so in a log
        # of its own.
        self._ending()
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        ends_s = time.monotonic() + _DRAIN_S
        while (state.connections or state.tasks) and time.monotonic() < ends_s:
            await asyncio.sleep(_DRAIN_TICK_S)
        for connection in list(state.connections):
            connection.transport.abort()
        for task in state.tasks:
            task.cancel()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=_CANCEL_S)
        # Connections hear of their end in a turn of the loop after the abort.
        await asyncio.sleep(0)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait long for handshakes."""

    async def create_server(self, *args: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            # Connections in their handshake are not counted yet.
            options.setdefault("ssl_handshake_timeout", _HANDSHAKE_S)
        return await super().create_server(*args, **options)


class _Connection(H11Protocol):
    """A connection that is counted, that has deadlines, and that knows its peer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _requests_logger
        self.access_log = False
        # For the request that is to come, and for what the peer has to read.
        self._request = _Deadline(self)
        self._reading = _Deadline(self)

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        tls = transport.get_extra_info("ssl_object")
        # Requests find it as `state.certificate`.
        certificate = None if tls is None else read_peer(tls)
        self.app_state = {**self.app_state, "certificate": certificate}
        self._request.begin(_REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._request.call_off()
        self._reading.call_off()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # uvicorn lets go of its own deadline at the first byte of a request, which
        # need not be followed by a second one.
        if self.cycle is None or self.cycle.response_complete:
            self._request.begin(_REQUEST_S)
        else:
            self._request.call_off()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading.begin(_SEND_S)

    def resume_writing(self) -> None:
        self._reading.call_off()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # The connection ends once everything is read, which may be never.
        self._reading.begin(_SEND_S)


class _Deadline:
    """Cuts a connection off after a time, unless it is called off before."""

    def __init__(self, connection: H11Protocol) -> None:
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, after_s: float) -> None:
        """Set the time; one that is set already stays."""
        if self._timer is None:
            cut = self._connection.transport.abort
            self._timer = self._connection.loop.call_later(after_s, cut)

    def call_off(self) -> None:
        """Let the connection go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _send_in_pieces(app: Any) -> Any:
    """Make an application wait for slow readers, also within a long body."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        async def send_pieces(message: Any) -> None:
            body = memoryview(message.get("body", b""))
            while len(body) > _PIECE_BYTES:
                piece = bytes(body[:_PIECE_BYTES])
                await send({**message, "body": piece, "more_body": True})
                body = body[_PIECE_BYTES:]
            await send({**message, "body": bytes(body)} if body else message)

        # Only the end of the server cancels, when the peer is cut off already.
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send_pieces)

    return run
