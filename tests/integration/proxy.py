"""A TCP proxy that does to a connection what networks do.

It stands between a client and a broker and is told, per connection, what happens to
the bytes of each direction. Where it counts frames it knows LWP's header and nothing
else. It runs an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

HEADER_BYTES = 44
_LENGTH_AT = 32
_READ_BYTES = 64 * 1024
# Closing with this sends a reset in place of a proper end.
_LINGER_NONE = struct.pack("ii", 1, 0)
_CALL_S = 30.0


@dataclass(frozen=True, slots=True)
class Flow:
    """What happens to the bytes of one direction.

    Args:
        piece_bytes: they are sent on in pieces of this size; None for as they come.
        delay_s: pause before each piece.
        cut_at: the connection ends when so many bytes were sent on.
        cut_frame: it ends inside this frame, counted from 0 …
        cut_share: … after this share of it; 0 is before its first byte.
        swallow_at: from this byte on nothing is sent on, and the connection stays.
        swallow_frame: the same, from this frame on.
    """

    piece_bytes: int | None = None
    delay_s: float = 0.0
    cut_at: int | None = None
    cut_frame: int | None = None
    cut_share: float = 0.5
    swallow_at: int | None = None
    swallow_frame: int | None = None

    @property
    def counts_frames(self) -> bool:
        """Whether frames have to be told apart."""
        return self.cut_frame is not None or self.swallow_frame is not None


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a connection.

    Args:
        up: from the client to the broker.
        down: from the broker to the client.
        reset: it ends with a reset and not with a proper end.
        is_doubled: what the client says is said a second time, over a connection of
            its own, whose answers nobody sees.
    """

    up: Flow = Flow()
    down: Flow = Flow()
    reset: bool = False
    is_doubled: bool = False


CLEAR = Fate()


class Gate:
    """Decides byte by byte what one direction lets through."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.passed = 0
        self.frames = 0
        self.is_cut = flow.cut_at == 0
        self._cut_at = flow.cut_at
        self._swallow_at = flow.swallow_at
        # Bytes that came and of which it is not yet known what they are.
        self._held = b""
        self._frame_left = 0

    def take(self, data: bytes) -> bytes:
        """Give what is sent on of some bytes; `is_cut` says that it is the last."""
        if self.is_cut:
            return b""
        if self._flow.counts_frames:
            data = self._frame(data)
        end = self.passed + len(data)
        if self._cut_at is not None and end >= self._cut_at:
            data = data[: self._cut_at - self.passed]
            self.is_cut = True
        self.passed += len(data)
        if self._swallow_at is not None:
            start = self.passed - len(data)
            data = data[: max(0, self._swallow_at - start)]
        return data

    def _frame(self, data: bytes) -> bytes:
        """Hold back headers that are not whole, and note where frames start."""
        data, self._held = self._held + data, b""
        position = 0
        while position < len(data):
            if self._frame_left:
                step = min(self._frame_left, len(data) - position)
                self._frame_left -= step
                position += step
                continue
            if len(data) - position < HEADER_BYTES:
                self._held = data[position:]
                return data[:position]
            (length,) = struct.unpack_from("<I", data, position + _LENGTH_AT)
            self._frame_left = HEADER_BYTES + length
            self._note(self.passed + position, self._frame_left)
            self.frames += 1
        return data

    def _note(self, start: int, size: int) -> None:
        if self.frames == self._flow.cut_frame:
            self._cut_at = start + int(size * self._flow.cut_share)
        if self.frames == self._flow.swallow_frame:
            self._swallow_at = start


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    fate: Fate
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def end(self, *, reset: bool) -> None:
        for writer in self.writers:
            if reset:
                sock = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    """Listens on a port and passes connections on to a broker.

    Args:
        target: `host:port` of the broker.
        plan: says what happens to each connection, by its number from 0; it can be
            replaced at any time, for the connections that come then.
    """

    def __init__(
        self, target: str, plan: Callable[[int], Fate] = lambda _: CLEAR
    ) -> None:
        self.target = target
        self.plan = plan
        self.connections = 0
        self.cuts = 0
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0))
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def close(self) -> None:
        """End everything."""
        if not self._loop.is_closed():
            self._call(self._shut_down())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CALL_S)
            self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside, in the thread of the loop.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    async def _shut_down(self) -> None:
        self._server.close()
        for link in list(self._links):
            link.end(reset=True)
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # Transports that were aborted close in the next round of the loop.
        await asyncio.sleep(0)

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = _Link(self.plan(self.connections), [writer])
        self.connections += 1
        self._links.add(link)
        try:
            with contextlib.suppress(OSError):
                await self._pass_on(link, reader, writer)
        except asyncio.CancelledError:
            pass  # The proxy is being closed.
        finally:
            link.end(reset=False)
            self._links.discard(link)
            self._tasks.discard(task)

    async def _pass_on(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host, port = self.target.rsplit(":", 1)
        upstream, up_writer = await asyncio.open_connection(host, int(port))
        link.writers.append(up_writer)
        targets, pumps = [up_writer], []
        if link.fate.is_doubled:
            echo, echo_writer = await asyncio.open_connection(host, int(port))
            link.writers.append(echo_writer)
            targets.append(echo_writer)
            pumps.append(_drain(echo))
        pumps.append(self._pump(link, reader, targets, link.fate.up))
        pumps.append(self._pump(link, upstream, [writer], link.fate.down))
        await asyncio.gather(*pumps)

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writers: list[asyncio.StreamWriter],
        flow: Flow,
    ) -> None:
        gate = Gate(flow)
        try:
            while not gate.is_cut and (data := await reader.read(_READ_BYTES)):
                await _send(writers, gate.take(data), flow)
        except OSError:
            # One side is gone, so that the other one has to go.
            link.end(reset=link.fate.reset)
            return
        if gate.is_cut:
            self.cuts += 1
            link.end(reset=link.fate.reset)
            return
        for writer in writers:
            if writer.can_write_eof() and not writer.is_closing():
                with contextlib.suppress(OSError):
                    writer.write_eof()


async def _send(writers: list[asyncio.StreamWriter], data: bytes, flow: Flow) -> None:
    step = flow.piece_bytes or len(data) or 1
    for start in range(0, len(data), step):
        if flow.delay_s:
            await asyncio.sleep(flow.delay_s)
        for writer in writers:
            writer.write(data[start : start + step])
            await writer.drain()


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(_READ_BYTES):
            pass
