"""Inputs for the fuzz test: the vectors, damaged in ways that matter.

Half of the inputs are damaged streams. A changed byte there mostly ends in a checksum,
so that the other half is damaged inside and its lengths and checksums are mended again:
those get through to the decoders.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from lance_spark.wire.lwp import (
    Checksum,
    Command,
    FrameFlags,
    encode_frame,
    encode_ingest,
)
from tests.wire.vectors import CHECKSUMS, join, load

# What lengths, counts and flags break at.
_SMALL = (0, 1, 2, 4, 7, 8, 16, 44, 0x7F, 0x80, 0xFE, 0xFF, 0x100, 0x7FFF, 0xFFFF)
_LARGE = (0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63, 2**64 - 1)
_EDGES = _SMALL + _LARGE
_WIDTHS = (("<B", 0xFF), ("<H", 0xFFFF), ("<I", 0xFFFFFFFF), ("<Q", 2**64 - 1))
_COMMANDS = tuple(Command)
_CHECKSUMS = tuple(Checksum)


def seed_streams() -> list[bytes]:
    """Return every vector as a stream of bytes."""
    streams = []
    for name in ("frames", "messages", "extensions"):
        for row in load(name):
            streams += [bytes.fromhex(row[checksum]) for checksum in CHECKSUMS]
    streams += [bytes.fromhex(row["hex"]) for row in load("malformed_frames")]
    for row in [*load("lz4"), *load("records")]:
        payload = bytes.fromhex(row["hex"])
        for compressed in (True, False):
            frame = encode_ingest(
                [payload], batch_id=1, record_count=1, compressed=compressed
            )
            streams.append(join(frame))
    return streams


def seed_payloads() -> list[tuple[int, int, bytes]]:
    """Return flags, batch id and payload of every vector that has one."""
    seeds = []
    for name in ("messages", "extensions", "malformed_messages"):
        for row in load(name):
            payload = bytes.fromhex(row["payload"])
            seeds.append((int(FrameFlags.CONTROL), row["command"], payload))
    for name in ("lz4", "records"):
        for row in load(name):
            payload = bytes.fromhex(row["hex"])
            seeds += [(flags, 1, payload) for flags in (0x04, 0x05)]
    return seeds


class Mutator:
    """Make inputs, the same ones for the same seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._streams = seed_streams()
        self._payloads = seed_payloads()
        self._damages: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._put_edge,
            self._insert,
            self._delete,
            self._repeat,
            self._splice,
        )

    @property
    def random(self) -> random.Random:
        """The source of chance, to be used for decisions that go with an input."""
        return self._random

    def next_input(self) -> bytes:
        """Return the next input."""
        if self._random.random() < 0.5:
            return self._damaged_stream()
        return self._mended_frame() + (
            self._mended_frame() if self._random.random() < 0.2 else b""
        )

    def _damaged_stream(self) -> bytes:
        count = self._random.randrange(1, 4)
        stream = bytearray(b"".join(self._random.choices(self._streams, k=count)))
        self._damage(stream)
        return bytes(stream)

    def _mended_frame(self) -> bytes:
        flags, batch_id, payload = self._random.choice(self._payloads)
        if self._random.random() < 0.1:
            flags = self._random.randrange(0x80)
        if self._random.random() < 0.1:
            batch_id = self._random.choice(_COMMANDS)
        damaged = bytearray(payload)
        self._damage(damaged)
        parts = encode_frame(
            flags,
            [damaged],
            batch_id=batch_id,
            record_count=self._random.randrange(3),
            topic_id=self._random.randrange(3),
            checksum=self._random.choice(_CHECKSUMS),
        )
        return join(parts)

    def _damage(self, data: bytearray) -> None:
        for _ in range(self._random.randrange(4)):
            self._random.choice(self._damages)(data)

    def _place(self, data: bytearray) -> int:
        return self._random.randrange(len(data) + 1)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

    def _put_edge(self, data: bytearray) -> None:
        layout, mask = self._random.choice(_WIDTHS)
        edge = struct.pack(layout, self._random.choice(_EDGES) & mask)
        start = self._place(data)
        data[start : start + len(edge)] = edge

    def _insert(self, data: bytearray) -> None:
        start = self._place(data)
        data[start:start] = self._random.randbytes(self._random.randrange(1, 9))

    def _delete(self, data: bytearray) -> None:
        start = self._place(data)
        del data[start : start + self._random.randrange(1, 9)]

    def _repeat(self, data: bytearray) -> None:
        start = self._place(data)
        piece = data[start : start + self._random.randrange(1, 33)]
        data[start:start] = piece * self._random.randrange(1, 9)

    def _splice(self, data: bytearray) -> None:
        _, _, other = self._random.choice(self._payloads)
        start = self._place(data)
        data[start : start + self._random.randrange(16)] = other[: self._place(data)]
