"""Marks: whether offsets of a plain server still mean the same bytes.

A plain server shifts its offsets when it deletes, and nothing in its answers says so.
What it deletes is at the head of the log. So a mark covers the head of the log, and the
bytes before an offset or at both ends of a range. They are others after a shift, unless
records are alike in all of these places. The log's end is compared, too: a log that
ends before where it was seen to end was cut, or has lost more than it has got since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from crc32c import crc32c

from lance_spark.client.driver import LogRef, Range
from lance_spark.client.lwp.finder import fetch_exactly
from lance_spark.errors import DataLoss
from lance_spark.model import MARK_BYTES_MAX, OffsetMark

if TYPE_CHECKING:
    from lance_spark.client import LanceClient


@dataclass(frozen=True, slots=True)
class RangeMark:
    """How a range and its log looked when the range was planned.

    Args:
        size: how many bytes were looked at in each place, at most.
        crc: CRC32C of the first bytes of the log and the first and last of the range.
        log_end: where the log ended.
    """

    size: int
    crc: int
    log_end: int


def mark_offset(
    client: LanceClient, log: LogRef, offset: int, log_end: int
) -> OffsetMark:
    """Look at the bytes before an offset and at the head of its log.

    Raises:
        DataLoss: the log ends before the offset.
    """
    size = min(MARK_BYTES_MAX, offset)
    # The bytes before the offset are the head themselves, if they are all there are.
    head_size = MARK_BYTES_MAX if offset > size else None
    form = OffsetMark(size, 0, head_size, 0, log_end)
    return _look(client, log, offset, form)


def is_mark_right(
    client: LanceClient, log: LogRef, offset: int, mark: OffsetMark
) -> bool:
    """Tell whether an offset still means what it meant when it was marked.

    Marks of earlier releases cover less, and are compared with what they cover.
    """
    try:
        return _look(client, log, offset, mark) == mark
    except DataLoss:
        return False


def _look(
    client: LanceClient, log: LogRef, offset: int, form: OffsetMark
) -> OffsetMark:
    """Take a mark of the same sizes as another one."""
    before = Range(log, 0, offset)

    def sum_up(start: int, size: int) -> int:
        return crc32c(fetch_exactly(client, before, start, size))

    crc, head_crc = sum_up(offset - form.size, form.size), None
    if form.head_size is not None:
        head_crc = sum_up(0, form.head_size)
    return replace(form, crc=crc, head_crc=head_crc)


def mark_range(client: LanceClient, piece: Range, log_end: int) -> RangeMark:
    """Look at the log's head and at both ends of a range.

    Raises:
        DataLoss: they are not there.
    """
    size = min(MARK_BYTES_MAX, piece.size)
    crc = 0
    # In this order: where a part is empty, or the range is one part, less is asked.
    for start, end in (
        (0, min(MARK_BYTES_MAX, piece.start)),
        (piece.start, piece.start + size),
        (max(piece.start + size, piece.end - size), piece.end),
    ):
        crc = crc32c(fetch_exactly(client, piece, start, end - start), crc)
    return RangeMark(size, crc, log_end)


def is_range_right(client: LanceClient, piece: Range) -> bool:
    """Tell whether the offsets of a range mean what they meant when it was marked."""
    mark = piece.mark
    if not isinstance(mark, RangeMark):
        return True
    try:
        is_same = mark_range(client, piece, mark.log_end) == mark
    except DataLoss:
        is_same = False
    # A range that ends with its log has shown that the log is as long as it was.
    if is_same and piece.end < mark.log_end:
        is_same = client.bounds(piece.log.topic_id).end >= mark.log_end
    return is_same
