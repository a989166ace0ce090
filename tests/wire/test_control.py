"""What is special about the binary messages of section 5."""

from __future__ import annotations

import struct

import pytest

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Retention
from lance_spark.wire.lwp import (
    Authenticate,
    AuthenticateResponse,
    CommitOffset,
    CreateTopicWithRetention,
    GetClusterStatus,
    SetRetention,
    Subscribe,
    decode_request,
)
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
