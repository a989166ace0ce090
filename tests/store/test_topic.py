"""A topic's name and metadata, and what retention drops of it."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from lance_spark.errors import (
    InvalidName,
    OptionError,
    OutOfRange,
    StoreError,
    StoreWriteFailed,
)
from lance_spark.model import Retention
from lance_spark.store import Point, Store, TopicMetadata
from lance_spark.store.document import encode_document
from lance_spark.store.format import SegmentName
from lance_spark.store.segment import Segment
from lance_spark.store.topic import (
    check_name,
    decode_topic,
    encode_topic,
    plan_retention,
)
from tests.each import each
from tests.store.disk import DiskFiles
from tests.store.jobs import Clock, refusing, reopen
from tests.store.kit import SMALL, StoreConfig, batch, check_clean, open_store, read_all


@each(
    "name",
    ["a", "events.v2", "a b", "Ωμέγα", "...", "x" * 255, "é" * 127, "\U0001f600"],
)
def test_names_that_are_allowed(name: str) -> None:
    check_name(name)


@each(
    ("name", "reason"),
    [
        ("", "has 0 bytes: give 1 to 255"),
        ("x" * 256, "has 256 bytes"),
        ("é" * 128, "has 256 bytes"),
        (".", "is a name of directories"),
        ("..", "is a name of directories"),
        ("../x", "has a slash"),
        ("a\\b", "has a slash"),
        ("a\0b", "a control character"),
        ("a\nb", "a control character"),
        ("a\x7fb", "a control character"),
        ("a\x9fb", "a control character"),
        ("a\ud800", "has half a character"),
    ],
)
def test_names_that_are_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidName, match=reason):
        check_name(name)


METADATA = TopicMetadata(
    7,
    "Ωμέγα",
    1_700,
    retention=Retention(60, 1_000),
    auth={"cn": ["a", "b"]},
    start=Point(100, 10, 2),
)


def test_metadata_comes_back() -> None:
    assert decode_topic(encode_topic(METADATA)) == METADATA
    plain = TopicMetadata(0, "", 0)
    assert decode_topic(encode_topic(plain)) == plain


def test_metadata_has_the_fields_of_the_specification() -> None:
    fields = json.loads(encode_topic(METADATA))
    assert len(fields.pop("crc32c")) == 8
    assert fields == {
        "format": 2,
        "id": 7,
        "name": "Ωμέγα",
        "created_at": 1_700,
        "topic_epoch": 1,
        "auth": {"cn": ["a", "b"]},
        "retention": {"max_age_secs": 60, "max_bytes": 1_000},
        "log_start": {"offset": 100, "record": 10, "segment": 2},
    }


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"{}", b"\xff", b"null"])
def test_what_is_no_metadata(data: bytes) -> None:
    with pytest.raises(StoreError):
        decode_topic(data)


def unchecked(metadata: TopicMetadata) -> dict[str, Any]:
    """What a release up to 0.5 wrote."""
    fields = {**json.loads(encode_topic(metadata)), "format": 1}
    del fields["crc32c"]
    return fields


def test_format_1_is_read() -> None:
    assert decode_topic(json.dumps(unchecked(METADATA)).encode()) == METADATA


@pytest.mark.parametrize("format_", [1, 2])
def test_every_field_is_needed(format_: int) -> None:
    fields = unchecked(METADATA)
    for name in fields:
        less = {key: value for key, value in fields.items() if key != name}
        data = json.dumps(less).encode()
        if format_ == 2:
            less.pop("format", None)
            data = encode_document(less)
            if name == "format":
                continue
        with pytest.raises(StoreError):
            decode_topic(data)


@each(
    ("key", "value"),
    [
        ("id", 2**31),
        ("id", True),
        ("id", "7"),
        ("name", 7),
        ("name", "a/b"),
        ("created_at", -1),
        ("topic_epoch", 1.5),
        ("auth", []),
        ("retention", {"max_age_secs": 0}),
        ("log_start", {"offset": 2**63, "record": 0, "segment": 0}),
        ("extra", 1),
    ],
)
def test_fields_that_can_not_be(key: str, value: object) -> None:
    with pytest.raises(StoreError):
        decode_topic(json.dumps({**unchecked(METADATA), key: value}).encode())


def test_changes_survive(store: Store) -> None:
    topic = store.create_topic("one", auth={"cn": ["a"]}).metadata.id
    store.set_retention(topic, Retention(60, 1_000))
    store.set_auth(topic, {"cn": ["b"]})
    with reopen(store) as again:
        metadata = again.topic(topic).metadata
        assert metadata.retention == Retention(60, 1_000)
        assert metadata.auth == {"cn": ["b"]}
        again.set_auth(topic, {})
        again.set_retention(topic, Retention())
        assert again.topic(topic).metadata.auth is None
        assert again.topic(topic).metadata.retention == Retention()


def test_metadata_with_a_retention_that_can_not_be() -> None:
    fields = unchecked(TopicMetadata(1, "one", 0))
    fields["retention"]["max_bytes"] = -1
    with pytest.raises(StoreError, match="max_bytes is -1"):
        decode_topic(json.dumps(fields).encode())


# Which segments retention drops.


S = 1_000_000_000


def segment(number: int, base: int, size: int, last_s: int) -> Segment:
    name = SegmentName(number, last_s * S)
    return Segment(name, base, base // 10, size=size, last_append_ns=last_s * S)


# Offsets [0, 100), [100, 200), [200, 300), the last batches at 10, 20 and 30 s.
THREE = [segment(n + 4, n * 100, 100, 10 * (n + 1)) for n in range(3)]


@each(
    ("retention", "now_s", "start"),
    [
        (Retention(), 10**6, None),
        (Retention(max_age_s=100), 110, None),
        (Retention(max_age_s=100), 111, Point(100, 10, 5)),
        (Retention(max_age_s=100), 121, Point(200, 20, 6)),
        (Retention(max_age_s=100), 10**6, Point(200, 20, 6)),
        (Retention(max_bytes=300), 0, None),
        (Retention(max_bytes=299), 0, Point(100, 10, 5)),
        (Retention(max_bytes=200), 0, Point(100, 10, 5)),
        (Retention(max_bytes=199), 0, Point(200, 20, 6)),
        (Retention(max_bytes=1), 0, Point(200, 20, 6)),
        (Retention(max_age_s=100, max_bytes=200), 111, Point(100, 10, 5)),
        (Retention(max_age_s=100, max_bytes=100), 111, Point(200, 20, 6)),
    ],
)
def test_what_is_dropped(retention: Retention, now_s: int, start: Point | None) -> None:
    assert plan_retention(THREE, retention, now_s * S) == start


@pytest.mark.parametrize("count", [0, 1])
def test_the_last_segment_always_stays(count: int) -> None:
    retention = Retention(max_age_s=1, max_bytes=1)
    assert plan_retention(THREE[:count], retention, 10**6 * S) is None


def test_offsets_are_the_same_after_retention_and_reopening(store: Store) -> None:
    topic = store.create_topic("one", retention=Retention(max_bytes=2000)).metadata.id
    data = b"".join(batch(tag, 20) for tag in "abcd")
    for tag in "abcd":
        store.append(topic, batch(tag, 20))
    store.maintain()
    with reopen(store) as again:
        for each in (store, again):
            log = each._catalog.get(topic).log
            assert log.start == Point(1800, 40, 2)
            assert log.visible == (3600, 80, 0)
            assert len(list(log.directory.glob("*.lnc"))) == 2
        view = again.view(topic)
        assert view.read(1800, 900).read() == data[1800:2700]
        assert view.locate_record(41).offset == 1845
        assert view.locate_offset(0).offset == view.locate_start().offset == 1800
        with pytest.raises(OutOfRange, match=r"offset 1799 is outside the log \[1800,"):
            view.read(1799, 100)
        assert again.append(topic, batch("e", 20)).start == 3600


def test_a_view_from_before_is_told_that_its_offsets_are_gone(store: Store) -> None:
    topic = store.create_topic("one", retention=Retention(max_bytes=1)).metadata.id
    for tag in "abc":
        store.append(topic, batch(tag, 20))
    view = store.view(topic)
    store.maintain()
    with pytest.raises(OutOfRange, match=r"is outside the log \[1800, 2700\)"):
        view.read(0, 100)
    assert view.read(1800, 10**6).read() == batch("c", 20)


def test_old_records_go_though_nothing_is_appended(files: DiskFiles) -> None:
    clock = Clock()
    config = StoreConfig(segment_age_s=60, **SMALL)  # type: ignore[arg-type]
    with open_store(files=files, config=config, clock_ns=clock) as store:
        topic = store.create_topic("one", retention=Retention(max_age_s=100))
        store.append(topic.metadata.id, batch("a"))
        clock.forward(59)
        store.maintain()
        assert len(topic.log.segments()) == 1
        clock.forward(1)
        store.maintain()
        assert len(topic.log.segments()) == 2
        assert read_all(topic.log) == batch("a")
        clock.forward(41)
        store.maintain()
        assert topic.log.start == Point(135, 3, 1)
        assert read_all(topic.log) == b""
        store.maintain()
        assert len(topic.log.segments()) == 1
        store.append(topic.metadata.id, batch("b"))
        assert read_all(topic.log) == batch("b")
    check_clean(files=files)


def test_old_records_go_though_no_segment_can_be_started(files: DiskFiles) -> None:
    """A disk that is full is when retention is needed most."""
    clock = Clock()
    config = StoreConfig(segment_age_s=60, **SMALL)  # type: ignore[arg-type]
    with open_store(files=files, config=config, clock_ns=clock) as store:
        topics = [
            store.create_topic(name, retention=Retention(max_age_s=100))
            for name in ("one", "two")
        ]
        for topic in topics:
            for tag in "ab":
                store.append(topic.metadata.id, batch(tag, 20))
        clock.forward(101)
        with (
            refusing(files, "create", ".idx", code=errno.ENOSPC),
            pytest.raises(StoreWriteFailed, match=r"start a segment: .*No space left"),
        ):
            store.maintain()
        for topic in topics:
            assert topic.log.start == Point(900, 20, 1)
            assert read_all(topic.log) == batch("b", 20)
            store.append(topic.metadata.id, batch("c"))
    check_clean(files=files)


@pytest.mark.parametrize("limits", [(-1, 0), (0, -1)])
def test_a_negative_limit_is_refused(limits: tuple[int, int]) -> None:
    """It is a habit of other systems to mean "no limit" by -1."""
    with pytest.raises(OptionError, match="0 means no limit"):
        Retention(*limits)
