"""A topic's name and metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lance_spark.errors import InvalidName, StoreError
from lance_spark.model import Retention
from lance_spark.store import Point, Store, TopicMetadata
from lance_spark.store.document import encode_document
from lance_spark.store.topic import check_name, decode_topic, encode_topic
from tests.store.jobs import reopen


@pytest.mark.parametrize(
    "name",
    ["a", "events.v2", "a b", "Ωμέγα", "...", "x" * 255, "é" * 127, "\U0001f600"],
)
def test_names_that_are_allowed(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "has 0 bytes; 1 to 255 are allowed"),
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
        ("a\ud800", "is not valid Unicode"),
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


@pytest.mark.parametrize(
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
