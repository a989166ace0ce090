"""A key or value as something that a page can show: JSON, text, or hex."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

from lance_spark.model import Buffer, RecordType

TEXT_MAX = 4096
# A character has at most four bytes in UTF-8.
_PREFIX_BYTES = 4 * TEXT_MAX
# Longer ones are not looked through for whether they are JSON: they are cut anyway.
_JSON_BYTES_MAX = 64 * 1024
# Control characters apart from tab and line ends, and what is no character at all.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")

TYPE_NAMES = {
    RecordType.RAW: "raw",
    RecordType.JSON: "json",
    RecordType.MESSAGE_PACK: "msgpack",
    RecordType.PROTOBUF: "protobuf",
    RecordType.AVRO: "avro",
    RecordType.KEY_VALUE: "key-value",
    RecordType.TIMESTAMPED: "timestamped",
    RecordType.KEY_TIMESTAMPED: "key-timestamped",
    RecordType.NULL: "null",
}
# Bytes of a log that are no record, which only a broker that checks nothing has.
UNREADABLE = 0


def name_type(number: int) -> str:
    """Give the name of a record type."""
    if number == UNREADABLE:
        return "unreadable"
    known = {int(kind): name for kind, name in TYPE_NAMES.items()}
    return known.get(number, f"0x{number:02x}")


def make_cell(
    data: Buffer | None, *, may_be_text: bool = True
) -> dict[str, Any] | None:
    """Show bytes; None stays None.

    Args:
        data: the bytes, of any length. No more than a piece of them is copied.
        may_be_text: false shows hex in any case.
    """
    if data is None:
        return None
    view = memoryview(data).cast("B")
    size = len(view)
    text = _read_text(bytes(view[:_PREFIX_BYTES]), size) if may_be_text else None
    if text is None:
        shown = bytes(view[: TEXT_MAX // 2])
        return _cell("hex", shown.hex(), size, truncated=len(shown) < size)
    kind = "json" if _is_json(view) else "text"
    truncated = len(text) > TEXT_MAX or size > _PREFIX_BYTES
    return _cell(kind, text[:TEXT_MAX], size, truncated=truncated)


def _cell(kind: str, text: str, size: int, *, truncated: bool) -> dict[str, Any]:
    return {"kind": kind, "text": text, "size": size, "truncated": truncated}


def _read_text(prefix: bytes, size: int) -> str | None:
    """Decode the start of a value; None if it is not what people write."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        # The prefix may end inside a character, the value may not.
        text = decoder.decode(prefix, final=len(prefix) == size)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def _is_json(view: memoryview) -> bool:
    # A bare number or word is JSON as well, and nobody means it.
    if len(view) > _JSON_BYTES_MAX or bytes(view[:256]).lstrip()[:1] not in (
        b"{",
        b"[",
    ):
        return False
    try:
        json.loads(bytes(view))
    except (ValueError, RecursionError):
        return False
    return True
