"""The live stream: the overview once a second, as server-sent events.

Streams live in the event loop and take no thread while they wait. However many there
are, the overview of a second is made once for all visitors of the same kind.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lance_spark.broker.access import Principal
from lance_spark.broker.console.guard import encode_json
from lance_spark.broker.console.overview import Overview
from lance_spark.broker.console.sampler import INTERVAL_S, Sampler
from lance_spark.errors import ConnectionLimit, LanceError

STREAMS_MAX = 64
# With very many topics events come less often: making them takes a tenth of the time at
# most, and sending them so many bytes per second.
_REST = 10.0
_BYTES_PER_S = 1024 * 1024
# Gives the visitor, None after signing out.
Ask = Callable[[], Principal | None]


class Streams:
    """All streams of a console.

    Args:
        overview: describes the broker, for the events.
        sampler: says when there is something new.
    """

    def __init__(self, overview: Overview, sampler: Sampler) -> None:
        self._overview = overview
        self._sampler = sampler
        self._open = 0
        # How long to wait at least, which grows with what there is to tell.
        self._rest_s = 0.0
        self._ending = anyio.Event()
        # A stream that needs an event while one is made waits for it.
        self._making = anyio.Lock()
        # The last event for each kind of visitor. There are few kinds, as the tokens
        # of visitors make no difference.
        self._events: dict[Principal, tuple[int, bytes]] = {}

    @property
    def is_ending(self) -> bool:
        """Whether the console stops; any thread may ask."""
        return self._ending.is_set()

    def end(self) -> None:
        """End all streams; to be called in the event loop."""
        self._ending.set()

    async def open(self, ask: Ask) -> StreamingResponse:
        """Begin a stream.

        Raises:
            ConnectionLimit: there are too many.
            AuthenticationRequired: the visitor has to sign in first.
        """
        if self._open >= STREAMS_MAX:
            raise ConnectionLimit(f"{STREAMS_MAX} pages are open already")
        # Before anything is waited for: others come meanwhile.
        self._open += 1
        try:
            first = await self._make_event(ask() or Principal())
        except BaseException:
            self._close()
            raise
        return _Stream(self._run(ask, first), self._close)

    def _close(self) -> None:
        self._open -= 1

    async def _run(self, ask: Ask, event: bytes) -> AsyncIterator[bytes]:
        # Errors end it: the broker stops, or the visitor is one no more.
        with suppress(LanceError):
            while True:
                yield event
                with anyio.move_on_after(max(INTERVAL_S, self._rest_s)):
                    await self._ending.wait()
                client = ask()
                if client is None or self.is_ending:
                    return
                event = await self._make_event(client)

    async def _make_event(self, client: Principal) -> bytes:
        async with self._making:
            tick = self._sampler.ticks
            made = self._events.get(client)
            if made is not None and made[0] == tick:
                return made[1]
            begun_s = time.monotonic()
            event = await run_in_threadpool(self._describe, client)
            taken_s = time.monotonic() - begun_s
            self._rest_s = max(_REST * taken_s, len(event) / _BYTES_PER_S)
            if len(self._events) >= STREAMS_MAX:
                self._events.clear()
            self._events[client] = tick, event
            return event

    def _describe(self, client: Principal) -> bytes:
        described = encode_json(self._overview.describe(client))
        return b"event: overview\ndata: " + described + b"\n\n"


class _Stream(StreamingResponse):
    """A stream that calls back when it is over, also if it has never begun."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
