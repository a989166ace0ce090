"""The table of codes, and errors as JSON and as text."""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

import pytest

from lance_spark import errors
from lance_spark.errors import BrokerError
from lance_spark.wire.lwp import ERROR_CODES, ErrorResponse, code_of
from tests.each import each
from tests.wire.vectors import join

# LWP §12.2 without success and reserved, then our own.
CODES = {
    0x01: "UnknownError",
    0x02: "InvalidMagic",
    0x03: "PayloadTooLarge",
    0x04: "InvalidPayload",
    0x05: "CrcMismatch",
    0x06: "VersionMismatch",
    0x10: "TopicNotFound",
    0x11: "TopicAlreadyExists",
    0x12: "InvalidTopicName",
    0x13: "TopicDeleted",
    0x20: "NotLeader",
    0x21: "QuorumNotReached",
    0x22: "LeaderUnknown",
    0x23: "ClusterNotReady",
    0x30: "RateLimited",
    0x31: "Backpressure",
    0x32: "ConnectionLimit",
    0x40: "AuthenticationRequired",
    0x41: "AuthenticationFailed",
    0x42: "AccessDenied",
    0x50: "InvalidOffset",
    0x51: "OffsetOutOfRange",
    0x52: "ConsumerNotFound",
    0x60: "InternalError",
    0x61: "StorageError",
    0x62: "TimeoutError",
    0x70: "StageNotFound",
    0x71: "StageExpired",
    0x72: "StageMismatch",
    0x73: "CommitConflict",
    0x74: "CommitUnknown",
}
# LWP §12.4.
RETRIABLE = {0x20, 0x21, 0x22, 0x23, 0x30, 0x31, 0x62, 0x74}


def test_table_is_the_specification() -> None:
    assert {code: row.name for code, row in ERROR_CODES.items()} == CODES
    assert {code for code, row in ERROR_CODES.items() if row.retriable} == RETRIABLE


def test_every_exception_has_a_row() -> None:
    classes = {
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, BrokerError) and item is not BrokerError
    }
    # No request of LWP leads to these: it has neither partitions nor expectations.
    foreign = {errors.InvalidPartitionCount: 0x04, errors.AppendConflictError: 0x01}
    assert {row.exception for row in ERROR_CODES.values()} == classes - foreign.keys()
    for kind, code in foreign.items():
        assert code_of(kind) == code


def test_every_row_says_what_to_do() -> None:
    for code, row in ERROR_CODES.items():
        assert row.code == code == code_of(row.exception)
        assert row.remedy.endswith(".")


@each("code", ERROR_CODES)
def test_to_exception_and_back(code: int) -> None:
    response = ErrorResponse(code, "no", {"batch_id": 1})
    error = response.to_exception()
    assert type(error) is ERROR_CODES[code].exception
    assert ErrorResponse.from_exception(error) == response
    again = pickle.loads(pickle.dumps(error))
    assert ErrorResponse.from_exception(again) == response


def test_unknown_code() -> None:
    error = ErrorResponse(0x14, "catching up").to_exception()
    assert type(error) is BrokerError
    assert error.code == 0x14
    assert not error.retriable


# What the server in the field says.
TEXTS = [
    ("Topic name required", 0x12),
    ("Topic 'x' already exists", 0x11),
    ("Topic not found", 0x10),
    ("Topic 42 not found", 0x10),
    ("Configuration error: Topic 42 not found", 0x10),
    ("Unknown topic", 0x10),
    ("Invalid data: Topic name 'a b' contains invalid characters. Use letters", 0x12),
    ("Invalid subscribe payload", 0x04),
    ("Invalid unsubscribe payload", 0x04),
    ("Invalid commit offset payload", 0x04),
    ("Invalid set retention payload", 0x04),
    ("Invalid create topic payload", 0x04),
    ("Invalid payload length", 0x04),
    ("Fetch request payload required", 0x50),
    ("Protocol error: Fetch request payload too small", 0x50),
    ("Rate limit exceeded", 0x30),
    ("Authentication required", 0x40),
    ("Invalid client command", 0x04),
    ("NOT_LEADER: leader unknown", 0x22),
    ("FORWARD_FAILED: Quorum not reached", 0x21),
    ("FORWARD_FAILED: connection refused", 0x21),
    ("Access denied: client 'foo.example.com' not authorized for topic 1", 0x42),
    ("something else entirely", 0x01),
    ("", 0x01),
]


@each(("text", "code"), TEXTS)
def test_texts(text: str, code: int) -> None:
    expected = ErrorResponse(code, text)
    assert ErrorResponse.decode_payload(text.encode()) == expected
    assert join(expected.encode_text()) == text.encode()


def test_redirect_in_text() -> None:
    error = ErrorResponse.decode_payload(b"NOT_LEADER: redirect to [::1]:1992")
    raised = error.to_exception()
    assert isinstance(raised, errors.NotLeader)
    assert raised.details == {"leader_addr": "[::1]:1992"}
    assert raised.retriable


def test_forward_failed_is_retriable() -> None:
    assert ErrorResponse.from_text("FORWARD_FAILED: x").to_exception().retriable


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"code": 16, "message": "gone"}, ErrorResponse(16, "gone")),
        ({"code": 16}, ErrorResponse(16, "")),
        ({"code": 48, "message": "x", "details": None}, ErrorResponse(48, "x")),
        ({"message": "Unknown topic"}, ErrorResponse(0x10, "Unknown topic")),
    ],
)
def test_json(body: Any, expected: ErrorResponse) -> None:
    assert ErrorResponse.decode_payload(json.dumps(body).encode()) == expected


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"code":0x01,"message":"m"}', '{"code":"1"}', '{"message":1}']
)
def test_what_is_not_json_after_all_is_a_text(text: str) -> None:
    assert ErrorResponse.decode_payload(text.encode()) == ErrorResponse(1, text)


def test_text_is_never_lost_and_never_endless() -> None:
    assert ErrorResponse.decode_payload(b"caf\xe9").message == "caf\ufffd"
    assert len(ErrorResponse.decode_payload(b"x" * 10**6).message) == 0xFFFF
