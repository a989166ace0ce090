"""The number by which a broker knows a consumer.

LWP has 64-bit numbers where people have names. The number of a name must be the same
in every process and release, or commits made by one are not found by the next:

    the first 8 bytes of SHA-256 of the name in UTF-8, as a little-endian integer;
    1 in the place of 0

This rule is fixed for ever.
"""

from __future__ import annotations

import hashlib

from lance_spark.errors import OptionError

_ID_BYTES = 8


def consumer_id(name: str) -> int:
    """Return the number of a consumer's or group's name, from 1 to 2^64 - 1.

    Raises:
        OptionError: if the name is empty or not text that UTF-8 can hold.
    """
    if not name:
        raise OptionError("a consumer's name can't be empty")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise OptionError(f"consumer name {name!r} can't be written as UTF-8") from None
    digest = hashlib.sha256(encoded).digest()
    return int.from_bytes(digest[:_ID_BYTES], "little") or 1
