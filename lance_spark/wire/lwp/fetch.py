"""Fetch and its answers: LWP §5.8, both forms of §5.9, and the extensions' options.

The short request and response are what every server knows. The long request is an
extension (docs/wire-extensions.md) and the only way to get the extended response. The
data of a response is a view of the payload and is not looked at here.

    request    topic u32 | start u64 | max bytes u32 [| flags u32 | max wait ms u32]
    response   next offset u64 | data bytes u32 | record count u32 | data
    extended   start u64 | end u64 | high-water mark u64 | data
"""

from __future__ import annotations

import struct
from enum import IntFlag

from lance_spark.errors import RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.value import dataclass
from lance_spark.wire.lwp.message import (
    Command,
    LayoutMessage,
    Message,
    PayloadReader,
    Uint64,
    pack,
)

# A Fetch from here is answered with the log's end and no data, by every server.
OFFSET_MAX = 2**64 - 1

_FETCH = struct.Struct("<IQI")
_FETCH_OPTIONS = struct.Struct("<II")
_FETCH_RESPONSE = struct.Struct("<QII")
_FETCH_RESPONSE_EXTENDED = struct.Struct("<QQQ")


class FetchFlags(IntFlag):
    """What a long Fetch may ask for (capability `fetch-flags`)."""

    # Answer with the 24-byte header of LWP §5.9.1.
    EXTENDED = 0x01
    # Move the start forward to the next record boundary.
    SNAP = 0x02
    # Wait for data, up to `max_wait_ms`.
    WAIT = 0x04


_FETCH_FLAGS_KNOWN = 0x07
_FETCH_FLAGS_NONE = FetchFlags(0)


@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """Read bytes of a topic (LWP §5.8), with the options of the
    extensions behind them, if there are any.

    A server that does not know the options ignores what follows the first 16 bytes.
    """

    COMMAND = Command.FETCH

    topic_id: int
    start: int
    max_bytes: int
    flags: FetchFlags = _FETCH_FLAGS_NONE
    max_wait_ms: int = 0

    def encode_payload(self) -> list[Buffer]:
        """Return the payload: 16 bytes, or 24 with options."""
        payload = pack(_FETCH, self.topic_id, self.start, self.max_bytes)
        if self.flags or self.max_wait_ms:
            payload += pack(_FETCH_OPTIONS, self.flags, self.max_wait_ms)
        return [payload]

    @classmethod
    def decode_payload(cls, payload: Buffer) -> Fetch:
        reader = PayloadReader(payload, cls.NAME)
        topic_id, start, max_bytes = reader.unpack(_FETCH)
        if not reader.remaining:
            return cls(topic_id, start, max_bytes)
        flags, max_wait_ms = reader.unpack(_FETCH_OPTIONS)
        reader.finish()
        # A flag that this side can't honour must not be passed over in silence.
        if flags & ~_FETCH_FLAGS_KNOWN:
            raise reader.error(f"unknown flags 0x{flags:X}")
        return cls(topic_id, start, max_bytes, FetchFlags(flags), max_wait_ms)


@dataclass(frozen=True, slots=True)
class FetchResponse(Message):
    """The bytes of a topic (LWP §5.9); `data` is a view when it was received.

    `record_count` is an estimate on servers in the field. `next_offset` minus the size
    of the data is where the data starts, if there is any.
    """

    COMMAND = Command.FETCH_RESPONSE

    next_offset: int
    record_count: int
    data: Buffer = b""

    def encode_payload(self) -> list[Buffer]:
        """Return the payload: the 16-byte header, and the data uncopied."""
        size = memoryview(self.data).nbytes
        head = encode_fetch_head(self.next_offset, size, self.record_count)
        return [head, self.data]

    @classmethod
    def decode_payload(cls, payload: Buffer) -> FetchResponse:
        """Read a payload; its size must be what it says."""
        reader = PayloadReader(payload, cls.NAME)
        next_offset, size, record_count = reader.unpack(_FETCH_RESPONSE)
        data = reader.take(size)
        reader.finish()
        return cls(next_offset, record_count, data)


def encode_fetch_head(next_offset: int, size: int, record_count: int) -> bytes:
    """Write what stands before the data, for a server that sends that by itself."""
    return pack(_FETCH_RESPONSE, next_offset, size, record_count)


def encode_extended_head(start: int, end: int, high_water_mark: int) -> bytes:
    """Write the same for the extended form."""
    return pack(_FETCH_RESPONSE_EXTENDED, start, end, high_water_mark)


@dataclass(frozen=True, slots=True)
class ExtendedFetchResponse(Message):
    """The bytes [start, end) of a topic and where it ends (LWP §5.9.1)."""

    COMMAND = Command.FETCH_RESPONSE
    NAME = "fetch response"

    start: int
    end: int
    high_water_mark: int
    data: Buffer = b""

    def encode_payload(self) -> list[Buffer]:
        """Return the payload: the 24-byte header, and the data uncopied."""
        head = encode_extended_head(self.start, self.end, self.high_water_mark)
        return [head, self.data]

    @classmethod
    def decode_payload(cls, payload: Buffer) -> ExtendedFetchResponse:
        """Read a payload; its size must be what its offsets say."""
        reader = PayloadReader(payload, cls.NAME)
        start, end, high_water_mark = reader.unpack(_FETCH_RESPONSE_EXTENDED)
        data = reader.take(reader.remaining)
        if end - start != len(data):
            raise reader.error(f"{len(data)} bytes for [{start}, {end})")
        return cls(start, end, high_water_mark, data)


def decode_fetch_response(
    payload: Buffer, *, extended: bool | None = None
) -> FetchResponse | ExtendedFetchResponse:
    """Read either form of a fetch response.

    Args:
        payload: the bytes.
        extended: which form was asked for. None lets the sizes tell: they fit both
            forms only if an extended response starts at byte 8 of a multiple of 4 GiB,
            and then the short form is taken, which is what servers send unasked.
    """
    if extended is not None:
        form = ExtendedFetchResponse if extended else FetchResponse
        return form.decode_payload(payload)
    try:
        return FetchResponse.decode_payload(payload)
    except RemoteProtocolError as error:
        try:
            return ExtendedFetchResponse.decode_payload(payload)
        except RemoteProtocolError:
            raise error from None


@dataclass(frozen=True, slots=True)
class CatchingUp(LayoutMessage):
    """A server in the field was asked for an offset behind its log's end."""

    COMMAND = Command.CATCHING_UP

    end: Uint64
