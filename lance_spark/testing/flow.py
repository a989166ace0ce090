"""What happens to the bytes of a connection on their way, decided byte by byte.

Nothing here has a socket: `relay` asks a `Gate` what to pass on. Where frames are
counted, the length in LWP's header is all that is known of them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from lance_spark.wire.lwp import HEADER_BYTES

# Where a frame's header has the length of its payload (LWP §4).
_LENGTH_AT = 32
_LENGTH = struct.Struct("<I")


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
            (length,) = _LENGTH.unpack_from(data, position + _LENGTH_AT)
            self._frame_left = HEADER_BYTES + length
            self._note(self.passed + position, self._frame_left)
            self.frames += 1
        return data

    def _note(self, start: int, size: int) -> None:
        if self.frames == self._flow.cut_frame:
            self._cut_at = start + int(size * self._flow.cut_share)
        if self.frames == self._flow.swallow_frame:
            self._swallow_at = start
