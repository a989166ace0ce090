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
# What Python, DuckDB and Arrow map before they have done anything; the limit counts it.
_OWN_BYTES = 192 * 1024 * 1024
_ROWS_MAX = 65_535
_VALUES_MAX = 4 * 65_535
_BYTES_MAX = 16 * 1024 * 1024


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
    data = json.dumps(value).encode()
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


def read_tables(stream: BinaryIO, database: Any) -> set[str]:
    """Make the tables that the broker sends; tell which they are."""
    import pyarrow as pa

    known = set()
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
        known.add(name)
    return known


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
        kind = str(kind)
        if kind == "BLOB":
            raise _Refused(
                _EXECUTION,
                f"column {name!r} is bytes, which an answer can't carry: use hex()",
            )
        if kind.startswith("TIMESTAMP"):
            kinds.append(_TIMESTAMP)
            takes.append(f"epoch_ns(#{place + 1})")
        elif kind in _KINDS:
            kinds.append(_KINDS[kind])
            takes.append(f"#{place + 1}")
        else:
            kinds.append(_TEXT)
            takes.append(f"CAST(#{place + 1} AS VARCHAR)")
    if not kinds:
        raise _Refused(_PARSE, "the query has no columns")
    most = min(_ROWS_MAX, _VALUES_MAX // len(kinds))
    rows = found.project(", ".join(takes)).limit(most + 1).fetchall()
    if len(rows) > most:
        raise _Refused(
            _EXECUTION, f"the answer has more than {most} rows: add a LIMIT to it"
        )
    return {"columns": found.columns, "kinds": kinds, "rows": rows}


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
    import duckdb

    names, known = [], set[str]()
    try:
        try:
            database = connect(memory)
            names = find_names(database, asked["sql"])
            write_frame(writing, {"names": names})
            known = read_tables(reading, database)
            write_frame(writing, run(database, asked["sql"], asked["params"]))
        except duckdb.CatalogException as error:
            is_missing = not known.issuperset(names)
            raise _Refused(
                _TABLE_NOT_FOUND if is_missing else _PARSE, str(error)
            ) from error
        except (duckdb.ParserException, duckdb.BinderException) as error:
            raise _Refused(_PARSE, str(error)) from error
        except (duckdb.Error, MemoryError, OverflowError, RecursionError) as error:
            text = str(error) or type(error).__name__
            raise _Refused(_EXECUTION, text) from error
    except _Refused as refused:
        code, text = refused.args
        write_frame(writing, {"error": code, "text": text[:4096]})


if __name__ == "__main__":
    main()
