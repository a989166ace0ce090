"""From a stream of bytes to frames, in whatever pieces the bytes come.

A protocol says how long its header is, how to read one, and what to make of a header
and its payload; everything else is here: where bytes go, how buffers grow, what a peer
may announce. No socket: the caller brings the bytes, either by value,

    assembler.receive_data(data)

or without a copy, by letting the kernel write where the bytes will stay:

    assembler.bytes_written(sock.recv_into(assembler.buffer_for_read()))

and takes what became of them out with `next_frame` or `frames`.

Where bytes go. Between frames they are appended to a block of 64 KiB, and a payload
that is in the block as a whole is handed out as a view of it. A block is never written
again where a view was handed out, so that views stay valid; it lives for as long as
the last of them. A payload that the block holds only in part moves to a buffer of its
own, and the rest is read straight into that, never beyond the frame's end.

What a peer can make this side allocate. A header alone may announce 16 MiB. The
payload's buffer starts at `payload_bytes_first` and grows fourfold each time the peer
has filled it: beyond the first buffer a peer that dribbles holds at most four times of
what it really sent, and an honest one costs at most a third of a copy. The memory is
not zeroed, so what was not yet received is not even resident. `payload_bytes_next` lets
a server with a memory budget stop reading before that happens.

A buffer beyond the first one is mapped by itself and so given back to the system when
its last view goes. From the allocator it would stay with the thread that freed it, and
with it a multiple of what a server has allowed for.

A client gets one large answer after the other. From the allocator many of their pages
would be fresh, and to touch a page for the first time costs as much as to copy it.
After `reuse_buffers` two buffers stay, and are written again once no view of them is
left.

After an error the frames before it are still handed out, then the error is raised every
time: inside a byte stream there is no place to start again.
"""

from __future__ import annotations

import mmap
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from lance_spark.errors import (
    LocalProtocolError,
    PayloadOverLimit,
    RemoteProtocolError,
)
from lance_spark.model import Buffer

# LWP §13.1 names 64 KiB as the smallest sensible read; idle connections hold one each.
BLOCK_BYTES = 64 * 1024
# Below this a read from the block would be a wasted system call.
_ROOM_BYTES_MIN = 4 * 1024
# A batch of the usual size and what is around it fit without growing.
PAYLOAD_BYTES_FIRST = 1024 * 1024 + 64 * 1024
_PAYLOAD_GROWTH = 4
# Two buffers are used again: one is filled while the caller works on the other. Smaller
# ones the allocator has at hand. Their sizes are rounded up to whole steps, so that one
# fits answers that differ a little.
_REUSED_MAX = 2
_REUSED_BYTES_MIN = 256 * 1024
_REUSED_BYTES_STEP = 1024 * 1024

EMPTY = memoryview(b"")

HeaderT = TypeVar("HeaderT")
FrameT = TypeVar("FrameT")


class Assembler(ABC, Generic[HeaderT, FrameT]):
    """Assemble the frames of one direction of one connection.

    Args:
        header_bytes: how many bytes a header has.
        payload_bytes_max: the largest payload to accept; `allow` changes it.
        payload_bytes_first: how much of a payload's buffer is made at once, before
            any of it has come.
    """

    def __init__(
        self,
        *,
        header_bytes: int,
        payload_bytes_max: int,
        payload_bytes_first: int = PAYLOAD_BYTES_FIRST,
    ) -> None:
        assert 0 < header_bytes <= _ROOM_BYTES_MIN
        self._header_bytes = header_bytes
        self._payload_bytes_first = payload_bytes_first
        self._payload_bytes_max = payload_bytes_max
        self._frames: deque[FrameT] = deque()
        self._error: RemoteProtocolError | None = None
        self._refused: HeaderT | None = None
        # A header over the limit behind frames that were not handed out yet.
        self._put_off: tuple[HeaderT, int] | None = None
        # Position in the stream of the first byte that belongs to no finished frame.
        self._position = 0
        # The block; [_start, _end) is received and not yet parsed.
        self._block = _allocate(BLOCK_BYTES)
        self._start = 0
        self._end = 0
        self._block_shared = False
        # The payload that has a buffer of its own, if one is under way.
        self._header: HeaderT | None = None
        self._payload = EMPTY
        self._payload_length = 0
        self._payload_filled = 0
        # Size of the view that the caller is filling.
        self._room = 0
        # The buffers that are used again; None if all are fresh.
        self._reused: list[_Reused] | None = None

    # What a protocol says.

    @abstractmethod
    def _read_header(self, view: memoryview) -> tuple[HeaderT, int]:
        """Read a header, of which all bytes are there.

        Returns:
            The header, and how long its payload is.

        Raises:
            RemoteProtocolError: it is not one; the position is added here.
        """

    @abstractmethod
    def _finish_frame(self, header: HeaderT, payload: memoryview) -> FrameT:
        """Make a frame of a header and its whole payload, a read-only view.

        Raises:
            RemoteProtocolError: they do not fit together; the position is added here.
        """

    def _check_start(self, view: memoryview) -> None:
        """Look at the first bytes of a header whose other bytes are still to come.

        A peer that speaks another protocol may wait for an answer to fewer bytes than
        a header has, so what can't become a header is better refused at once.

        Raises:
            RemoteProtocolError: they are not those of one; the position is added here.
        """

    # What the caller may ask.

    @property
    def error(self) -> RemoteProtocolError | None:
        """Why the stream ended, if it did; frames before it may still be waiting."""
        return self._error

    @property
    def refused(self) -> HeaderT | None:
        """The header whose payload was over the limit, for the answer to it."""
        return self._refused

    @property
    def payload_missing(self) -> int:
        """How many bytes of the present frame's payload are still to come."""
        return self._payload_length - self._payload_filled

    @property
    def payload_bytes_next(self) -> int:
        """How large the present payload's buffer is once the next bytes are read.

        A server with a memory budget asks before `buffer_for_read` takes the memory.
        """
        size = len(self._payload)
        if self._payload_filled == size:
            grown = max(size * _PAYLOAD_GROWTH, self._payload_bytes_first)
            size = min(self._payload_length, grown)
        return size

    def allow(self, payload_bytes_max: int) -> None:
        """Change the largest payload, from the next frame on that is handed out."""
        self._payload_bytes_max = payload_bytes_max

    def reuse_buffers(self) -> None:
        """Use the buffers of large payloads again when no view of them is left.

        This holds up to two of the largest payloads for as long as the assembler lives,
        so it suits a client that asks for them, and not a server with many peers.
        """
        self._reused = []

    # Bytes in.

    def receive_data(self, data: Buffer) -> None:
        """Take bytes by value; `data` may be reused afterwards.

        Bytes behind an error are dropped.
        """
        view = memoryview(data).cast("B")
        while view:
            self._decide()
            if self._error is not None:
                return
            room = self.buffer_for_read()
            size = min(len(room), len(view))
            room[:size] = view[:size]
            self.bytes_written(size)
            view = view[size:]

    def receive_eof(self) -> None:
        """Take note that the stream has ended, which inside a frame is an error."""
        is_inside = self._header is not None or self._end > self._start
        if self._error is None and is_inside:
            self._fail(RemoteProtocolError("stream ended in a frame", self._position))

    def buffer_for_read(self) -> memoryview:
        """Return where the next bytes should be written; at least one fits.

        Raises:
            RemoteProtocolError: the error that ended the stream.
        """
        self._decide()
        self._check()
        is_payload = self._header is not None
        view = self._payload_room() if is_payload else self._block_room()
        self._room = len(view)
        return view

    def bytes_written(self, size: int) -> None:
        """Take note of `size` bytes at the start of the last `buffer_for_read`.

        Raises:
            LocalProtocolError: if they would not have fitted.
        """
        if not 0 <= size <= self._room:
            raise LocalProtocolError(f"{size} bytes written to {self._room}")
        self._room = 0
        if self._header is not None:
            self._payload_filled += size
            if self._payload_filled == self._payload_length:
                header, payload = self._header, self._payload
                self._drop_payload()
                self._hand_out(header, payload)
        else:
            self._end += size
            self._parse_block()

    # Frames out.

    def next_frame(self) -> FrameT | None:
        """Return the next frame, or None until more bytes have come.

        Raises:
            RemoteProtocolError: once the frames before the error are handed out.
        """
        if self._put_off is not None and not self._frames:
            self._put_off = None
            self._parse_block()
        if self._frames:
            return self._frames.popleft()
        self._check()
        return None

    def frames(self) -> Iterator[FrameT]:
        """Iterate over the frames that are there; ends and raises as `next_frame`."""
        while (frame := self.next_frame()) is not None:
            yield frame

    def _check(self) -> None:
        if self._error is not None:
            # A copy: its traceback would hold the caller, and so this assembler. In
            # such a cycle, payloads wait for the garbage collector.
            raise copy(self._error)

    def _fail(self, error: RemoteProtocolError) -> None:
        self._error = error
        self._put_off = None
        # A broken connection may linger while its answer drains; hold nothing for it.
        self._drop_payload()
        self._block = EMPTY

    def _drop_payload(self) -> None:
        self._header = None
        self._payload = EMPTY
        self._payload_length = self._payload_filled = 0

    def _block_room(self) -> memoryview:
        if self._start == self._end and not self._block_shared:
            self._start = self._end = 0
        elif len(self._block) - self._end < _ROOM_BYTES_MIN:
            # What is left here is less than a header: everything else was parsed.
            rest = bytes(self._block[self._start : self._end])
            if self._block_shared:
                self._block = _allocate(BLOCK_BYTES)
                self._block_shared = False
            self._block[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._block[self._end :]

    def _payload_room(self) -> memoryview:
        if self._payload_filled == len(self._payload):
            size = self.payload_bytes_next
            # malloc keeps what it gets back for the same thread. So it gives only
            # buffers of the usual size, which are asked for again and again.
            is_usual = self._payload_length <= self._payload_bytes_first
            grown = self._allocate_usual(size) if is_usual else _map(size)
            grown[: self._payload_filled] = self._payload
            self._payload = grown
        return self._payload[self._payload_filled :]

    def _allocate_usual(self, size: int) -> memoryview:
        reused = self._reused
        if reused is None or size < _REUSED_BYTES_MIN:
            return _allocate(size)
        free = [each for each in reused if each.is_free]
        fitting = [each for each in free if each.size >= size]
        if fitting:
            return fitting[0].lend(size)
        # All are in use, or too small.
        if len(reused) == _REUSED_MAX:
            if not free:
                return _allocate(size)
            reused.remove(free[0])
        reused.append(_Reused(-(-size // _REUSED_BYTES_STEP) * _REUSED_BYTES_STEP))
        return reused[-1].lend(size)

    def _parse_block(self) -> None:
        while self._error is None and self._end - self._start >= self._header_bytes:
            try:
                header, length = self._read_header(self._block[self._start :])
            except RemoteProtocolError as error:
                self._fail(RemoteProtocolError(error.reason, self._position))
                return
            if length > self._payload_bytes_max:
                if self._frames:
                    # What these lead to may be that larger payloads are allowed.
                    self._put_off = header, length
                else:
                    self._refuse(header, length)
                return
            start = self._start + self._header_bytes
            end = start + length
            if end > self._end:
                self._start_payload(header, length, self._block[start : self._end])
                self._start = self._end
                return
            self._start = end
            if end == start:
                # Not a view of the block, which an empty payload would keep alive.
                self._hand_out(header, EMPTY)
            else:
                self._block_shared = True
                self._hand_out(header, self._block[start:end])
        if self._error is None and self._start < self._end:
            try:
                self._check_start(self._block[self._start : self._end])
            except RemoteProtocolError as error:
                self._fail(RemoteProtocolError(error.reason, self._position))

    def _decide(self) -> None:
        """Refuse what was put off: behind it there is no place for more bytes."""
        if self._put_off is not None:
            self._refuse(*self._put_off)

    def _refuse(self, header: HeaderT, length: int) -> None:
        self._refused = header
        self._fail(PayloadOverLimit("payload", length, self._payload_bytes_max))

    def _start_payload(self, header: HeaderT, length: int, part: memoryview) -> None:
        self._header, self._payload_length = header, length
        # It stays in the block until the caller asks where to write more: a server asks
        # its memory budget before. A hundred clients that have sent a header each would
        # else hold a hundred buffers outside of the budget.
        self._payload = part
        self._payload_filled = len(part)

    def _hand_out(self, header: HeaderT, payload: memoryview) -> None:
        try:
            frame = self._finish_frame(header, payload.toreadonly())
        except RemoteProtocolError as error:
            self._fail(RemoteProtocolError(error.reason, self._position))
            return
        self._position += self._header_bytes + len(payload)
        self._frames.append(frame)


class _Reused:
    """Memory that is lent as long as any view of it is left."""

    def __init__(self, size: int) -> None:
        self._memory = _allocate(size)
        # The array that all views of the memory hang on, while there are any.
        self._lent: Callable[[], NDArray[Any] | None] = lambda: None

    @property
    def size(self) -> int:
        return len(self._memory)

    @property
    def is_free(self) -> bool:
        return self._lent() is None

    def lend(self, size: int) -> memoryview:
        array = np.frombuffer(self._memory, np.uint8, size)
        self._lent = weakref.ref(array)
        return array.data


def _map(size: int) -> memoryview:
    # Private, as memory that could be shared is many times slower to come by; and in
    # large pages, without which taking them costs more than all that is done to them.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _allocate(size: int) -> memoryview:
    # Unlike bytearray, this leaves the memory untouched until it is received into.
    return np.empty(size, np.uint8).data
