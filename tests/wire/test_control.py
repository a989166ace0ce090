"""Messages about topics, consumers and the cluster."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Retention
from lance_spark.wire.lwp import (
    Authenticate,
    AuthenticateResponse,
    ClusterStatus,
    CommitOffset,
    CreateTopicWithRetention,
    GetClusterStatus,
    SetRetention,
    Subscribe,
    TopicDeletion,
    TopicInfo,
    TopicListing,
    TopicResponse,
    TopicRetention,
    decode_request,
)
from tests.each import each
from tests.wire.vectors import control, join

RETENTION = Retention(30 * 86400, 2**40)
LIMITS = struct.pack("<QQ", 30 * 86400, 2**40)


@pytest.mark.parametrize("name", ["", "a", "events", "x" * 255, "x" * 300, "é" * 40])
def test_both_forms_of_create_topic_with_retention(name: str) -> None:
    expected = CreateTopicWithRetention(name, RETENTION)
    data = name.encode()
    short = struct.pack("<H", len(data)) + data + LIMITS
    long = struct.pack("<I", len(data)) + data + LIMITS
    assert join(expected.encode_payload()) == short
    assert CreateTopicWithRetention.decode_payload(short) == expected
    assert CreateTopicWithRetention.decode_payload(long) == expected


def test_the_two_forms_never_fit_the_same_bytes() -> None:
    # Names that start with zeros look most like the upper half of a u32 length.
    for size in range(40):
        name = "\0" * size
        message = CreateTopicWithRetention(name, RETENTION)
        payload = join(message.encode_payload())
        assert CreateTopicWithRetention.decode_payload(payload) == message


def test_layouts_of_the_specification() -> None:
    assert join(SetRetention(1, Retention(2, 3)).encode_payload()) == struct.pack(
        "<IQQ", 1, 2, 3
    )
    assert join(Subscribe(1, 2, 3, 4).encode_payload()) == struct.pack(
        "<IQIQ", 1, 2, 3, 4
    )
    assert join(CommitOffset(1, 2, 3).encode_payload()) == struct.pack("<IQQ", 1, 2, 3)


def test_errors_carry_the_texts_of_the_specification() -> None:
    with pytest.raises(RemoteProtocolError, match=r"^Invalid set retention payload"):
        SetRetention.decode_payload(b"")
    with pytest.raises(RemoteProtocolError, match=r"^Invalid create topic payload"):
        CreateTopicWithRetention.decode_payload(bytes(50))


def test_both_codes_of_get_cluster_status() -> None:
    assert decode_request(control(0x07, b"")) == GetClusterStatus()
    assert decode_request(control(0x30, b"")) == GetClusterStatus()
    assert GetClusterStatus.COMMAND == 0x07


def test_token_is_not_shown() -> None:
    assert "hunter2" not in repr(Authenticate("hunter2"))


def test_any_byte_but_zero_is_a_yes() -> None:
    assert AuthenticateResponse.decode_payload(b"\x07fine") == (
        AuthenticateResponse(True, "fine")
    )


def test_retention_that_does_not_fit() -> None:
    with pytest.raises(LocalProtocolError, match="out of range"):
        SetRetention(1, Retention(2**64, 0)).encode_payload()


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


@each(
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


def test_defaults_are_a_single_node() -> None:
    assert ClusterStatus.decode_payload(b"{}") == ClusterStatus()


def test_no_leader_yet() -> None:
    status = ClusterStatus.decode_payload(b'{"leader_id":null}')
    assert status.leader_id is None
    assert status.details == {}
    assert ClusterStatus.decode_payload(join(status.encode_payload())) == status


def test_unknown_fields_are_kept() -> None:
    status = ClusterStatus.decode_payload(b'{"region":"eu"}')
    assert status.details == {"region": "eu"}


@pytest.mark.parametrize(
    "body",
    [
        {"node_id": "0"},
        {"is_leader": 1},
        {"leader_id": -1},
        {"peer_states": []},
        {"mode": 0},
        {"capabilities": "locate"},
        {"capabilities": ["locate", None]},
    ],
)
def test_malformed_status(body: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="cluster status"):
        ClusterStatus.decode_payload(json.dumps(body).encode())
