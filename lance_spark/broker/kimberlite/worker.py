"""The process that answers one query with DuckDB, and ends.

DuckDB's own limit of memory does not hold for all that it does, and a query that runs
can't be relied on to stop. So the broker starts this file as a program of its own (see
`sql`), with limits of the system, and kills it at the deadline. It imports nothing of
the package. Standard input and output carry frames: a length of 4 bytes, then so many.

    broker  {"sql": …, "params": [[kind, value], …], "memory": bytes, "seconds": …}
    worker  {"names": [the tables that the query names, …]}
    broker  for each that there is: its name, batches of Arrow with `offset` and
            `value`, an empty frame; behind the last table another empty frame
    worker  {"columns": [name, …], "kinds": [kind, …], "rows": [[value, …], …]}

In place of either answer may stand {"error": code, "text": …}.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<I")
# Kimberlite's codes, and its types of values.
_TABLE_NOT_FOUND, _PARSE, _EXECUTION = 6, 7, 8
_NULL, _BIGINT, _TEXT, _BOOLEAN, _TIMESTAMP = range(5)
_SMALL = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
# These may be too large for the wire.
_LARGE = ("UBIGINT", "HUGEINT", "UHUGEINT")
_KINDS = {
    **dict.fromkeys((*_SMALL, "UTINYINT", "USMALLINT", "UINTEGER", *_LARGE), _BIGINT),
    "VARCHAR": _TEXT,
    "BOOLEAN": _BOOLEAN,
}
# A time is the text of its ns, or its own where these have more than 64 bits: infinity,
# and 9999-12-31. `epoch_ns` fails for such a time, in either branch of a CASE.
_TIME_NS = "coalesce(CAST(epoch_ns({0}) AS VARCHAR), CAST({0} AS VARCHAR))"
_TIME = (
    "CASE WHEN epoch_us({0}) BETWEEN -9223372036854775 AND 9223372036854775 THEN"
    " CAST(1000 * CAST(epoch_us({0}) AS HUGEINT) AS VARCHAR)"
    " ELSE CAST({0} AS VARCHAR) END"
)
_TIMES = {
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), _TIME),
    "TIMESTAMP WITH TIME ZONE": _TIME,
    "TIMESTAMP_NS": _TIME_NS,
}
# What Python, DuckDB and Arrow map before they have done anything; the limit counts it.
_OWN_BYTES = 192 * 1024 * 1024
_ROWS_MAX = 65_535
_VALUES_MAX = 4 * 65_535
_BYTES_MAX = 16 * 1024 * 1024
# Of an error.
_TEXT_MAX = 4096
_NO_TABLE = "Table with name"


class _Refused(Exception):
    """The query can't be answered; the code and the text for the client."""


def read_frame(stream: BinaryIO) -> bytes:
    """Read a frame; a stream that ends before it ends the program."""
    head = stream.read(_LENGTH.size)
    data = stream.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else b""
    if len(head) < _LENGTH.size or len(data) < _LENGTH.unpack(head)[0]:
        raise SystemExit("the broker has gone")
    return data


def write_frame(stream: BinaryIO, value: object) -> None:
    """Write a value as a frame.

    Raises:
        _Refused: it is too large.
    """
    data = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    if len(data) > _BYTES_MAX:
        raise _Refused(
            _EXECUTION, f"the answer is over {_BYTES_MAX} bytes: ask for less"
        )
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def connect(memory: int) -> Any:
    """Make a database that reaches no file, no network and no variable of Python."""
    import duckdb

    return duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",
            "temp_directory": "",
            "memory_limit": f"{memory // 2}B",
            "threads": "1",
            "lock_configuration": "true",
        },
    )


def find_names(database: Any, sql: str) -> list[str]:
    """List the tables that a query names; those of its own WITH may be among them.

    Raises:
        _Refused: it is not one SELECT.
    """
    [[text]] = database.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
    parsed = json.loads(text)
    if parsed["error"]:
        text = parsed["error_message"]
        if parsed["error_type"] == "not implemented":
            text = "only SELECT is answered: streams are tables that can't be changed"
        raise _Refused(_PARSE, text)
    if len(parsed["statements"]) != 1:
        raise _Refused(
            _PARSE, f"{len(parsed['statements'])} statements: a query has one"
        )
    return sorted(set(_walk(parsed)))


def _walk(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE" and node["schema_name"] in ("", "main"):
            yield node["table_name"]
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _walk(part)


def read_tables(stream: BinaryIO, database: Any) -> None:
    """Make the tables that the broker sends."""
    import pyarrow as pa

    while name := read_frame(stream).decode():
        batches = []
        while data := read_frame(stream):
            batches += pa.ipc.open_stream(data).read_all().to_batches()
        text = [_find_texts(batch.column("value")) for batch in batches]
        table = pa.Table.from_batches(
            batches, pa.schema({"offset": pa.int64(), "value": pa.binary()})
        )
        table = table.append_column("text", pa.chunked_array(text, pa.string()))
        database.register(name, table)


def _find_texts(values: Any) -> Any:
    """Give those values that are texts, null for the others."""
    import pyarrow as pa

    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_decode, values.to_pylist()), pa.string())


def _decode(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _bind(kind: int, value: Any) -> Any:
    """Make what DuckDB takes for a parameter."""
    if kind != _TIMESTAMP:
        return value
    import duckdb

    seconds, ns = divmod(value, 10**9)
    moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    text = f"{moment.isoformat(' ')}.{ns:09}"
    return duckdb.Value(text, duckdb.type("TIMESTAMP_NS"))


def run(database: Any, sql: str, params: list[Any]) -> dict[str, Any]:
    """Run a query; give its answer in the types of the wire.

    Raises:
        _Refused: it has a column that can't be sent, or is too large.
    """
    found = database.sql(sql, params=[_bind(*param) for param in params])
    kinds, takes = [], []
    for place, (name, kind) in enumerate(zip(found.columns, found.types, strict=True)):
        kind, column = str(kind), f"#{place + 1}"
        if kind == "BLOB":
            raise _Refused(
                _EXECUTION,
                f"column {name!r} is bytes, which an answer can't carry: use hex()",
            )
        if kind in _TIMES:
            kinds.append(_TIMESTAMP)
            takes.append(_TIMES[kind].format(column))
        elif kind in _KINDS:
            kinds.append(_KINDS[kind])
            takes.append(column)
        else:
            kinds.append(_TEXT)
            takes.append(f"CAST({column} AS VARCHAR)")
    most = min(_ROWS_MAX, _VALUES_MAX // max(1, len(kinds)))
    rows = found.project(", ".join(takes)).limit(most + 1).fetchall()
    if len(rows) > most:
        raise _Refused(
            _EXECUTION, f"the answer has more than {most} rows: add a LIMIT to it"
        )
    return {"columns": found.columns, "kinds": kinds, "rows": rows}


def answer(asked: dict[str, Any], reading: BinaryIO, writing: BinaryIO) -> None:
    """Answer a query, or say why it can't be answered."""
    try:
        database = connect(asked["memory"])
        write_frame(writing, {"names": find_names(database, asked["sql"])})
        read_tables(reading, database)
        write_frame(writing, run(database, asked["sql"], asked["params"]))
    except Exception as error:
        code, text = explain(error)
        write_frame(writing, {"error": code, "text": text[:_TEXT_MAX]})


def explain(error: Exception) -> tuple[int, str]:
    """Say with which code and text an error is told."""
    if isinstance(error, _Refused):
        code, text = error.args
        return code, text
    # DuckDB's by their names: it may be what can't be imported.
    kind, text = type(error).__name__, str(error)
    if kind in ("MemoryError", "OutOfMemoryException"):
        # DuckDB's own text advises settings that a client can't change.
        return _EXECUTION, (
            "the query takes more memory than the broker gives it "
            "(query_memory_bytes_max): ask for less at a time"
        )
    if kind == "CatalogException" and _NO_TABLE in text:
        return _TABLE_NOT_FOUND, text
    if kind in ("BinderException", "CatalogException", "ParserException"):
        return _PARSE, text
    return _EXECUTION, text or kind


def main() -> None:
    """Answer the query that stands on standard input."""
    reading, writing = sys.stdin.buffer, sys.stdout.buffer
    asked = json.loads(read_frame(reading))
    sys.path[:] = asked["path"]
    seconds, memory = asked["seconds"], asked["memory"]
    # Should the broker not be there any more to end it.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds + 1,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_OWN_BYTES + memory,) * 2)
    answer(asked, reading, writing)


if __name__ == "__main__":
    main()
