"""Records as `consume` prints them: one line each, in bytes."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.cli.text import format_json
from lance_spark.model import Buffer


class Output(ABC):
    """A way to print records; `COLUMNS` are those of `decode` that it needs.

    Args:
        topic: the topic's name.
        separator: printed between key and value; None prints no key.
    """

    COLUMNS: Sequence[str]

    def __init__(self, topic: str, separator: bytes | None) -> None:
        self.topic = topic
        self.separator = separator

    @abstractmethod
    def encode(self, rows: pa.RecordBatch) -> Buffer:
        """Write records as lines."""


class RawOutput(Output):
    """Values as they are; a Null record is an empty line."""

    COLUMNS = ("key", "value")

    def encode(self, rows: pa.RecordBatch) -> Buffer:
        """Write records as lines, without a Python object for any of them."""
        parts = [pc.fill_null(rows.column("value"), b""), pa.scalar(b"\n", pa.binary())]
        if self.separator is not None:
            separator = pa.scalar(self.separator, pa.binary())
            parts = [pc.fill_null(rows.column("key"), b""), separator, *parts]
        lines = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
        _, offsets, data = lines.buffers()
        end = int(np.frombuffer(offsets, np.int32)[len(lines)])
        # The array was made just now, so its bytes start where its buffer does.
        return data.slice(0, end)


class HexOutput(Output):
    """Values as hexadecimal digits."""

    COLUMNS = ("key", "value")

    def encode(self, rows: pa.RecordBatch) -> Buffer:
        """Write records as lines."""
        lines = [_to_hex(value) for value in rows.column("value").to_pylist()]
        if self.separator is not None:
            keys = [_to_hex(key) for key in rows.column("key").to_pylist()]
            lines = [
                key + self.separator + value
                for key, value in zip(keys, lines, strict=True)
            ]
        return b"".join(line + b"\n" for line in lines)


class JsonOutput(Output):
    """One object per record; bytes that are no text are in base64."""

    COLUMNS = ("offset", "type", "key", "value", "timestamp_ns")

    def encode(self, rows: pa.RecordBatch) -> Buffer:
        """Write records as lines."""
        lines = [self._encode_row(row) for row in rows.to_pylist()]
        return "".join(f"{line}\n" for line in lines).encode()

    def _encode_row(self, row: dict[str, Any]) -> str:
        document = {
            "topic": self.topic,
            "offset": row["offset"],
            "type": row["type"],
            **_to_field("key", row["key"]),
            **_to_field("value", row["value"]),
            "timestamp_ns": row["timestamp_ns"],
        }
        return format_json(document)


OUTPUTS: dict[str, type[Output]] = {
    "raw": RawOutput,
    "json": JsonOutput,
    "hex": HexOutput,
}


def _to_hex(value: bytes | None) -> bytes:
    return b"" if value is None else value.hex().encode()


def _to_field(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
