"""The table of errors, in both directions and both dialects."""

from __future__ import annotations

from lance_spark import errors
from lance_spark.errors import BrokerError
from lance_spark.wire.rustlog import (
    REQUESTS,
    ErrorResponse,
    code_of,
    decode_response,
    encode_message,
)
from tests.each import each
from tests.wire.rustlog.plain import join

KINDS = sorted(
    {*BrokerError.__subclasses__(), errors.InvalidPartitionCount},
    key=lambda kind: kind.__name__,
)


@each("kind", KINDS, ids=lambda kind: kind.__name__)
@each("as_json", [False, True])
def test_a_class_gets_through(kind: type[BrokerError], as_json: bool) -> None:
    for command in (None, *REQUESTS):
        for text in ("why not", "", "Topic a:b not found", "x" * 70_000, "\ud800"):
            said = ErrorResponse.from_exception(kind(text), command)
            frame = join(encode_message(said, as_json=as_json))
            heard = decode_response(frame[4:])
            assert isinstance(heard, ErrorResponse)
            error = heard.to_exception()
            assert type(error) is kind
            assert error.code == (None if as_json else code_of(kind, command))
            code = "" if as_json else f"{error.code} "
            assert str(error).endswith(f" ({code}{kind.__name__})")
            assert text.replace("\ud800", "?")[:30_000] in error.message


@each(
    ("kind", "command", "code"),
    [
        (errors.PayloadTooLarge, None, 1),
        (errors.InvalidPayload, None, 2),
        (errors.StorageError, 0x02, 4),
        (errors.InvalidOffset, 0x02, 4),
        (errors.TopicNotFound, 0x03, 5),
        (errors.StorageError, 0x03, 5),
        (errors.OffsetOutOfRange, 0x03, 5),
        (errors.InvalidPayload, 0x03, 5),
        (errors.InvalidPartitionCount, 0x05, 12),
        (errors.TopicNotFound, 0x01, 10),
        (errors.TopicNotFound, 0x02, 10),
        (errors.TopicDeleted, 0x02, 10),
        (errors.TopicAlreadyExists, 0x05, 11),
        (errors.InvalidTopicName, 0x05, 12),
        (errors.InvalidPayload, 0x05, 12),
        (errors.TopicNotFound, 0x07, 13),
        (errors.TopicNotFound, 0x08, 14),
        (errors.StorageError, 0x01, 500),
        (errors.AccessDenied, 0x01, 500),
        (errors.AuthenticationRequired, 0x02, 500),
        (errors.InternalError, 0x01, 500),
        (BrokerError, 0x01, 500),
    ],
)
def test_codes(kind: type[BrokerError], command: int | None, code: int) -> None:
    assert code_of(kind, command) == code
    assert code_of(kind("x"), command) == code


# What RustLog's own broker says, and what is in its specification.
@each(
    ("code", "text", "kind"),
    [
        (2, "Decode error: unknown request type: 42", errors.InvalidPayload),
        (4, "anything", errors.StorageError),
        (10, "Topic or partition does not exist: topic=a", errors.TopicNotFound),
        (11, "Topic 'orders' already exists", errors.TopicAlreadyExists),
        (12, "Invalid partition count: 0", errors.InvalidTopicName),
        (13, "DescribeTopic failed: Topic 'a' not found", errors.TopicNotFound),
        (14, "DescribePartition failed: …", errors.TopicNotFound),
        (500, "anything", errors.InternalError),
        (77, "anything", errors.UnknownError),
        (None, "anything", errors.UnknownError),
        (None, "partition not found: topic=orders", errors.TopicNotFound),
        (None, "offset out of range", errors.OffsetOutOfRange),
        (None, "max frame size exceeded", errors.PayloadTooLarge),
        (None, "failed to parse request: line 1", errors.InvalidPayload),
    ],
)
def test_kinds(code: int | None, text: str, kind: type[BrokerError]) -> None:
    error = ErrorResponse(code, text).to_exception()
    assert type(error) is kind
    assert (error.code, error.message) == (code, text)


def test_a_phrase_is_there_only_where_the_code_does_not_say_it() -> None:
    plain = ErrorResponse.from_exception(errors.TopicNotFound("no"), 0x02)
    assert plain == ErrorResponse(10, "no")
    denied = ErrorResponse.from_exception(errors.AccessDenied("no"), 0x02)
    assert denied == ErrorResponse(500, "access denied: no")
    assert join(encode_message(plain, as_json=True))[4:] == (
        b'{"Error":{"message":"topic not found: no"}}'
    )
