"""The table of codes, in both directions."""

from __future__ import annotations

import pytest

from lance_spark import errors
from lance_spark.wire.kimberlite import (
    ERROR_CODES,
    RETRIABLE,
    ErrorResponse,
    code_of,
    make_error,
    text_of,
)

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.BrokerError)
]


def test_there_and_back():
    moved = {errors.AccessDenied, errors.Backpressure}
    for code, (_, kind) in ERROR_CODES.items():
        error = make_error(code, "no")
        assert str(error) == f"no ({code} {type(error).__name__})"
        assert (type(error), error.code, error.message) == (kind, code, "no")
        assert code_of(error) == code
        again = make_error(code_of(kind), "no")
        assert (type(again) is kind) == (kind not in moved)


def test_what_the_codes_of_the_field_are():
    assert sorted(ERROR_CODES) == list(range(31))
    for code, name in (
        *((2, "InvalidRequest"), (5, "StreamNotFound"), (11, "InvalidOffset")),
        *((15, "NotLeader"), (16, "OffsetMismatch"), (28, "ExportNotFound")),
    ):
        assert ERROR_CODES[code][0] == name


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.AppendConflictError, 16),
        (errors.TopicNotFound, 5),
        (errors.TopicDeleted, 5),
        (errors.TopicAlreadyExists, 10),
        (errors.InvalidPayload, 2),
        (errors.InvalidTopicName, 2),
        (errors.PayloadTooLarge, 2),
        (errors.AuthenticationFailed, 3),
        (errors.AuthenticationRequired, 3),
        (errors.AccessDenied, 3),
        (errors.InvalidOffset, 11),
        (errors.OffsetOutOfRange, 9),
        (errors.StorageError, 12),
        (errors.ConsumerNotFound, 17),
        (errors.NotLeader, 15),
        (errors.InternalError, 1),
        (errors.StageNotFound, 1),
    ],
)
def test_what_a_broker_sends(kind, code):
    assert code_of(kind("no")) == code_of(kind) == code


def test_what_may_pass_is_sent_so():
    assert len(KINDS) > 30
    for kind in KINDS:
        assert code_of(kind) in ERROR_CODES
        assert kind.retriable <= (code_of(kind) in RETRIABLE), kind


@pytest.mark.parametrize(
    ("kind", "details", "text"),
    [
        (errors.AppendConflictError, {"next_record": 2**64 - 1}, "actual 18446744073"),
        (errors.InvalidOffset, {"log_start": 7}, "gone, first offset 7"),
        (errors.NotLeader, {"leader_addr": "b.example:5432"}, "try b.example:5432"),
    ],
)
def test_facts_come_through(kind, details, text):
    error = kind("gone", details={**details, "other": 1})
    assert text in text_of(error)
    again = ErrorResponse.from_exception(error).to_exception()
    assert type(again) is kind
    assert again.details == details
    # Also behind a text that is too long to be sent.
    long = kind("\ud800" + "x" * 2**20, details=details)
    answer = ErrorResponse.from_exception(long)
    assert len(answer.message.encode()) < 9_000
    assert answer.to_exception().details == details


@pytest.mark.parametrize(
    ("code", "message", "details"),
    [
        # Texts of servers in the field, and of the specification.
        (16, "offset mismatch: expected 0, actual 3", {"next_record": 3}),
        (
            *(15, "not the leader (view: 3, leader hint: 10.0.0.2:5432)"),
            {"leader_addr": "10.0.0.2:5432"},
        ),
        (
            *(15, "not the leader (view: 3, leader hint: [::1]:5432)"),
            {"leader_addr": "[::1]:5432"},
        ),
        (15, "not the leader (view: 3, leader hint: unknown)", {}),
        (15, "not leader, try 192.168.1.10:5432", {"leader_addr": "192.168.1.10:5432"}),
        (15, "not leader", {}),
        (15, "try " + "x" * 301, {}),
        (16, "offset mismatch: expected 0, actual -3", {}),
        (16, "actual " + "9" * 21, {}),
        (16, "actual " + "9" * 5000, {}),
        (16, "expected 3", {}),
        (11, "first offset 3, or so", {}),
        (5, "actual 3", {}),
    ],
)
def test_facts_that_a_client_finds(code, message, details):
    assert make_error(code, message).details == details


def test_what_is_unknown():
    error = make_error(77, "")
    assert type(error) is errors.UnknownError
    assert (error.code, error.message, error.retriable) == (77, "error 77", False)
    assert make_error(5, "").message == "StreamNotFound"
