"""Captured LWP frames: one direction of a connection, or both one after the other.

A payload with a wrong checksum is shown as such, because its length still says where
the next frame starts. A header that can't be read ends the showing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from lance_spark.cli.display import Preview, count, format_time, print_table
from lance_spark.cli.inspect_store import InspectedFile, Selection, print_rest
from lance_spark.errors import LanceError, RemoteProtocolError
from lance_spark.wire.lwp import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    REQUESTS,
    RESPONSES,
    Checksum,
    Command,
    FrameFlags,
    FrameType,
    Header,
    decode_fetch_response,
    decode_header,
)

_TITLES = (
    *("byte", "type", "flags", "batch", "topic"),
    *("records", "payload", "crc", "time", "content"),
)
_RIGHT = ("byte", "batch", "topic", "records", "payload")

# A payload is at most so long, except in a capture of nonsense.
_PIECE_BYTES = PAYLOAD_BYTES_MAX

_COMMANDS = {int(command): command.name for command in Command}
_MESSAGES = {**REQUESTS, **RESPONSES}


def show_frames(file: InspectedFile, selection: Selection) -> None:
    """Print the frames of a capture.

    Raises:
        LanceError: at the first header that can't be read, or where a frame is cut off,
            or after all was shown if a payload's checksum is wrong.
    """
    print(f"LWP frames, {count(file.size, 'byte')}")
    walk = _FrameRows(file, selection)
    print_table(_TITLES, walk.rows(), right=_RIGHT)
    print_rest(selection, "frames", more=walk.position < file.size)
    if walk.damaged:
        found = count(len(walk.damaged), "frame")
        at = walk.damaged[0]
        raise file.error(f"wrong payload CRC in {found}, the first at byte {at}")


class _FrameRows:
    """Goes from header to header; payloads that are not shown are not read."""

    def __init__(self, file: InspectedFile, selection: Selection) -> None:
        self.position = 0
        self.damaged: list[int] = []
        self._source = file
        self._selection = selection

    def rows(self) -> Iterator[tuple[str, ...]]:
        number = 0
        while self.position < self._source.size and number < self._selection.end:
            header, checksum = self._header()
            if number >= self._selection.skip:
                yield self._row(header, checksum)
            self.position += HEADER_BYTES + header.payload_length
            number += 1

    def _header(self) -> tuple[Header, Checksum]:
        head = self._source.read(self.position, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            raise self._error(
                f"the header is cut off, {len(head)} of {HEADER_BYTES} bytes are there"
            )
        try:
            # Each for itself: in a capture of both directions they may differ.
            header, checksum = decode_header(head, None)
        except RemoteProtocolError as error:
            raise self._error(error.reason) from error
        there = self._source.size - self.position - HEADER_BYTES
        if header.payload_length > there:
            raise self._error(
                f"the payload is cut off, {there} of {header.payload_length} bytes are "
                "there"
            )
        return header, checksum

    def _row(self, header: Header, checksum: Checksum) -> tuple[str, ...]:
        payload, sound = self._payload(header, checksum)
        if not sound:
            self.damaged.append(self.position)
        is_control = header.type is FrameType.CONTROL
        return (
            f"{self.position}",
            header.type.value,
            _name_flags(header.flags),
            "-" if is_control else f"{header.batch_id}",
            f"{header.topic_id}",
            f"{header.record_count}",
            f"{header.payload_length}",
            f"{checksum.value} {'ok' if sound else 'WRONG'}",
            format_time(header.timestamp_ns) if header.timestamp_ns else "-",
            _describe(header, payload, self._selection.preview),
        )

    def _payload(self, header: Header, checksum: Checksum) -> tuple[bytes, bool]:
        """Read a payload, and whether it is sound; no more is kept than LWP allows."""
        start = at = self.position + HEADER_BYTES
        end = start + header.payload_length
        payload, crc = b"", 0
        while at < end and (data := self._source.read(at, min(end - at, _PIECE_BYTES))):
            payload = payload or data
            at, crc = at + len(data), checksum.update(data, crc)
        return payload, crc == header.payload_crc

    def _error(self, text: str) -> LanceError:
        return self._source.error(f"no frame at byte {self.position}: {text}")


def _name_flags(flags: FrameFlags) -> str:
    return "+".join(f.name.lower() for f in FrameFlags if f & flags and f.name) or "-"


def _describe(header: Header, payload: bytes, preview: Preview) -> str:
    """Say what is in a frame: the command and its fields, or the first bytes."""
    if header.type is not FrameType.CONTROL:
        return preview.show_bytes(payload) if payload else ""
    command = header.batch_id
    name = _COMMANDS.get(command)
    if name is None:
        return f"unknown command 0x{command:02X} {preview.show_bytes(payload)}"
    name = f"0x{command:02X} {name}"
    if command == Command.AUTHENTICATE:
        return name  # All of its payload is a secret.
    try:
        if command == Command.FETCH_RESPONSE:
            return f"{name} {_list_fields(decode_fetch_response(payload), preview)}"
        message = _MESSAGES[command].decode_payload(payload)
    except RemoteProtocolError as error:
        return f"{name} malformed: {error}"
    return f"{name} {_list_fields(message, preview)}".rstrip()


def _list_fields(message: Any, preview: Preview) -> str:
    """Write the fields of a message, data only by its size."""
    if not is_dataclass(message):
        return preview.show_text(repr(message))
    parts = []
    for field in fields(message):
        value = getattr(message, field.name)
        is_data = isinstance(value, (bytes, bytearray, memoryview))
        text = count(len(value), "byte") if is_data else repr(value)
        parts.append(f"{field.name}={text}")
    return preview.show_text(" ".join(parts))
