"""Errors on the wire, and the table of codes in both directions."""

from __future__ import annotations

import pytest

from lance_spark import errors
from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.wire.fluvio import (
    ERROR_CODES,
    NO_ERROR,
    ErrorCode,
    code_of,
    make_error,
)
from lance_spark.wire.fluvio.frame import FORM
from lance_spark.wire.schema import Cursor
from tests.wire.fluvio.reference import PARTS, join

WIRE = {
    "error_none": NO_ERROR,
    "error_topic_not_found": ErrorCode(2001),
    "error_not_leader": ErrorCode(6),
    "error_other": ErrorCode(2, ("abc",)),
    "error_offset_evicted": ErrorCode(71, (5, 10)),
}


def read(data):
    cursor = Cursor(data, "Error", FORM)
    return ErrorCode.read(cursor), cursor.remaining


@pytest.mark.parametrize("name", WIRE)
def test_vectors(name):
    data = PARTS[name]
    assert read(data) == (WIRE[name], 0)
    assert join(WIRE[name].encode(FORM)) == data
    for size in range(len(data)):
        with pytest.raises(RemoteProtocolError, match="needed"):
            read(data[:size])


def test_a_number_that_is_not_known_can_not_be_skipped():
    for code in (3, 4000, 6004, 32767, -32768):
        with pytest.raises(RemoteProtocolError, match=f"unknown kind {code}"):
            read(code.to_bytes(2, "big", signed=True) + bytes(20))


def test_fields_that_do_not_belong_to_a_number():
    for error in (ErrorCode(2), ErrorCode(6, ("x",)), ErrorCode(3), ErrorCode(7, (1,))):
        with pytest.raises(LocalProtocolError):
            join(error.encode(FORM))


FIELDS = {
    2: ("why",),
    7: (1500, 0),
    71: (5, 10),
    72: ("t", 3),
    6001: ("m",),
    6002: ("e", None),
    6003: ("e", "k"),
    6005: ("m",),
    8001: ("d",),
    8003: ("d",),
}


@pytest.mark.parametrize("code", ERROR_CODES)
def test_there_and_back(code):
    wire = ErrorCode(code, FIELDS.get(code, ()))
    assert read(join(wire.encode(FORM))) == (wire, 0)
    error = make_error(wire, "orders/1")
    assert error.code == code
    assert error.message.startswith("orders/1: ")
    assert str(error).endswith(f" ({code} {type(error).__name__})")
    said = make_error(wire, "orders", "no, because")
    assert (said.message, said.details) == ("orders: no, because", error.details)
    assert all(text in error.message for text in wire.fields if isinstance(text, str))
    # What is sent for it has no other class, unless a text says more.
    sent = code_of(error)
    again = make_error(sent, "")
    assert sent.code == 2 or type(again) in (type(error), errors.OffsetOutOfRange)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.TopicNotFound, ErrorCode(2001)),
        (errors.TopicDeleted, ErrorCode(2001)),
        (errors.TopicAlreadyExists, ErrorCode(2002)),
        (errors.InvalidTopicName, ErrorCode(2006)),
        (errors.InvalidPartitionCount, ErrorCode(2004)),
        (errors.NotLeader, ErrorCode(6)),
        (errors.AccessDenied, ErrorCode(13)),
        (errors.AuthenticationRequired, ErrorCode(13)),
        (errors.PayloadTooLarge, ErrorCode(10)),
        (errors.StorageError, ErrorCode(56)),
        (errors.OffsetOutOfRange, ErrorCode(1)),
        (errors.InvalidOffset, ErrorCode(1)),
        (errors.OperationTimeout, ErrorCode(7, (0, 0))),
        (errors.Backpressure, ErrorCode(7, (0, 0))),
        (errors.InvalidPayload, ErrorCode(2, ("no",))),
        (errors.UnknownError, ErrorCode(2, ("no",))),
        (errors.InternalError, ErrorCode(2, ("no",))),
        (errors.AppendConflictError, ErrorCode(2, ("no",))),
    ],
)
def test_what_a_broker_sends(error, expected):
    assert code_of(error("no")) == expected
    # What may be tried again stays so.
    assert make_error(expected, "").retriable == error.retriable


def test_records_that_retention_has_dropped():
    error = errors.OffsetOutOfRange("no", details={"log_start": 10, "log_end": 20})
    assert code_of(error, 5) == ErrorCode(71, (5, 10))
    assert code_of(error, 10) == code_of(error, 20) == ErrorCode(1)
    # What is not there yet: servers have no number for that.
    assert code_of(error, 21) == ErrorCode(2, ("no",))
    assert code_of(error) == ErrorCode(1)
    told = make_error(code_of(error, 5), "orders/1")
    assert isinstance(told, errors.InvalidOffset)
    assert told.details == {"log_start": 10}


def test_a_long_text_is_cut():
    sent = code_of(errors.InvalidPayload("ä€\U0001f600" * 20_000))
    assert read(join(sent.encode(FORM))) == (sent, 0)
