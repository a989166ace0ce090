"""A client that sends prepared frames and nothing else, so that it costs little."""

from __future__ import annotations

import socket

import pyarrow as pa

from lance_spark.wire.lwp import Frame, FrameParser, encode_ingest

_WINDOW = 8
_WARM_UP = 4


class FrameSender:
    """One connection, and the frames to be sent over it.

    Args:
        address: of the broker.
        payloads: whole records, and how many each has.
        topic_id: where they go.

    A connection gets its speed only after some megabytes, when both ends have made
    their buffers larger; `warm_up` sends those.
    """

    def __init__(
        self, address: str, payloads: list[tuple[pa.Buffer, int]], topic_id: int
    ) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._parser = FrameParser()
        frames = [
            b"".join(
                bytes(part)
                for part in encode_ingest(
                    [data], batch_id=n, record_count=records, topic_id=topic_id
                )
            )
            for n, (data, records) in enumerate(payloads[:_WARM_UP] + payloads, 1)
        ]
        first = len(frames) - len(payloads)
        self._first, self._frames = frames[:first], frames[first:]

    def warm_up(self) -> None:
        """Send the first few."""
        self._send(self._first)

    def send(self) -> None:
        """Send all frames, a few ahead of their acknowledgements."""
        self._send(self._frames)

    def _send(self, frames: list[bytes]) -> None:
        for number, frame in enumerate(frames):
            if number >= _WINDOW:
                self._receive()
            self._socket.sendall(frame)
        for _ in frames[-_WINDOW:]:
            self._receive()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self) -> Frame:
        while (frame := self._parser.next_frame()) is None:
            size = self._socket.recv_into(self._parser.buffer_for_read())
            self._parser.bytes_written(size)
        return frame
