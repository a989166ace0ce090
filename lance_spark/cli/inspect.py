"""`lance-spark inspect`: find out what a file is, and show it.

Files of a store are shown by `inspect_store`, captured frames here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from lance_spark.cli.display import Row, count, format_time
from lance_spark.cli.inspect_store import (
    InspectedFile,
    Selection,
    is_record,
    open_file,
    print_items,
    show_consumers,
    show_document,
    show_index,
    show_journal,
    show_segment,
)
from lance_spark.cli.options import NUMBER, PATH, option
from lance_spark.errors import RemoteProtocolError
from lance_spark.store import consumers, format, journal
from lance_spark.wire import fluvio, kimberlite, lwp, rustlog, tank
from lance_spark.wire.assembler import Assembler

# Captured frames: one direction of a connection, or both one after the other. A payload
# with a wrong checksum is shown as such, because its length still says where the next
# frame starts. A header that can't be read ends the showing.

# A payload is at most so long, except in a capture of nonsense.
_PIECE_BYTES = lwp.PAYLOAD_BYTES_MAX

_COMMANDS = {int(command): command.name for command in lwp.Command}
_MESSAGES = {**lwp.REQUESTS, **lwp.RESPONSES}


def show_frames(file: InspectedFile, selection: Selection) -> None:
    """Print the frames of a capture.

    Raises:
        LanceError: at the first header that can't be read, or where a frame is cut off,
            or after all was shown if a payload's checksum is wrong.
    """
    print(f"LWP frames, {count(file.size, 'byte')}")
    damaged: list[int] = []

    def show(frame: FoundFrame) -> Row:
        position, header, checksum = frame
        payload, sound = _read_payload(file, frame)
        if not sound:
            damaged.append(position)
        is_control = header.type is lwp.FrameType.CONTROL
        return {
            "byte": position,
            "type": header.type.value,
            "flags": _name_flags(header.flags),
            "batch": None if is_control else header.batch_id,
            "topic": header.topic_id,
            "records": header.record_count,
            "payload": header.payload_length,
            "crc": f"{checksum.value} {'ok' if sound else 'WRONG'}",
            "time": format_time(header.timestamp_ns) if header.timestamp_ns else None,
            "content": _describe(header, payload, selection),
        }

    print_items(_find_frames(file), "frames", selection, show)
    if damaged:
        found = count(len(damaged), "frame")
        raise file.error(
            f"wrong payload CRC in {found}, the first at byte {damaged[0]}"
        )


class FoundFrame(NamedTuple):
    """A frame of a capture, of which only the header was read."""

    position: int
    header: lwp.Header
    checksum: lwp.Checksum


def _find_frames(file: InspectedFile) -> Iterator[FoundFrame]:
    """Go from header to header."""
    position = 0
    while head := file.read(position, lwp.HEADER_BYTES):
        no_frame = f"no frame at byte {position}"
        if len(head) < lwp.HEADER_BYTES:
            there = f"{len(head)} of {lwp.HEADER_BYTES} bytes are there"
            raise file.error(f"{no_frame}: the header is cut off, {there}")
        try:
            # Each for itself: in a capture of both directions they may differ.
            header, checksum = lwp.decode_header(head, None)
        except RemoteProtocolError as error:
            raise file.error(f"{no_frame}: {error.reason}") from error
        left = file.size - position - lwp.HEADER_BYTES
        if header.payload_length > left:
            there = f"{left} of {header.payload_length} bytes are there"
            raise file.error(f"{no_frame}: the payload is cut off, {there}")
        yield FoundFrame(position, header, checksum)
        position += lwp.HEADER_BYTES + header.payload_length


def _read_payload(file: InspectedFile, frame: FoundFrame) -> tuple[bytes, bool]:
    """Read a payload, and whether it is sound; no more is kept than LWP allows."""
    at = frame.position + lwp.HEADER_BYTES
    end = at + frame.header.payload_length
    payload, crc = b"", 0
    while at < end and (data := file.read(at, min(end - at, _PIECE_BYTES))):
        payload = payload or data
        at, crc = at + len(data), frame.checksum.update(data, crc)
    return payload, crc == frame.header.payload_crc


def _name_flags(flags: lwp.FrameFlags) -> str:
    return (
        "+".join(f.name.lower() for f in lwp.FrameFlags if f & flags and f.name) or "-"
    )


def _describe(header: lwp.Header, payload: bytes, selection: Selection) -> str:
    """Say what is in a frame: the command and its fields, or the first bytes."""
    if header.type is not lwp.FrameType.CONTROL:
        return selection.show_bytes(payload) if payload else ""
    command = header.batch_id
    name = _COMMANDS.get(command)
    if name is None:
        return f"unknown command 0x{command:02X} {selection.show_bytes(payload)}"
    name = f"0x{command:02X} {name}"
    if command == lwp.Command.AUTHENTICATE:
        return name  # All of its payload is a secret.
    try:
        if command == lwp.Command.FETCH_RESPONSE:
            return (
                f"{name} {_list_fields(lwp.decode_fetch_response(payload), selection)}"
            )
        message = _MESSAGES[command].decode_payload(payload)
    except RemoteProtocolError as error:
        return f"{name} malformed: {error}"
    return f"{name} {_list_fields(message, selection)}".rstrip()


def _list_fields(message: Any, selection: Selection) -> str:
    """Write the fields of a message, data only by its size."""
    if not is_dataclass(message):
        return selection.show_text(repr(message))
    parts = []
    for field in fields(message):
        value = getattr(message, field.name)
        is_data = isinstance(value, (bytes, bytearray, memoryview))
        text = count(len(value), "byte") if is_data else repr(value)
        parts.append(f"{field.name}={text}")
    return selection.show_text(" ".join(parts))


# Captured frames of other protocols. Only Kimberlite's have something at their start
# that tells what they are; of the others the user has to.


class OtherFrames(NamedTuple):
    """How the frames of a protocol are found and shown.

    Args:
        make_parser: makes what finds them.
        header_bytes: what stands before a payload.
        take_payload: gives the payload of one.
        describe: says what is in one, given what the frame before it was.
    """

    make_parser: Callable[[], Assembler[Any, Any]]
    header_bytes: int
    take_payload: Callable[[Any], memoryview]
    describe: Callable[[Any, str], str]


def _describe_kimberlite(frame: kimberlite.Frame, before: str) -> str:
    # Some frames fit both directions, and a capture rarely changes its own.
    return kimberlite.describe(frame, is_answer=before.startswith(("Resp", "Push")))


OTHER_FRAMES = {
    "fluvio": OtherFrames(
        fluvio.FrameParser,
        fluvio.HEADER_BYTES,
        lambda frame: frame.payload,
        lambda frame, before: fluvio.describe(frame),
    ),
    "kimberlite": OtherFrames(
        kimberlite.FrameParser,
        kimberlite.HEADER_BYTES,
        lambda frame: frame.payload,
        _describe_kimberlite,
    ),
    "rustlog": OtherFrames(
        rustlog.FrameParser,
        4,
        lambda frame: frame,
        lambda frame, before: rustlog.describe(frame),
    ),
    "tank": OtherFrames(
        tank.FrameParser,
        tank.HEADER_BYTES,
        lambda frame: frame.payload,
        lambda frame, before: tank.describe(frame),
    ),
}


def show_other_frames(protocol: str, file: InspectedFile, selection: Selection) -> None:
    """Print the frames of a capture of another protocol than LWP.

    Raises:
        LanceError: at the first header that can't be read, or where a frame is cut off.
    """
    print(f"{protocol} frames, {count(file.size, 'byte')}")
    frames = OTHER_FRAMES[protocol]
    told = ""

    def show(found: tuple[int, int, Any]) -> Row:
        nonlocal told
        position, size, frame = found
        told = frames.describe(frame, told)
        content = selection.show_text(told)
        return {"byte": position, "payload": size, "content": content}

    print_items(_parse_frames(frames, file), "frames", selection, show)


def _parse_frames(
    frames: OtherFrames, file: InspectedFile
) -> Iterator[tuple[int, int, Any]]:
    """Give frames with their positions and the sizes of their payloads."""
    parser, read, position = frames.make_parser(), 0, 0
    try:
        while data := file.read(read, _PIECE_BYTES):
            read += len(data)
            parser.receive_data(data)
            if read == file.size:
                parser.receive_eof()
            for frame in parser.frames():
                size = frames.take_payload(frame).nbytes
                yield position, size, frame
                position += frames.header_bytes + size
    except RemoteProtocolError as error:
        raise file.error(f"no frame at byte {position}: {error.reason}") from error


# The command.

Show = Callable[[InspectedFile, Selection], None]


# What a file starts with. No record can start like this, as what stands in the place of
# its length is far over the limit: a segment is never mistaken for anything else.
STARTS: dict[bytes, Show] = {
    format.MAGIC: show_index,
    journal.MAGIC: show_journal,
    consumers.MAGIC: show_consumers,
    b"LANC\x01": show_frames,
    b'{"': show_document,
    b"{\n": show_document,
    b"{ ": show_document,
}

# How its name ends, where the start says nothing: damaged, empty, or a segment.
ENDS: dict[str, Show] = {
    ".lnc": show_segment,
    ".idx": show_index,
    "journal.log": show_journal,
    "consumers.log": show_consumers,
    ".json": show_document,
}

_HEAD_BYTES = 4096
_VDB = kimberlite.MAGIC.to_bytes(4, "big")


@click.command("inspect")
@click.argument("file", type=PATH)
@option("--limit=50", NUMBER, "How many records, rows, entries or frames to show.")
@option("--skip=0", NUMBER, "How many to pass over first.")
@option("--full", bool, "Show whole keys and values.")
@option("--hex as_hex", bool, "Show keys and values as hex.")
@option(
    *("--protocol", list(OTHER_FRAMES)),
    "The file is a capture of this protocol; LWP's and Kimberlite's are recognised.",
)
def command(
    file: Path,
    limit: int,
    skip: int,
    full: bool,
    as_hex: bool,
    protocol: str | None,
) -> None:
    """Show what is inside FILE: a segment, an index, the journal, consumer offsets,
    metadata, or captured frames.

    A file is recognised by its content, then by its name. What is damaged or cut off
    is shown as far as it can be read; the exit code is 1 then.
    """
    selection = Selection(skip, limit, full, as_hex)
    with open_file(file) as opened:
        if protocol is not None:
            show_other_frames(protocol, opened, selection)
        else:
            recognise(opened)(opened, selection)


def recognise(file: InspectedFile) -> Show:
    """Find what can show a file.

    Raises:
        LanceError: nothing can.
    """
    head = file.read(0, _HEAD_BYTES)
    for start, show in STARTS.items():
        if head.startswith(start):
            return show
    for end, show in ENDS.items():
        if file.path.name.endswith(end):
            return show
    if not head:
        raise file.error("the file is empty")
    if head.startswith(_VDB):
        # A record may start like this, too, so that a segment's name comes before it.
        return partial(show_other_frames, "kimberlite")
    if head.startswith(b"LANC"):
        return show_frames  # Of another version, or cut off.
    if is_record(head):
        return show_segment
    raise file.error(
        "not a segment, index, journal, metadata or capture of LWP or Kimberlite (byte "
        "0); give --protocol for a capture of another one"
    )
