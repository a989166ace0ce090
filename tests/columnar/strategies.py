"""Records for property tests: good ones of every kind, and bytes that are not."""

from __future__ import annotations

import struct

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.columnar.plain import Row, encode_row

PLAIN_TYPES = [n for n in range(1, 255) if n not in (0x10, 0x11, 0x12)]

blobs = st.binary(max_size=40)
keys = st.one_of(st.binary(max_size=6), st.just(b""))
stamps = st.one_of(
    st.integers(0, 2**63 - 1), st.sampled_from([0, 1, 999, 1000, 2**63 - 1])
)


def examples(count: int) -> settings:
    """Run a property on so many examples, however slow the machine is."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, suppress_health_check=slow)


def record(kind: int, body: bytes) -> bytes:
    """Make a record, right or wrong."""
    return struct.pack("<BI", kind, len(body)) + body


@st.composite
def rows(draw: st.DrawFn, *, stamp: st.SearchStrategy[int] = stamps) -> Row:
    """Make a row that can be a record."""
    kind = draw(st.sampled_from(["plain", "plain", "keyed", "stamped", "both", "null"]))
    key = draw(keys) if kind in ("keyed", "both") else None
    when = draw(stamp) if kind in ("stamped", "both") else None
    value = None if kind == "null" else draw(blobs)
    needed = {"keyed": 0x10, "stamped": 0x11, "both": 0x12, "null": 0xFF}.get(kind)
    number = needed or draw(st.sampled_from(PLAIN_TYPES))
    return Row(0, 0, draw(st.sampled_from([None, number])), key, value, when)


def row_lists(max_size: int = 30) -> st.SearchStrategy[list[Row]]:
    """Make rows that can be records, sometimes many alike."""
    some = st.lists(rows(), max_size=max_size)
    alike = st.builds(lambda row, n: [row] * n, rows(), st.integers(0, 300))
    return st.one_of(some, st.builds(lambda a, b, c: a + b + c, some, alike, some))


# A record whose inner lengths are often wrong, although its own length is right.
_strange = st.builds(
    record, st.sampled_from([1, 0x10, 0x11, 0x12, 0xFF]), st.binary(max_size=14)
)
_broken_header = st.sampled_from(
    [
        b"\x00\x00\x00\x00\x00",
        b"\x01\x01\x00\x00\x01",
        b"\x01\xff\xff\xff\xff",
        struct.pack("<BI", 2, 16 * 1024 * 1024 + 1),
        struct.pack("<BI", 2, 16 * 1024 * 1024),
    ]
)
_late = st.builds(
    lambda ns, value: record(0x11, struct.pack("<Q", ns) + value),
    st.integers(2**63 - 1, 2**64 - 1),
    st.sampled_from([b"", b"v", b"\xff"]),
)


@st.composite
def buffers(draw: st.DrawFn) -> bytes:
    """Make a buffer of records that may be damaged in any way."""
    good = st.builds(lambda row: encode_row(row, 0), rows())
    parts = draw(st.lists(st.one_of(good, good, _strange, _late), max_size=12))
    if draw(st.booleans()):
        same = draw(st.one_of(good, _strange))
        parts += [same] * draw(st.integers(0, 200))
    if draw(st.integers(0, 3)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), draw(_broken_header))
    data = b"".join(parts)
    if draw(st.integers(0, 2)) == 0:
        data = data[: draw(st.integers(0, len(data)))]
    return data
