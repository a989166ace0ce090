"""The two checksums met on LWP connections, and how to tell which one a peer uses.

LWP §9 asks for CRC32C. The Rust server and both of its clients compute the IEEE
CRC-32 instead, for headers and payloads alike, so every encoder and the parser take
the algorithm as a value. Nothing here knows what a frame means.
"""

from __future__ import annotations

import struct
import zlib
from enum import Enum

import crc32c

from lance_spark.errors import OptionError
from lance_spark.model import Buffer

# The header CRC covers bytes 0 to 7 and is stored in bytes 8 to 11 (LWP §9.3).
PROTECTED_BYTES = 8
_HEADER_CRC = struct.Struct("<I")


class Checksum(Enum):
    """A checksum algorithm of 32 bits."""

    CRC32C = "crc32c"
    CRC32 = "crc32"

    def update(self, data: Buffer, value: int = 0) -> int:
        """Return the checksum of `data`, continued from the checksum `value`."""
        if self is Checksum.CRC32C:
            return crc32c.crc32c(data, value)
        return zlib.crc32(data, value)


def identify_checksum(header: Buffer) -> Checksum | None:
    """Tell the algorithm from the first 12 bytes of a header.

    For the 128 flag bytes that LWP allows the two algorithms never agree, so that one
    header decides.

    Returns:
        The algorithm, or None if the header's CRC is neither.
    """
    view = memoryview(header)
    (stored,) = _HEADER_CRC.unpack_from(view, PROTECTED_BYTES)
    for checksum in Checksum:
        if checksum.update(view[:PROTECTED_BYTES]) == stored:
            return checksum
    return None


def parse_checksum(text: str) -> Checksum | None:
    """Read a setting: `crc32c`, `crc32`, or `auto`, which gives None.

    Raises:
        OptionError: for anything else.
    """
    if text == "auto":
        return None
    try:
        return Checksum(text)
    except ValueError:
        raise OptionError(
            f"checksum {text!r} is unknown; use crc32c, crc32 or auto"
        ) from None
