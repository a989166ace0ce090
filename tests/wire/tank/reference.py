"""The captured frames of `vectors`, and bundles written one message at a time.

The vectors are bytes that the broker and the client in the field exchanged (TANK 4.0,
ecb7a2d, on loopback), one whole frame per line; > is from the client. The encoder below
knows nothing of the codec.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lance_spark.records import Records
from lance_spark.wire.tank import Frame, FrameParser

VECTORS = sorted((Path(__file__).parent / "vectors").glob("*.hex"))


def load() -> list[tuple[str, str, bytes]]:
    """Return name, direction and bytes of every frame that was captured."""
    return [
        (f"{file.stem}-{number}", line[0], bytes.fromhex(line[2:]))
        for file in VECTORS
        for number, line in enumerate(file.read_text().splitlines())
        if line[0] in "<>"
    ]


FRAMES = load()


def find(name: str, direction: str, number: int = 0) -> bytes:
    """Return a frame of a vector, by its number among those of a direction."""
    rows = [row for row in FRAMES if row[0].rpartition("-")[0] == name]
    return [data for _, way, data in rows if way == direction][number]


def parse(data: bytes) -> Frame:
    """Read one frame."""
    parser = FrameParser()
    parser.receive_data(data)
    frame = parser.next_frame()
    assert frame is not None
    return frame


def join(parts: Iterable[Any]) -> bytes:
    """Concatenate what an encoder returned."""
    return b"".join(bytes(part) for part in parts)


class Row(NamedTuple):
    """A message."""

    seq: int
    time_ms: int
    key: bytes | None
    value: bytes


def varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def bundle(rows: Sequence[Row], *, sparse: bool = False) -> bytes:
    """Write a bundle, as the client in the field does it."""
    count = len(rows)
    small = count if 0 < count < 16 else 0
    out = [bytes([small << 2 | sparse << 6])]
    out += [] if small else [varint(count)]
    if sparse:
        out.append(struct.pack("<Q", rows[0].seq))
        out += [varint(rows[-1].seq - rows[0].seq - 1)] if count > 1 else []
    for i, row in enumerate(rows):
        flags, gap = row.key is not None, b""
        same = i > 0 and rows[i - 1].time_ms == row.time_ms
        if sparse and 0 < i < count - 1:
            skipped = row.seq - rows[i - 1].seq - 1
            gap = varint(skipped) if skipped else b""
        prev = 4 if sparse and 0 < i < count - 1 and not gap else 0
        out.append(bytes([flags | same << 1 | prev]) + gap)
        out += [] if same else [struct.pack("<Q", row.time_ms)]
        out += [] if row.key is None else [bytes([len(row.key)]), row.key]
        out += [varint(len(row.value)), row.value]
    return b"".join(out)


def frame_bundle(data: bytes) -> bytes:
    """Put the length in front of a bundle."""
    return varint(len(data)) + data


def make_rows(chance: random.Random, count: int, *, start: int = 1) -> list[Row]:
    """Make messages: alike or not, with keys or without, with gaps if one says so."""
    alike, keyed = chance.random() < 0.5, chance.choice([0, 0.5, 1])
    size, times = chance.randrange(300), chance.choice([1, 3, 10**13])
    rows = []
    for seq in range(start, start + count):
        length = size if alike else chance.choice([0, 1, 20, 127, 128, 300])
        key = chance.randbytes(2 if alike else chance.choice([0, 1, 255]))
        key_or_none = key if chance.random() < keyed else None
        value = chance.randbytes(length)
        rows.append(Row(seq, chance.randrange(times), key_or_none, value))
    return rows


def spread(rows: list[Row], chance: random.Random) -> list[Row]:
    """Leave out numbers between messages."""
    seq, out = rows[0].seq - 1 if rows else 0, []
    for row in rows:
        seq += 1 + (chance.choice([1, 200, 70000]) if chance.random() < 0.3 else 0)
        out.append(row._replace(seq=seq))
    return out


def unpack(records: Records) -> list[Row]:
    """Read records one by one."""
    values, keys = records.values, records.keys
    keyed = {int(row): i for i, row in enumerate(records.keyed)}
    assert records.stamped.tolist() == list(range(len(records)))
    rows = []
    for row, seq in enumerate(records.find_positions().tolist()):
        i = keyed.get(row)
        key = None if i is None else bytes(keys.data[keys.starts[i] : keys.ends[i]])
        value = bytes(values.data[values.starts[row] : values.ends[row]])
        time_ms, rest = divmod(int(records.stamps_ns[row]), 1_000_000)
        assert rest == 0
        rows.append(Row(seq, time_ms, key, value))
    return rows
