"""The small JSON files of a store, each with a checksum.

    {
      "format": 2,
      …
      "crc32c": "0a1b2c3d"
    }

The checksum is over all bytes before the comma in front of it, and what follows is
compared byte by byte: no flipped bit, no cut and no edit by hand goes unnoticed. All
formats from 2 on end like this, so that a newer format is told from damage.

Format 1, of releases up to 0.5, has no checksum. One flipped bit does not turn a 2 into
a 1, and a file of format 1 has its keys and no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from crc32c import crc32c

from lance_spark.errors import StoreError

FORMAT = 2
UNCHECKED_FORMAT = 1
_CHECKSUM = "crc32c"


class Document(NamedTuple):
    """The content of a file without format and checksum, and its format.

    A format above `FORMAT` was written by a newer release: the checksum holds.
    """

    fields: dict[str, Any]
    format: int


def encode_document(fields: Mapping[str, Any]) -> bytes:
    """Encode a file's content with format and checksum."""
    text = json.dumps({"format": FORMAT, **fields}, indent=2, ensure_ascii=False)
    body = text.encode()[: -len("\n}")]
    return body + _seal(body)


def _seal(body: bytes) -> bytes:
    return f',\n  "{_CHECKSUM}": "{crc32c(body):08x}"\n}}\n'.encode()


_SEAL_BYTES = len(_seal(b""))


def decode_document(data: bytes, *, added: Set[str] = frozenset()) -> Document:
    """Decode a file's content and verify its checksum.

    Args:
        data: the content.
        added: keys that format 1 does not have.

    Raises:
        StoreError: it is damaged.
    """
    body = data[:-_SEAL_BYTES]
    checked = data[-_SEAL_BYTES:] == _seal(body)
    try:
        fields = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise StoreError("the checksum does not hold")
    version = integer(fields, "format")
    del fields["format"]
    if checked:
        del fields[_CHECKSUM]
    elif version != UNCHECKED_FORMAT or fields.keys() & {_CHECKSUM, *added}:
        raise StoreError("the checksum does not hold")
    return Document(fields, version)


def check_supported(document: Document) -> None:
    """Refuse a file that a newer release wrote.

    Raises:
        StoreError: it has a format that is not known here.
    """
    if document.format > FORMAT:
        raise StoreError(
            f"format {document.format} is not supported; this is lance_spark's "
            f"format {FORMAT}"
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key is there twice")
    return fields


def integer(fields: Mapping[str, Any], key: str, most: int = 2**64 - 1) -> int:
    """Take a number from 0 to `most`.

    Raises:
        StoreError: it is something else.
    """
    value = fields.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise StoreError(f"{key} is {str(value)[:80]}, not a number up to {most}")
    return value


def check_keys(fields: Any, keys: Set[str]) -> None:
    """Refuse anything but an object with these keys.

    Raises:
        StoreError: a key is missing or unknown.
    """
    if not isinstance(fields, dict) or fields.keys() != keys:
        raise StoreError(f"it has other fields than {', '.join(sorted(keys))}")
