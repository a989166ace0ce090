"""JSON payloads: parsed within limits, read field by field with the type checked.

What the documents mean is in `topic`, `cluster` and `error`. Python's parser would
take NaN, UTF-16, numbers of any length and half surrogates; none of them gets through.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer

# Parsed JSON is up to thirty times the size of its text. 4 MiB hold the description of
# 30 000 topics.
DOCUMENT_BYTES_MAX = 16 * 1024 * 1024
# 2^64 - 1 has 20 digits; beyond it the cost of parsing grows with the square.
_DIGITS_MAX = 20
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")

T = TypeVar("T")


def encode_document(body: Mapping[str, Any]) -> bytes:
    """Write a JSON object.

    Raises:
        LocalProtocolError: if it can't be written as JSON in UTF-8.
    """
    try:
        text = json.dumps(
            body, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"not a JSON document: {error}") from None


def decode_document(payload: Buffer, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        payload: the bytes.
        what: the message's name in errors.

    Raises:
        RemoteProtocolError: if it is not one, or too large.
    """
    size = memoryview(payload).nbytes
    if size > DOCUMENT_BYTES_MAX:
        raise RemoteProtocolError(f"{what} of {size} bytes is too long for JSON")
    try:
        text = str(payload, "utf-8")
        body = json.loads(
            text,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse,
        )
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        # UnicodeError and JSONDecodeError are both ValueErrors.
        raise RemoteProtocolError(f"{what} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RemoteProtocolError(f"{what} is not a JSON object")
    return body


def _parse_int(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS_MAX:
        raise ValueError("number too long")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("number too large")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


class DocumentReader:
    """Take the known fields out of a document; what is left is unknown but kept.

    Args:
        body: the document.
        what: the message's name in errors.
    """

    def __init__(self, body: Mapping[str, Any], what: str) -> None:
        self._body = dict(body)
        self._what = what

    def __contains__(self, key: str) -> bool:
        return key in self._body

    @property
    def rest(self) -> dict[str, Any]:
        """The fields that were not taken."""
        return self._body

    def take(self, key: str, value_type: type[T], default: T | None = None) -> T:
        """Take a field; a missing one or null is the default, if there is one.

        Raises:
            RemoteProtocolError: if it has another type, or is needed and missing.
        """
        value = self._body.pop(key, None)
        if value is None and default is not None:
            return default
        # In Python a bool is an int; in JSON it is not.
        if not isinstance(value, value_type) or (
            isinstance(value, bool) and value_type is not bool
        ):
            # Not the value itself: it may be megabytes, and nested without end.
            raise RemoteProtocolError(
                f"{self._what}: {key!r} is {type(value).__name__}, "
                f"not {value_type.__name__}"
            )
        return value

    def take_uint(self, key: str, bits: int, default: int | None = None) -> int:
        """Take an unsigned integer of so many bits.

        Raises:
            RemoteProtocolError: if it is something else.
        """
        value = self.take(key, int, default)
        if not 0 <= value < 1 << bits:
            raise RemoteProtocolError(f"{self._what}: {key!r} is {value}, not u{bits}")
        return value
