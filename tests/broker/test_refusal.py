"""Which error of the protocol is said for which error of ours."""

from __future__ import annotations

import logging

import pytest

from lance_spark import errors
from lance_spark.broker.refusal import to_broker_error
from lance_spark.wire.lwp import code_of

CASES = [
    (errors.RecordTooLarge("too long", 3), 0x03),
    (errors.RecordError("odd", 3), 0x04),
    (errors.PayloadOverLimit("payload", 9, 3), 0x03),
    (errors.RemoteProtocolError("odd"), 0x04),
    (errors.LocalProtocolError("odd"), 0x04),
    (errors.InvalidName("odd name"), 0x12),
    (errors.TopicExists("there"), 0x11),
    (errors.LimitReached("too many"), 0x04),
    (errors.OutOfRange(3, 4, 5), 0x50),
    (errors.StageExpired("late"), 0x71),
    (errors.StageUnknown("none"), 0x70),
    (errors.StageMismatch("other"), 0x72),
    (errors.BatchGap("gap"), 0x72),
    (errors.CommitConflict("other"), 0x73),
    (errors.CommitUnknown("w", 1, "EIO"), 0x74),
    (errors.Timeout("late"), 0x62),
    (errors.Corrupt("topic 1", 3, 4, "damaged"), 0x61),
    (errors.StoreReadOnly("broken"), 0x61),
    (errors.StoreWriteFailed("full"), 0x61),
    (errors.StoreClosed("closed"), 0x61),
    (errors.OptionError("odd"), 0x04),
]


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda c: type(c).__name__)
def test_codes(error: errors.LanceError, code: int) -> None:
    said = to_broker_error(error)
    assert code_of(said) == code
    assert said.message == str(error)


def test_an_error_of_the_protocol_stays_what_it_is() -> None:
    error = errors.RateLimited("slow down", details={"retry_after_ms": 5})
    assert to_broker_error(error) is error


@pytest.mark.parametrize(
    ("error", "code", "text", "details"),
    [
        (errors.UnknownTopic(42), 0x10, "Topic 42 not found", {"topic_id": 42}),
        (errors.UnknownTopic(42, True), 0x13, "Topic 42 was deleted", {"topic_id": 42}),
        (errors.UnknownTopic("a"), 0x10, "Topic a not found", {}),
    ],
)
def test_topics_that_there_are_not(
    error: errors.UnknownTopic, code: int, text: str, details: dict[str, int]
) -> None:
    said = to_broker_error(error)
    assert (code_of(said), said.message, said.details) == (code, text, details)


def test_a_bug_is_for_the_log_and_not_for_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        said = to_broker_error(ValueError("/secret/path"))
    assert (code_of(said), said.message) == (0x60, "internal error: ValueError")
    assert "/secret/path" in caplog.text


def test_errors_that_a_request_can_not_meet_are_bugs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert code_of(to_broker_error(errors.RowError("odd", 1))) == 0x60
    assert "request failed" in caplog.text
