"""The table of codes, in both directions."""

from __future__ import annotations

from lance_spark import errors
from lance_spark.wire.tank import ERROR_CODES, Kind, code_of, make_error
from tests.each import each

ROWS = [(kind, code) for kind, rows in ERROR_CODES.items() for code in rows]


@each(("kind", "code"), ROWS)
def test_there_and_back(kind, code):
    error = make_error(kind, code, "orders/1")
    assert error.code == code
    assert error.message.startswith("orders/1: ")
    sent = code_of(kind, error)
    # Of several codes for a class one is sent; it says the same.
    assert sent is not None
    if code != 0x03:
        assert type(make_error(kind, sent, "")) is type(error)


def test_the_field_client_exits_on_this_one():
    assert code_of(Kind.PRODUCE, errors.OperationTimeout("slow")) == 0x02


@each(
    ("kind", "error", "code"),
    [
        (Kind.PRODUCE, errors.TopicNotFound, 0xFF),
        (Kind.PRODUCE_AT, errors.AppendConflictError, 0x0A),
        (Kind.PRODUCE, errors.InvalidPayload, 0x02),
        (Kind.PRODUCE, errors.PayloadTooLarge, 0x02),
        (Kind.CONSUME, errors.InvalidOffset, 0x01),
        (Kind.CONSUME, errors.InternalError, 0xFB),
        (Kind.DISCOVER_PARTITIONS, errors.StorageError, 0xFB),
        (Kind.CREATE_TOPIC, errors.TopicAlreadyExists, 0x01),
        (Kind.CREATE_TOPIC, errors.InternalError, 0x02),
        (Kind.RELOAD_CONF, errors.StorageError, 0x02),
        (Kind.PRODUCE, errors.AccessDenied, None),
        (Kind.CONSUME, errors.AuthenticationRequired, None),
    ],
)
def test_what_a_broker_sends(kind, error, code):
    assert code_of(kind, error("no")) == code


def test_what_a_client_raises():
    error = make_error(Kind.CONSUME, 0xFC, "orders/1", "10.0.0.1:11011")
    assert isinstance(error, errors.NotLeader)
    assert error.details == {"leader_addr": "10.0.0.1:11011"}
    unknown = make_error(Kind.PRODUCE, 0x77, "orders/1")
    assert type(unknown) is errors.UnknownError
    assert unknown.code == 0x77
