"""Every message: vectors for both checksums, truncation, flipped bits, round trips."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.errors import LanceError, RemoteProtocolError
from lance_spark.wire import lwp
from lance_spark.wire.lwp import (
    REQUESTS,
    RESPONSES,
    Checksum,
    Command,
    Frame,
    FrameFlags,
    Message,
    decode_request,
    decode_response,
    encode_message,
)
from tests.each import each
from tests.wire.messages import messages
from tests.wire.vectors import (
    CHECKSUMS,
    assert_decodes,
    control,
    join,
    load,
    named,
    plain,
    reference_frame,
)

ROWS = load("messages") + load("extensions")
NAMES = [row["name"] for row in ROWS]


def decode(row: dict[str, Any], payload: bytes) -> Message:
    frame = control(row["command"], payload)
    if row["direction"] == "request":
        return decode_request(frame)
    return decode_response(frame, extended=row.get("extended", False))


@each("row", ROWS, ids=NAMES)
def test_vectors(row: dict[str, Any]) -> None:
    payload = bytes.fromhex(row["payload"])
    message = decode(row, payload)
    assert type(message).__name__ == row["message"]
    assert plain(message) == row["fields"]
    frame = {
        "flags": 0x40,
        "batch_id": row["command"],
        "timestamp_ns": 0,
        "record_count": 0,
        "topic_id": 0,
        "payload": row["payload"],
    }
    for name in CHECKSUMS:
        data = bytes.fromhex(row[name])
        assert data == reference_frame(frame, name)
        assert_decodes(data, control(row["command"], payload), Checksum(name))
        if "decode_only" not in row:
            assert join(encode_message(message, checksum=Checksum(name))) == data


@each("row", ROWS, ids=NAMES)
def test_truncated_and_flipped(row: dict[str, Any]) -> None:
    payload = bytes.fromhex(row["payload"])
    # These are a bare text to the end, or take whatever comes as a text.
    open_ended = {"CreateTopic", "Authenticate", "AuthenticateResponse"}
    open_ended |= {"ErrorResponse"}
    # A Fetch with options that is cut behind its 16th byte is a Fetch without.
    boundaries = {16} if row["message"] == "Fetch" else set()
    # A u32 name length cut by two bytes reads as a u16 length and a name with zeros.
    if row["message"] == "CreateTopicWithRetention" and "decode_only" in row:
        boundaries = {len(payload) - 2}
    for size in range(len(payload)):
        if row["message"] in open_ended or size in boundaries:
            decode_any(row, payload[:size])
            continue
        with pytest.raises(RemoteProtocolError):
            decode(row, payload[:size])
    for bit in range(len(payload) * 8):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        decode_any(row, bytes(damaged))


def decode_any(row: dict[str, Any], payload: bytes) -> None:
    with contextlib.suppress(LanceError):
        decode(row, payload)


@each("row", ROWS, ids=NAMES)
def test_bytes_behind(row: dict[str, Any]) -> None:
    payload = bytes.fromhex(row["payload"])
    if row["message"] in {"CreateTopic", "Authenticate", "AuthenticateResponse"}:
        assert decode(row, payload + b"x") != decode(row, payload)
    elif row["message"] == "ErrorResponse":
        assert "x" in decode(row, payload + b"x").message  # type: ignore[attr-defined]
    else:
        with pytest.raises(RemoteProtocolError):
            decode(row, payload + b"x")


@each("row", **named("malformed_messages"))
def test_malformed(row: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match=row["reason"]):
        decode(row, bytes.fromhex(row["payload"]))


@settings(max_examples=300, deadline=None)
@given(messages(), st.sampled_from(Checksum))
def test_round_trip(message: Message, checksum: Checksum) -> None:
    parser = lwp.FrameParser(checksum=None)
    for part in encode_message(message, checksum=checksum):
        parser.receive_data(part)
    frame = parser.next_frame()
    assert frame is not None
    assert parser.checksum is checksum
    if frame.command in REQUESTS:
        assert decode_request(frame) == message
    else:
        extended = isinstance(message, lwp.ExtendedFetchResponse)
        assert decode_response(frame, extended=extended) == message


def test_every_message_has_a_vector() -> None:
    exported = [getattr(lwp, name) for name in lwp.__all__]
    concrete = {
        item.__name__
        for item in exported
        if inspect.isclass(item)
        and issubclass(item, Message)
        and not inspect.isabstract(item)
    }
    assert concrete == {row["message"] for row in ROWS}


def test_every_command_is_in_one_table() -> None:
    assert not REQUESTS.keys() & RESPONSES.keys()
    assert REQUESTS.keys() | RESPONSES.keys() == set(Command)
    for command, message_type in [*REQUESTS.items(), *RESPONSES.items()]:
        if command != Command.GET_CLUSTER_STATUS:
            assert command == message_type.COMMAND


def test_extended_changes_fetch_responses_only() -> None:
    payload = bytes.fromhex("010000000000000002000000000000000300000000000000")
    assert decode_response(control(0x41, payload), extended=True) == (
        lwp.LocateResponse(1, 2, 3)
    )


def test_not_a_control_frame() -> None:
    with pytest.raises(RemoteProtocolError, match="expected a control frame"):
        decode_request(Frame(FrameFlags.ACK, 1))


@pytest.mark.parametrize("flag", [FrameFlags.COMPRESSED, FrameFlags.ENCRYPTED])
def test_control_can_not_be_compressed(flag: FrameFlags) -> None:
    frame = Frame(FrameFlags.CONTROL | flag, 0x01, payload=memoryview(b"events"))
    with pytest.raises(RemoteProtocolError, match="compressed or encrypted"):
        decode_request(frame)


def test_messages_are_values() -> None:
    assert hash(lwp.TopicInfo(1, "a")) == hash(lwp.TopicInfo(1, "a"))
    assert hash(lwp.ErrorResponse(1, "a", {"b": 1})) is not None
    with pytest.raises(AttributeError):
        lwp.GetTopic(1).topic_id = 2  # type: ignore[misc]
