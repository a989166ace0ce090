"""Pages of records, straight from a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lance_spark.broker.console import records as module
from lance_spark.broker.console.records import (
    LIMIT_MAX,
    TEXT_MAX,
    Query,
    make_cell,
    name_type,
    parse_query,
    read_page,
    read_value,
)
from lance_spark.errors import Corrupt, OptionError, OutOfRange, StorageError
from lance_spark.quantity import RECORD_TYPES
from lance_spark.store import Store, StoreConfig, View
from lance_spark.wire.lwp import RecordType, scan
from tests.broker.console.visit import keyed
from tests.broker.kit import record
from tests.each import each

TOPIC = 1
SECOND_NS = 1_000_000_000


class Shelf:
    """A store with one topic, and a clock that is set by hand."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.now_s = 100
        config = StoreConfig(fsync="none", **settings)  # type: ignore[arg-type]
        self.store = Store(
            path,
            framing=scan,
            config=config,
            clock_ns=lambda: self.now_s * SECOND_NS,
            background=False,
        )
        self.store.create_topic("t")

    def view(self) -> View:
        return self.store.view(TOPIC)

    def append(self, *parts: bytes) -> None:
        """Append a batch of records; a second passes."""
        data = b"".join(parts)
        self.store.append(TOPIC, data, scan(data).starts)
        self.now_s += 1

    def append_unchecked(self, data: bytes) -> None:
        """Append a batch as a broker does that checks nothing."""
        self.store.append(TOPIC, data, np.zeros(1, np.int64))

    def page(self, **fields: Any) -> dict[str, Any]:
        """Read a page, by the parameters of a request."""
        texts = {name.rstrip("_"): str(value) for name, value in fields.items()}
        return read_page(self.view, parse_query(texts))


MakeShelf = Callable[..., Shelf]


@pytest.fixture
def make_shelf(directory: Path) -> Iterator[MakeShelf]:
    shelves: list[Shelf] = []

    def make(**settings: Any) -> Shelf:
        shelves.append(Shelf(directory / str(len(shelves)), **settings))
        return shelves[-1]

    yield make
    for shelf in shelves:
        shelf.store.close()


@pytest.fixture
def shelf(make_shelf: MakeShelf) -> Shelf:
    """A hundred records in batches of ten, a second apart, over several segments."""
    shelf = make_shelf(segment_bytes=200, index_stride_bytes=64)
    for first in range(0, 100, 10):
        shelf.append(*(record(f"{n:02}".encode()) for n in range(first, first + 10)))
    assert len(shelf.view().segments) > 3
    return shelf


def values(page: dict[str, Any]) -> list[str]:
    return [row["value"]["text"] for row in page["records"]]


ALL = [f"{n:02}" for n in range(100)]
SIZE = 7  # Of each record.


# Paging.


@pytest.mark.parametrize("limit", [1, 7, 10, 33, 100, 500])
def test_forward_and_back(shelf: Shelf, limit: int) -> None:
    forward = [shelf.page(limit=limit)]
    assert forward[0]["previous_offset"] is None
    while not forward[-1]["at_end"]:
        at = forward[-1]["next_offset"]
        forward.append(shelf.page(limit=limit, from_=f"offset:{at}"))
    assert [v for page in forward for v in values(page)] == ALL
    assert {len(page["records"]) for page in forward[:-1]} <= {limit}
    assert forward[-1]["next_offset"] == forward[-1]["log_end"] == 100 * SIZE

    back = [shelf.page(limit=limit, from_="end")]
    assert back[0]["at_end"] and values(back[0]) == ALL[-limit:]
    while (at := back[-1]["previous_offset"]) is not None:
        page = shelf.page(limit=limit, from_=f"offset:{at}")
        # The first page has more than are left, where they do not come out even.
        assert page["next_offset"] >= back[-1]["first_offset"]
        back.append(page)
    assert back[-1]["first_offset"] == 0
    assert {v for page in back for v in values(page)} == set(ALL)


def test_every_timestamp_is_shown(make_shelf: MakeShelf) -> None:
    shelf = make_shelf()
    stamps = [0, 2**63 - 1, 2**63, 2**64 - 1]
    shelf.append(*(keyed(b"k", b"v", timestamp_ns=stamp) for stamp in stamps))
    records = shelf.page()["records"]
    assert [int(each["time_ns"]) for each in records] == stamps


def test_fields_of_a_record(make_shelf: MakeShelf) -> None:
    shelf = make_shelf()
    first = keyed(b"k\xff", b'{"a": 1}', timestamp_ns=1_700_000_000_123_456_789)
    shelf.append(first, record(b"\x00", 0x80))
    shelf.append(record(b"", 0xFF))
    page = shelf.page()
    end = len(first)
    assert page == {
        "log_start": 0,
        "log_end": end + 6 + 5,
        "first_offset": 0,
        "next_offset": end + 6 + 5,
        "previous_offset": None,
        "at_end": True,
        "scanned_bytes": end + 6 + 5,
        "scanned_all": True,
        "records": [
            {
                "offset": 0,
                "next_offset": end,
                "record": 0,
                "type": 0x12,
                "type_name": "key-timestamped",
                "time_ns": "1700000000123456789",
                "append_ms": 100_000,
                "key": {"kind": "hex", "text": "6bff", "size": 2, "truncated": False},
                "value": {
                    "kind": "json",
                    "text": '{"a": 1}',
                    "size": 8,
                    "truncated": False,
                },
            },
            {
                "offset": end,
                "next_offset": end + 6,
                "record": 1,
                "type": 0x80,
                "type_name": "0x80",
                "time_ns": None,
                "append_ms": 100_000,
                "key": None,
                "value": {"kind": "hex", "text": "00", "size": 1, "truncated": False},
            },
            {
                "offset": end + 6,
                "next_offset": end + 11,
                "record": 2,
                "type": 0xFF,
                "type_name": "null",
                "time_ns": None,
                "append_ms": 101_000,
                "key": None,
                "value": None,
            },
        ],
    }
    json.dumps(page)


def test_places(shelf: Shelf) -> None:
    assert values(shelf.page(limit=2, from_="record:42")) == ["42", "43"]
    assert values(shelf.page(limit=2, from_=f"offset:{42 * SIZE}")) == ["42", "43"]
    # Inside of one: the next.
    inside = shelf.page(limit=2, from_=f"offset:{42 * SIZE + 3}")
    assert values(inside) == ["43", "44"] and inside["first_offset"] == 43 * SIZE
    assert inside["previous_offset"] == 41 * SIZE
    # A batch came each second, the first at 100.
    assert values(shelf.page(limit=1, from_="time:104000")) == ["40"]
    assert values(shelf.page(limit=1, from_="time:103001")) == ["40"]
    assert values(shelf.page(limit=1, from_="time:1970-01-01T00:01:44Z")) == ["40"]
    assert values(shelf.page(limit=1, from_="time:0")) == ["00"]
    assert [
        row["record"] for row in shelf.page(limit=2, from_="record:99")["records"]
    ] == [99]


@pytest.mark.parametrize("place", ["offset:99999", "record:1000", "time:999999999"])
def test_behind_the_end(shelf: Shelf, place: str) -> None:
    page = shelf.page(limit=5, from_=place)
    assert page["records"] == [] and page["first_offset"] is None and page["at_end"]
    assert page["next_offset"] == 100 * SIZE
    assert page["previous_offset"] == 95 * SIZE


def test_empty_topic(make_shelf: MakeShelf) -> None:
    shelf = make_shelf()
    for place in ("start", "end", "offset:0", "offset:7", "record:0", "time:0"):
        for more in ({}, {"search": "x"}):
            page = shelf.page(from_=place, **more)
            assert page["records"] == [] and page["at_end"] and page["scanned_all"]
            assert page["next_offset"] == 0 and page["previous_offset"] is None


def test_append_times_of_mixed_batches(make_shelf: MakeShelf) -> None:
    shelf = make_shelf()
    expected = []
    for size in (1, 5, 1, 1, 9, 2):
        expected += [shelf.now_s * 1000] * size
        shelf.append(*[record(b"x")] * size)
    assert [row["append_ms"] for row in shelf.page()["records"]] == expected


def test_after_retention(shelf: Shelf) -> None:
    shelf.store.topic(TOPIC).drop_before(_start_of(shelf.view(), 1))
    start = shelf.view().start
    assert start.offset > 0
    for place in ("start", "offset:0", "record:0", "time:0"):
        page = shelf.page(from_=place, limit=3)
        assert page["log_start"] == page["first_offset"] == start.offset
        assert page["previous_offset"] is None
        assert values(page) == ALL[start.record : start.record + 3]
    second = shelf.page(from_=f"record:{start.record + 1}")
    assert second["previous_offset"] == start.offset


def _start_of(view: View, segment: int) -> Any:
    from lance_spark.store import LogStart

    found = view.segments[segment]
    return LogStart(found.base_offset, found.base_record, found.name.number)


def test_retention_during_a_page(shelf: Shelf) -> None:
    old = shelf.view()
    shelf.store.topic(TOPIC).drop_before(_start_of(old, 2))
    views = [old, shelf.view()]
    # The old view's files are gone: not even those in the cache are there.
    shelf.store._context.segments.clear()
    page = read_page(lambda: views.pop(0), Query())
    assert page["log_start"] > 0 and not views

    class Fleeting:
        def __getattr__(self, name: str) -> Any:
            raise OutOfRange(0, 1, 2)

    with pytest.raises(StorageError, match="cut faster"):
        read_page(lambda: Fleeting(), Query())  # type: ignore[arg-type,return-value]


# Large values.


def test_large_values(make_shelf: MakeShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 250_000)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 150_000)
    shelf = make_shelf()
    for n in range(8):
        shelf.append(record(bytes([n]) * 100_000))
    shelf.append(record(b"x" * 900_000))
    page = shelf.page(limit=100)
    # Fewer than asked for, and where to go on.
    assert [row["value"]["size"] for row in page["records"]] == [100_000] * 2
    assert not page["at_end"] and page["next_offset"] == 2 * 100_005
    cell = page["records"][0]["value"]
    assert cell["truncated"] and len(cell["text"]) == 4096
    # The last one is there, however large it is; so is the way back.
    last = shelf.page(limit=100, from_="end")
    assert [row["value"]["size"] for row in last["records"]] == [900_000]
    assert last["at_end"]
    before = shelf.page(limit=100, from_=f"offset:{last['previous_offset']}")
    assert before["next_offset"] == last["first_offset"]
    assert len(before["records"]) == 2
    seen, at = 0, 0
    while True:
        page = shelf.page(limit=3, from_=f"offset:{at}")
        seen, at = seen + len(page["records"]), page["next_offset"]
        if page["at_end"]:
            break
    assert seen == 9


def test_whole_values(shelf: Shelf) -> None:
    value = read_value(shelf.view, 42 * SIZE)
    assert value is not None and value.to_pybytes() == b"42"
    assert read_value(shelf.view, 42 * SIZE + 1) is None
    assert read_value(shelf.view, 100 * SIZE) is None
    assert read_value(shelf.view, 10**9) is None
    shelf.append(record(b"", 0xFF), keyed(b"k", b"\x00" * 1_000_000))
    assert read_value(shelf.view, 100 * SIZE) is None
    value = read_value(shelf.view, 100 * SIZE + 5)
    assert value is not None and value.to_pybytes() == b"\x00" * 1_000_000


# Searching.


@pytest.fixture
def library(make_shelf: MakeShelf) -> Shelf:
    shelf = make_shelf(segment_bytes=2000)
    for n in range(100):
        shelf.append(
            keyed(f"k{n % 10}".encode(), f"value {n}".encode()),
            record(b"plain \xff%d" % n),
            record(b"", 0xFF),
        )
    return shelf


def test_by_key(library: Shelf) -> None:
    page = library.page(key="k3")
    assert values(page) == [f"value {n}" for n in range(3, 100, 10)]
    assert page["scanned_all"] and page["at_end"]
    assert page["previous_offset"] is None
    assert page["scanned_bytes"] == page["log_end"]
    assert [row["record"] for row in page["records"]] == [*range(9, 300, 30)]
    assert library.page(key="k")["records"] == []
    assert library.page(key="value 3")["records"] == []


def test_by_text(library: Shelf) -> None:
    assert values(library.page(search="value 9")) == [
        "value 9",
        *(f"value {n}" for n in range(90, 100)),
    ]
    # In keys as well.
    assert len(library.page(search="k3")["records"]) == 10
    both = library.page(key="k3", search="9")
    assert values(both) == ["value 93"]
    # As bytes: no pattern of any kind.
    assert library.page(search="value .")["records"] == []
    assert library.page(search="grün")["records"] == []


def test_a_search_goes_on(library: Shelf) -> None:
    found: list[str] = []
    at = 0
    while True:
        page = library.page(search="value", limit=7, from_=f"offset:{at}")
        found += values(page)
        at = page["next_offset"]
        if page["scanned_all"]:
            break
        assert len(page["records"]) == 7 and not page["at_end"]
        assert at == page["records"][-1]["next_offset"]
    assert found == [f"value {n}" for n in range(100)]


def test_a_search_is_bounded(library: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_BYTES_MAX", 1000)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 300)
    at, pages = 0, 0
    while True:
        page = library.page(search="value 99", from_=f"offset:{at}")
        assert 0 < page["scanned_bytes"] <= 1000
        at, pages = page["next_offset"], pages + 1
        if page["scanned_all"]:
            break
        assert page["records"] == []
    assert values(page) == ["value 99"] and pages > 3


def test_a_search_does_not_pile_up_values(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watch(name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **options: Any) -> Any:
            seen.append(name)
            return real(*args, **options)

        monkeypatch.setattr(module, name, call)

    watch("decode")
    watch("make_cell")
    shelf.page(search="0", limit=500)
    # What is found in a piece is cut to what is shown before the next one is read.
    assert seen.count("decode") > 3
    assert seen[:2] == ["decode", "make_cell"] and seen[-1] == "make_cell"
    assert "decode" in seen[seen.index("make_cell") :]


def test_a_search_from_inside_a_record(library: Shelf) -> None:
    assert values(library.page(search="value", limit=1, from_="offset:3")) == [
        "value 1"
    ]
    assert library.page(search="value", from_="end")["records"] == []


# What is no record.


def test_unchecked_batches(make_shelf: MakeShelf) -> None:
    shelf = make_shelf()
    whole = b"".join(record(b"%02d" % n) for n in range(10))
    shelf.append_unchecked(whole)
    shelf.append_unchecked(b"\x00 no record")
    shelf.append_unchecked(whole[:17])  # Two and a half.
    bad_key = record(b"\xff\xff\xff\xff", 0x10)
    shelf.append_unchecked(record(b"aa") + bad_key + record(b"bb"))
    page = shelf.page()
    shown = [(row["type_name"], row["value"]["text"]) for row in page["records"]]
    assert shown == [
        *(("raw", f"{n:02}") for n in range(10)),
        ("unreadable", b"\x00 no record".hex()),
        ("raw", "00"),
        ("raw", "01"),
        ("unreadable", whole[14:17].hex()),
        ("raw", "aa"),
        ("unreadable", bad_key.hex()),
        ("raw", "bb"),
    ]
    spans = [(row["offset"], row["next_offset"]) for row in page["records"]]
    assert spans[0][0] == 0 and spans[-1][1] == page["log_end"]
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    # The log knows batches only: nothing is lost between two pages all the same.
    for limit in (1, 2, 3, 7):
        at, walked = 0, []
        while at < page["log_end"]:
            part = shelf.page(limit=limit, from_=f"offset:{at}")
            assert 0 < len(part["records"]) <= limit
            walked += [(row["offset"], row["next_offset"]) for row in part["records"]]
            at = part["next_offset"]
        assert walked == spans
    for (start, end), row in zip(spans, page["records"], strict=True):
        value = read_value(shelf.view, start)
        assert value is not None
        if row["type_name"] == "unreadable":
            assert len(value) == end - start
    assert [row["record"] for row in shelf.page(search="05")["records"]] == [None]
    # Nor on the way back, which begins with the very last ones.
    for limit in (1, 2, 3, 7, 100):
        part = shelf.page(limit=limit, from_="end")
        assert part["at_end"]
        walked = []
        while True:
            here = [(row["offset"], row["next_offset"]) for row in part["records"]]
            walked = here[: len(spans) - len(walked)] + walked
            if part["previous_offset"] is None:
                break
            part = shelf.page(limit=limit, from_=f"offset:{part['previous_offset']}")
        assert walked == spans
    # All of a batch were appended when it was.
    assert {row["append_ms"] for row in page["records"]} == {100_000}


def test_damage(shelf: Shelf) -> None:
    segment = shelf.view().segments[1]
    shelf.store._context.segments.clear()
    path = shelf.store.path / "segments" / str(TOPIC) / segment.name.data_file
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    # What is before it is shown, then it is an error that says where.
    page = shelf.page(limit=3)
    assert values(page) == ALL[:3]
    with pytest.raises(Corrupt, match=r"segments/1|topic 1"):
        shelf.page(limit=3, from_=f"offset:{segment.end - SIZE}")


SECOND_NS = 1_000_000_000


def test_parameters() -> None:
    assert parse_query({}) == Query("start", 0, 50, None, None)
    fields = {"from": "offset:12", "limit": "500", "key": "ü", "search": "x y"}
    assert parse_query(fields) == Query("offset", 12, 500, "ü".encode(), b"x y")
    assert parse_query({"from": "record:3"}).value == 3
    assert parse_query({"from": "", "limit": "", "key": "", "search": ""}) == Query()
    assert parse_query({"from": f"offset:{10**19 - 1}"}).value == 2**63 - 1


@each(
    ("text", "ns"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123_000_000),
        ("9999999999999999999", 2**63 - 1),
        ("2026-01-31T12:00:00Z", 1_769_860_800 * SECOND_NS),
        ("2026-01-31T13:00:00+01:00", 1_769_860_800 * SECOND_NS),
        ("2026-01-31T12:00:00.000001", 1_769_860_800 * SECOND_NS + 1000),
        ("2026-01-31", 1_769_817_600 * SECOND_NS),
        ("1900-01-01", 0),
    ],
)
def test_times(text: str, ns: int) -> None:
    assert parse_query({"from": f"time:{text}"}) == Query("time", ns)


@each(
    ("fields", "text"),
    [
        ({"from": "middle"}, "start, end, offset:N"),
        ({"from": "offset"}, "start, end, offset:N"),
        ({"from": "offset:-1"}, "not a whole number"),
        ({"from": "offset:1e3"}, "not a whole number"),
        ({"from": "offset:٣"}, "not a whole number"),
        ({"from": "record:" + "9" * 20}, "not a whole number"),
        ({"from": "time:yesterday"}, "neither milliseconds"),
        ({"from": "time:"}, "neither milliseconds"),
        ({"from": "time:" + "9" * 5000}, "not a whole number"),
        ({"from": "x" * 5000}, "start, end"),
        ({"limit": "0"}, f"from 1 to {LIMIT_MAX}"),
        ({"limit": "501"}, f"from 1 to {LIMIT_MAX}"),
        ({"limit": "many"}, "not a whole number"),
    ],
)
def test_parameters_that_can_not_be(fields: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text) as error:
        parse_query(fields)
    assert len(str(error.value)) < 300


@each(
    ("data", "kind", "text"),
    [
        (b"", "text", ""),
        (b"hello", "text", "hello"),
        ("grüße\t\r\n".encode(), "text", "grüße\t\r\n"),
        # Marks that change the direction or join emoji are text.
        ("\u202eabc 👩\u200d👧".encode(), "text", "\u202eabc 👩\u200d👧"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b" [1,\n 2]", "json", " [1,\n 2]"),
        (b"123", "text", "123"),
        (b'{"a": ', "text", '{"a": '),
        (b"[" * 5000, "text", "[" * TEXT_MAX),
        (b"\x00\x01\xff", "hex", "0001ff"),
        (b"a\x00b", "hex", "610062"),
        (b"\x1b[31m", "hex", "1b5b33316d"),
        (b"caf\xe9", "hex", "636166e9"),
        (b"half \xc3", "hex", "68616c6620c3"),
    ],
)
def test_what_bytes_are_shown_as(data: bytes, kind: str, text: str) -> None:
    cell = make_cell(data)
    assert cell is not None
    assert (cell["kind"], cell["text"], cell["size"]) == (kind, text, len(data))
    assert cell["truncated"] == (len(data) > TEXT_MAX)


def test_nothing_is_nothing() -> None:
    assert make_cell(None) is None


def test_not_as_text() -> None:
    cell = make_cell(b"abc", may_be_text=False)
    assert cell == {"kind": "hex", "text": "616263", "size": 3, "truncated": False}


def test_long_values_are_cut() -> None:
    # A prefix of so many bytes ends inside a character.
    text = make_cell(b"x" + "ü".encode() * 100_000)
    assert text is not None
    assert text["text"] == "x" + "ü" * (TEXT_MAX - 1)
    assert (text["kind"], text["truncated"], text["size"]) == ("text", True, 200_001)
    binary = make_cell(bytes(1_000_000))
    assert binary is not None
    assert binary["text"] == "00" * (TEXT_MAX // 2) and binary["truncated"]
    assert make_cell(bytes(TEXT_MAX // 2))["truncated"] is False  # type: ignore[index]


def test_long_json_is_json_as_far_as_it_is_looked_at() -> None:
    medium = json.dumps(["x" * 10_000]).encode()
    assert make_cell(medium)["kind"] == "json"  # type: ignore[index]
    large = json.dumps(["x" * 100_000]).encode()
    assert make_cell(large)["kind"] == "text"  # type: ignore[index]


def test_names_of_types() -> None:
    for name, number in RECORD_TYPES.items():
        assert name_type(number) == name
    names = {name_type(int(kind)) for kind in RecordType}
    assert len(names) == len(RecordType) and "null" in names
    assert name_type(0x80) == "0x80"
    assert name_type(0) == "unreadable"
