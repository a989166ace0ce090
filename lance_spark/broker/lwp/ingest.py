"""From the payload of an Ingest to records that can be stored.

All checks of a batch before the store sees it: its header, its compression, its
records. Nothing here knows of connections.
"""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lance_spark.errors import InvalidPayload
from lance_spark.model import Buffer, Scan
from lance_spark.wire.lwp import Checksum, Frame, FrameFlags, decompress, scan, validate

# Plain integers: an operation on an enumeration takes ten times as long.
_ENCRYPTED = int(FrameFlags.ENCRYPTED)
COMPRESSED = int(FrameFlags.COMPRESSED)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A batch as the store takes it; `crc32c` is there if it is known already."""

    data: Buffer
    starts: NDArray[np.int64]
    crc32c: int | None = None


def check_ingest(frame: Frame) -> None:
    """Refuse an ingest whose header makes no sense (LWP §4.1).

    Raises:
        InvalidPayload: with the reason.
    """
    if int(frame.flags) & _ENCRYPTED:
        raise InvalidPayload("encrypted payloads are not supported")
    if frame.batch_id == 0:
        raise InvalidPayload("an ingest needs a batch id, which is never 0")
    if not len(frame.payload):
        raise InvalidPayload("an ingest needs a payload")


def read_batch(
    frame: Frame, *, strict: bool, bytes_max: int, crc: Checksum
) -> Unpacked:
    """Decompress and check a batch.

    Args:
        frame: the ingest.
        strict: refuse what is not whole records, or not as many as the frame says.
            Otherwise bytes that are no records are stored as if they were one.
        bytes_max: the largest batch after decompression.
        crc: the checksum that the frame was checked with.

    Raises:
        RecordError: the payload is not whole records, or one of them is too large.
        InvalidPayload: the number of records is another one.
        RemoteProtocolError: it can't be decompressed within the limit.
    """
    data: Buffer = frame.payload
    crc32c = frame.payload_crc if crc is Checksum.CRC32C else None
    if int(frame.flags) & COMPRESSED:
        accept = _is_records if strict else None
        data = decompress(frame.payload, bytes_max=bytes_max, accept=accept)
        crc32c = None
    if not strict:
        return Unpacked(data, find_starts(data), crc32c)
    found = validate(data)
    if found.fault is not None:
        # A copy: with a traceback the fault would hold this call, and so the payload,
        # in a cycle until the garbage collector comes by.
        raise copy(found.fault)
    if len(found.starts) != frame.record_count:
        raise InvalidPayload(
            f"the frame says {frame.record_count} records and holds {len(found.starts)}"
        )
    return Unpacked(data, found.starts, crc32c)


def find_starts(data: Buffer) -> NDArray[np.int64]:
    """Find the records of a batch that may be anything: one, if they are none."""
    found: Scan = scan(data)
    if found.fault is None:
        return found.starts
    return np.zeros(1, np.int64)


def _is_records(data: bytes) -> bool:
    return validate(data).fault is None


class Dedup:
    """The batches that a connection has sent, to recognise one that comes again.

    LWP §10.4: batch ids are unique per connection. Another connection's ids have
    nothing to do with them.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def is_repeated(self, frame: Frame) -> bool:
        """Tell whether a batch was stored before.

        Raises:
            InvalidPayload: its id was used for another one.
        """
        seen = self._seen.get(frame.batch_id)
        if seen is None:
            return False
        if seen != (frame.payload_crc, frame.topic_id):
            raise InvalidPayload(
                f"batch id {frame.batch_id} was used before for another batch"
            )
        return True

    def remember(self, frame: Frame) -> None:
        """Note a batch that is stored."""
        if not self._window:
            return
        self._seen[frame.batch_id] = (frame.payload_crc, frame.topic_id)
        if len(self._seen) > self._window:
            self._seen.popitem(last=False)

    def forget(self, batch_id: int) -> None:
        """Note that a batch is not stored after all, so that it can come again."""
        self._seen.pop(batch_id, None)
