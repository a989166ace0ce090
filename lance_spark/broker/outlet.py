"""The way out to a client: frames, and records straight from the page cache.

A client that takes nothing for too long is given up, so that it holds nothing but its
own thread: no response is ever copied as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lance_spark.broker.metrics import Metrics
from lance_spark.errors import ConnectionLost, LanceError
from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.store import Slice, combine_crc32c
from lance_spark.wire.lwp import Checksum, Command, FrameFlags, encode_header

# A response up to this size is sent from memory, a larger one from the file.
PIECE_BYTES = 256 * 1024
# So much of a file is sent within one timeout: progress counts, not the whole.
_SEND_BYTES = 1024 * 1024
_NOTHING = memoryview(b"")


class Outlet:
    """Sends to one client.

    Args:
        stream: the connection.
        metrics: what is counted.
        timeout_s: how long a client may take nothing.
    """

    def __init__(self, stream: Stream, metrics: Metrics, timeout_s: float) -> None:
        self._stream = stream
        self._metrics = metrics
        self._timeout_s = timeout_s
        # Made when first needed: most connections never fetch.
        self._piece: memoryview | None = None

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send buffers.

        Raises:
            ConnectionLost: the client does not take them. No other error means that
                it can't be told of an error.
        """
        with self._sending() as deadline:
            self._stream.send(buffers, deadline)
        self._metrics.sent(sum(memoryview(b).nbytes for b in buffers))

    def send_slice(self, head: bytes, found: Slice, checksum: Checksum) -> None:
        """Send a fetch response: its own header, then records from the page cache.

        The frame's header comes first and has a checksum of all that follows. Where
        the store has that of the records, they are only read by the kernel, to be
        sent; otherwise they are read once more before that, in pieces.

        Raises:
            ConnectionLost: the client does not take them.
            Corrupt, StoreError: the records can't be read, and nothing was sent.
        """
        crc, piece = checksum.update(head), _NOTHING
        is_known = found.crc32c is not None and checksum is Checksum.CRC32C
        if is_known and len(found) > PIECE_BYTES:
            assert found.crc32c is not None
            crc = combine_crc32c(crc, found.crc32c, len(found))
        else:
            if self._piece is None:
                self._piece = memoryview(bytearray(PIECE_BYTES))
            for piece in found.pieces(self._piece):
                crc = checksum.update(piece, crc)
        header = encode_header(
            FrameFlags.CONTROL,
            batch_id=Command.FETCH_RESPONSE,
            payload_length=len(head) + len(found),
            payload_crc=crc,
            checksum=checksum,
        )
        if len(found) <= PIECE_BYTES:
            self.send([header, head, piece])
            return
        self.send([header, head])
        self._send_file(found)

    def _send_file(self, found: Slice) -> None:
        assert found.file is not None
        for at in range(0, len(found), _SEND_BYTES):
            size = min(_SEND_BYTES, len(found) - at)
            with self._sending() as deadline:
                self._stream.send_file(
                    found.file.fileno(), found.position + at, size, deadline
                )
            self._metrics.sent(size)

    @contextmanager
    def _sending(self) -> Iterator[Deadline]:
        try:
            yield Deadline.after(self._timeout_s)
        except ConnectionLost:
            raise
        except LanceError as error:
            # A frame that is cut off can't be followed by another one.
            raise ConnectionLost(f"{self._stream.peer}: gave up: {error}") from error
