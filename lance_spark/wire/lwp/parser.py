"""From a stream of bytes to frames, in whatever pieces the bytes come.

Everything that decides whether a stream is still LWP lives here. No socket: the caller
brings the bytes, either by value,

    parser.receive_data(data)

or without a copy, by letting the kernel write where the bytes will stay:

    parser.bytes_written(sock.recv_into(parser.buffer_for_read()))

and takes what became of them out with `next_frame` or `frames`.

Where bytes go. Between frames they are appended to a block of 64 KiB, and a payload
that is in the block as a whole is handed out as a view of it. A block is never written
again where a view was handed out, so that views stay valid; it lives for as long as
the last of them. A payload that the block holds only in part moves to a buffer of its
own, and the rest is read straight into that, never beyond the frame's end.

What a peer can make us allocate. A header alone may announce 16 MiB. The payload's
buffer starts at `payload_bytes_first` and grows fourfold each time the peer has filled
it: beyond the first buffer a peer that dribbles holds at most four times of what it
really sent, and an honest one costs at most a third of a copy. The memory is not
zeroed, so what was not yet received is not even resident. `payload_bytes_next` lets a
server with a memory budget stop reading before that happens.

A buffer beyond the first one is mapped by itself and so given back to the system when
its last view goes. From the allocator it would stay with the thread that freed it, and
with it a multiple of what a server has allowed for.

After an error the frames before it are still handed out, then the error is raised for
ever: inside a byte stream there is no place to start again.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Iterator
from copy import copy

import numpy as np

from lance_spark.errors import (
    LocalProtocolError,
    PayloadOverLimit,
    RemoteProtocolError,
)
from lance_spark.model import Buffer
from lance_spark.wire.lwp.checksum import Checksum
from lance_spark.wire.lwp.frame import (
    EMPTY,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    Frame,
    Header,
    decode_header,
)

# LWP §13.1 names 64 KiB as the smallest sensible read; idle connections hold one each.
BLOCK_BYTES = 64 * 1024
# Below this a read from the block would be a wasted system call.
_ROOM_BYTES_MIN = 4 * 1024
# A batch of the usual size and what is around it fit without growing.
PAYLOAD_BYTES_FIRST = 1024 * 1024 + 64 * 1024
_PAYLOAD_GROWTH = 4


class FrameParser:
    """Parse the frames of one direction of one connection.

    Args:
        checksum: the peer's algorithm, or None to learn it from the first header and
            hold the peer to it.
        payload_bytes_max: the largest payload to accept; `allow` changes it.
        payload_bytes_first: how much of a payload's buffer is made at once, before
            any of it has come.
    """

    def __init__(
        self,
        *,
        checksum: Checksum | None = Checksum.CRC32C,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        payload_bytes_first: int = PAYLOAD_BYTES_FIRST,
    ) -> None:
        self._checksum = checksum
        self._payload_bytes_first = payload_bytes_first
        self._payload_bytes_max = payload_bytes_max
        self._frames: deque[Frame] = deque()
        self._error: RemoteProtocolError | None = None
        self._refused: Header | None = None
        # A header over the limit behind frames that were not handed out yet.
        self._put_off: Header | None = None
        # Position in the stream of the first byte that belongs to no finished frame.
        self._position = 0
        # The block; [_start, _end) is received and not yet parsed.
        self._block = _allocate(BLOCK_BYTES)
        self._start = 0
        self._end = 0
        self._block_shared = False
        # The payload that has a buffer of its own, if one is under way.
        self._header: Header | None = None
        self._payload = EMPTY
        self._payload_filled = 0
        # Size of the view that the caller is filling.
        self._room = 0

    @property
    def checksum(self) -> Checksum | None:
        """The algorithm in use; None as long as it is not known."""
        return self._checksum

    @property
    def error(self) -> RemoteProtocolError | None:
        """Why the stream ended, if it did; frames before it may still be waiting."""
        return self._error

    @property
    def refused(self) -> Header | None:
        """The header whose payload was over the limit, for the answer to it."""
        return self._refused

    @property
    def payload_missing(self) -> int:
        """How many bytes of the present frame's payload are still to come."""
        if self._header is None:
            return 0
        return self._header.payload_length - self._payload_filled

    @property
    def payload_bytes_next(self) -> int:
        """How large the present payload's buffer is once the next bytes are read.

        A server with a memory budget asks before `buffer_for_read` takes the memory.
        """
        if self._header is None:
            return 0
        size = len(self._payload)
        if self._payload_filled == size:
            size = min(self._header.payload_length, size * _PAYLOAD_GROWTH)
        return size

    def allow(self, payload_bytes_max: int) -> None:
        """Change the largest payload, from the next frame on that is handed out."""
        self._payload_bytes_max = payload_bytes_max

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
        if self._error is None and (self._header or self._end > self._start):
            self._fail(RemoteProtocolError("stream ended in a frame", self._position))

    def buffer_for_read(self) -> memoryview:
        """Return where the next bytes should be written; at least one fits.

        Raises:
            RemoteProtocolError: the error that ended the stream.
        """
        self._decide()
        self._check()
        if self._header is not None:
            view = self._payload_room(self._header)
        else:
            view = self._block_room()
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
            self._finish_payload(self._header)
        else:
            self._end += size
            self._parse_block()

    # Frames out.

    def next_frame(self) -> Frame | None:
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

    def frames(self) -> Iterator[Frame]:
        """Iterate over the frames that are there; ends and raises as `next_frame`."""
        while (frame := self.next_frame()) is not None:
            yield frame

    def _check(self) -> None:
        if self._error is not None:
            # A copy: the traceback would hold whoever holds this parser, and that is a
            # cycle, in which payloads wait for the garbage collector.
            raise copy(self._error)

    def _fail(self, error: RemoteProtocolError) -> None:
        self._error = error
        self._put_off = None
        # A broken connection may linger while its answer drains; hold nothing for it.
        self._header = None
        self._payload = self._block = EMPTY

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

    def _payload_room(self, header: Header) -> memoryview:
        if self._payload_filled == len(self._payload):
            grown = _map(self.payload_bytes_next)
            grown[: self._payload_filled] = self._payload
            self._payload = grown
        return self._payload[self._payload_filled :]

    def _parse_block(self) -> None:
        while self._error is None and self._end - self._start >= HEADER_BYTES:
            header = self._parse_header(self._block[self._start :])
            if header is None:
                return
            start = self._start + HEADER_BYTES
            end = start + header.payload_length
            if end > self._end:
                self._start_payload(header, self._block[start : self._end])
                self._start = self._end
                return
            self._start = end
            if end == start:
                # Not a view of the block, which an empty payload would keep alive.
                self._finish_frame(header, EMPTY)
            else:
                self._block_shared = True
                self._finish_frame(header, self._block[start:end])

    def _parse_header(self, view: memoryview) -> Header | None:
        try:
            header, self._checksum = decode_header(view, self._checksum)
        except RemoteProtocolError as error:
            self._fail(RemoteProtocolError(error.reason, self._position))
            return None
        if header.payload_length > self._payload_bytes_max:
            if self._frames:
                # What these lead to may be that larger payloads are allowed.
                self._put_off = header
            else:
                self._refuse(header)
            return None
        return header

    def _decide(self) -> None:
        """Refuse what was put off: behind it there is no place for more bytes."""
        if self._put_off is not None:
            self._refuse(self._put_off)

    def _refuse(self, header: Header) -> None:
        self._refused = header
        size, limit = header.payload_length, self._payload_bytes_max
        self._fail(PayloadOverLimit("payload", size, limit))

    def _start_payload(self, header: Header, part: memoryview) -> None:
        self._header = header
        size = min(header.payload_length, self._payload_bytes_first)
        self._payload = _allocate(size)
        self._payload[: len(part)] = part
        self._payload_filled = len(part)

    def _finish_payload(self, header: Header) -> None:
        if self._payload_filled < header.payload_length:
            return
        payload = self._payload
        self._header = None
        self._payload = EMPTY
        self._finish_frame(header, payload)

    def _finish_frame(self, header: Header, payload: memoryview) -> None:
        assert self._checksum is not None
        if self._checksum.update(payload) != header.payload_crc:
            reason = f"payload CRC mismatch ({self._checksum.value})"
            self._fail(RemoteProtocolError(reason, self._position))
            return
        self._position += HEADER_BYTES + header.payload_length
        self._frames.append(
            Frame(
                header.flags,
                header.batch_id,
                header.timestamp_ns,
                header.record_count,
                header.topic_id,
                payload.toreadonly(),
                header.payload_crc,
            )
        )


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
