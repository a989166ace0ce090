"""The head of `journal.log` and `consumers.log`, files that entries are appended to.

     0        8       12      16      24      28              36      40          64
    +--------+-------+-------+-------+-------+---------------+-------+-----------+
    | magic  |version| crc   | end   | turn  | state         | crc   | the other |
    |        | u32 2 | u32   | u64   | u32   | u64           | u32   | mark      |
    +--------+-------+-------+-------+-------+---------------+-------+-----------+
     head, crc over 12 bytes  first mark, crc over 20 bytes

A mark says that all entries before its end are durable. It is written once their sync
has returned, and not synced itself: it never promises too much. The two are written in
turn, with a number that rises, so that one is whole if writing the other was cut short.
What is damaged before the end of the valid mark was answered for; what is not whole
behind it was not, and is cut off.

Version 1, of releases up to 0.5, has a head of 16 bytes with 0 for the crc, no marks,
and its entries right behind.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lance_spark.checksum import crc32c
from lance_spark.errors import StoreError
from lance_spark.store.files import File, Files, remove_if_there

VERSION = 2
_HEAD = struct.Struct("<8sII")
_MARK = struct.Struct("<QIQI")
_START_1 = _HEAD.size
HEAD_BYTES = _HEAD.size + 2 * _MARK.size


class DurableMark(NamedTuple):
    """Up to where entries are durable.

    Args:
        end: byte behind the last of them.
        turn: rises with each mark.
        state: what the entries add up to, where the file's owner says so.
    """

    end: int
    turn: int = 1
    state: int = 0


NO_MARK = DurableMark(0)


class EntryLogHead(NamedTuple):
    """What the start of a file says.

    Args:
        version: 1, 2, or a later one of this file.
        start: where the first entry is.
        mark: how far entries are durable; version 1 can't tell.
        faults: what is damaged; entries may be sound all the same.
        torn: one of the marks is not whole, as a crash may leave it.
    """

    version: int
    start: int
    mark: DurableMark
    faults: tuple[str, ...] = ()
    torn: bool = False


def encode_head(magic: bytes, mark: DurableMark, version: int = VERSION) -> bytes:
    """Encode the start of a new file, where both marks say the same."""
    head = _HEAD.pack(magic, version, crc32c(magic + version.to_bytes(4, "little")))
    return head + b"".join(encode_mark(mark._replace(turn=n)) for n in (0, 1))


def encode_mark(mark: DurableMark) -> bytes:
    """Encode a mark."""
    body = _MARK.pack(*mark, 0)[:-4]
    return body + crc32c(body).to_bytes(4, "little")


def mark_position(mark: DurableMark) -> int:
    """Tell which of the two places a mark goes to."""
    return _HEAD.size + mark.turn % 2 * _MARK.size


class Beside(NamedTuple):
    """A new file that is to replace another, and its mark."""

    path: Path
    file: File
    mark: DurableMark


def write_beside(
    files: Files,
    path: Path,
    magic: bytes,
    body: bytes,
    state: int = 0,
    version: int = VERSION,
) -> Beside:
    """Write a new file, durably, beside the one that it is to replace."""
    beside = path.with_name(path.name + ".tmp")
    remove_if_there(files, beside)
    mark = DurableMark(HEAD_BYTES + len(body), state=state)
    file = files.open(beside, create=True)
    file.pwrite(encode_head(magic, mark, version) + body, 0)
    file.sync()
    return Beside(beside, file, mark)


def move_mark(file: File, old: DurableMark, end: int, state: int = 0) -> DurableMark:
    """Note that entries up to an end are durable; only after their sync."""
    mark = DurableMark(end, old.turn + 1, state)
    # The entries are durable, whatever becomes of the mark: an old one only says less.
    with suppress(OSError):
        file.pwrite(encode_mark(mark), mark_position(mark))
    return mark


def decode_head(
    data: bytes, magic: bytes, what: str, newest: int = VERSION
) -> EntryLogHead | None:
    """Read the start of a file; None if there is not even room for one.

    Raises:
        StoreError: a newer release wrote it, and it is not to be touched.
    """
    if len(data) < _HEAD.size:
        return None
    found, version, crc = _HEAD.unpack_from(data)
    marks = [m for m in map(_decode_mark, (data, data), (0, 1)) if m is not None]
    mark = max(marks, key=lambda m: m.turn, default=NO_MARK)
    sound = crc == crc32c(data[:12]) and found == magic
    if sound and not VERSION <= version <= newest:
        raise StoreError(f"{what} version {version}, which is not supported")
    if (found, version, crc) == (magic, 1, 0):
        return EntryLogHead(1, _START_1, NO_MARK)
    faults = () if sound else ("its head is damaged",)
    if not sound and not marks:
        return EntryLogHead(1, _START_1, NO_MARK, faults)
    if not marks:
        faults = (*faults, "both of its marks are damaged")
    start = min(HEAD_BYTES, len(data))
    version = version if sound else VERSION
    return EntryLogHead(version, start, mark, faults, torn=len(marks) == 1)


def _decode_mark(data: bytes, number: int) -> DurableMark | None:
    at = _HEAD.size + number * _MARK.size
    body = data[at : at + _MARK.size]
    if len(body) < _MARK.size or crc32c(body[:-4]) != int.from_bytes(
        body[-4:], "little"
    ):
        return None
    return DurableMark(*_MARK.unpack(body)[:3])
