"""The four answers that share one command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Retention
from lance_spark.wire.lwp import (
    TopicDeletion,
    TopicInfo,
    TopicListing,
    TopicResponse,
    TopicRetention,
)
from tests.wire.vectors import join


def decode(body: Any) -> TopicResponse:
    return TopicResponse.decode_payload(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"id": 1, "name": "a"}, TopicInfo(1, "a")),
        ({"topics": []}, TopicListing(())),
        ({"deleted": 1}, TopicDeletion(1)),
        ({"topic_id": 1}, TopicRetention(1, Retention())),
        ({"topics": [{"id": 1, "name": "a"}]}, TopicListing((TopicInfo(1, "a"),))),
    ],
)
def test_keys_tell_the_kind(body: Any, expected: TopicResponse) -> None:
    assert decode(body) == expected


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, None),
        ({"retention": None}, None),
        ({"max_bytes": 5}, Retention(0, 5)),
        ({"max_age_secs": 5}, Retention(5, 0)),
        ({"retention": {"max_age_secs": 1, "max_bytes": 2}}, Retention(1, 2)),
        ({"retention": {"max_bytes": 2}, "max_bytes": 3}, Retention(0, 3)),
    ],
)
def test_retention_of_a_topic(extra: Any, expected: Retention | None) -> None:
    topic = decode({"id": 1, "name": "a", **extra})
    assert isinstance(topic, TopicInfo)
    assert topic.retention == expected
    assert topic.details == {}


def test_retention_is_written_in_both_places() -> None:
    body = TopicInfo(1, "a", retention=Retention(1, 2)).to_document()
    limits = {"max_age_secs": 1, "max_bytes": 2}
    assert body["retention"] == limits
    assert {key: body[key] for key in limits} == limits


def test_unknown_fields_are_kept_and_never_win() -> None:
    topic = TopicInfo(1, "a", details={"id": 9, "log_end": 5})
    received = TopicResponse.decode_payload(join(topic.encode_payload()))
    assert received == TopicInfo(1, "a", details={"log_end": 5})


@pytest.mark.parametrize(
    "body",
    [
        {"id": 1},
        {"id": "1", "name": "a"},
        {"id": 1, "name": 1},
        {"id": 1, "name": "a", "created_at": 1.5},
        {"id": 1, "name": "a", "retention": []},
        {"id": 1, "name": "a", "retention": {"max_bytes": "1"}},
        {"deleted": None},
        {"deleted": 2**32},
        {"topic_id": 1, "max_bytes": -1},
        {"topics": None},
        {"topics": [None]},
    ],
)
def test_malformed(body: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(body)


def test_name_that_is_no_text() -> None:
    with pytest.raises(LocalProtocolError):
        TopicInfo(1, "\ud800").encode_payload()
