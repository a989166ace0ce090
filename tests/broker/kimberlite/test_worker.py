"""The process that answers a query, run in this one: without its limits."""

from __future__ import annotations

import builtins
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker.kimberlite import worker
from tests.each import each

pytest.importorskip("duckdb")

MIB = 1024 * 1024
NULL, BIGINT, TEXT, BOOLEAN, TIMESTAMP = range(5)


@pytest.fixture(scope="module", autouse=True)
def database() -> Iterator[Any]:
    """One database for all tests, as making it is what takes longest."""
    with worker.connect(512 * MIB) as database, pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "connect", lambda memory: database.cursor())
        yield


_connect = worker.connect


def frame(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def encode_table(name: str, events: Sequence[Sequence[bytes]]) -> bytes:
    """Write a table, whose events come in several batches, as the broker does."""
    parts, offset = [frame(name.encode())], 0
    for values in events:
        offsets = pa.array(range(offset, offset + len(values)), pa.int64())
        batch = pa.record_batch(
            {"offset": offsets, "value": pa.array(values, pa.binary())}
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        parts.append(frame(sink.getvalue().to_pybytes()))
        offset += len(values)
    return b"".join([*parts, frame(b"")])


def ask(
    sql: str,
    *params: Sequence[Any],
    tables: Mapping[str, Sequence[Sequence[bytes]]] | None = None,
) -> list[Any]:
    """Ask a query with such tables; give all that is said."""
    sent = b"".join(encode_table(*one) for one in (tables or {}).items()) + frame(b"")
    said = BytesIO()
    asked = {"sql": sql, "params": params, "memory": 32 * MIB}
    worker.answer(asked, BytesIO(sent), said)
    data, answers = said.getvalue(), []
    while data:
        (size,) = struct.unpack_from("<I", data)
        answers.append(json.loads(data[4 : 4 + size]))
        data = data[4 + size :]
    return answers


def rows(sql: str, *params: Sequence[Any], **tables: Sequence[bytes]) -> Any:
    """Ask a query; give its rows, with the types of their columns in front."""
    _, answer = ask(sql, *params, tables={name: [t] for name, t in tables.items()})
    assert "error" not in answer, answer
    return [answer["kinds"], *answer["rows"]]


def refused(sql: str, *params: Sequence[Any], **tables: Sequence[bytes]) -> Any:
    """Ask a query that can't be answered; give the code and the text."""
    answer = ask(sql, *params, tables={n: [t] for n, t in tables.items()})[-1]
    return answer.get("error"), answer.get("text", answer)


# Tables.


def test_a_stream_is_a_table() -> None:
    events = [[b"one", b""], [b"\xff\0", "vier €".encode()]]
    asked = 'SELECT "offset", "text", hex("value") FROM events ORDER BY 1 DESC'
    names, answer = ask(asked, tables={"events": events})
    assert names == {"names": ["events"]}
    assert answer == {
        "columns": ["offset", "text", 'hex("value")'],
        "kinds": [BIGINT, TEXT, TEXT],
        "rows": [
            [3, "vier €", "7669657220E282AC"],
            [2, None, "FF00"],
            [1, "", ""],
            [0, "one", "6F6E65"],
        ],
    }


def test_a_stream_without_events() -> None:
    _, answer = ask("SELECT count(*) FROM events", tables={"events": []})
    assert answer["rows"] == [[0]]


@each("name", ['a"b', "a'b", "a.b", "select", "Sel ect", "é", "main.t", ";", "pg_type"])
def test_names_that_need_quotes(name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    sql = f"SELECT * EXCLUDE value FROM {quoted}"
    names, answer = ask(sql, tables={name: [[b"x"]]})
    assert names == {"names": [name]}
    assert answer["rows"] == [[0, "x"]]


def test_names_that_a_query_mentions() -> None:
    sql = (
        "WITH recent AS (SELECT * FROM events WHERE 1 IN (SELECT 1 FROM inner_one)) "
        "SELECT 1 FROM recent JOIN main.other USING (text) "
        "UNION ALL SELECT 2 FROM 'quoted' WHERE EXISTS (FROM events)"
    )
    names = ask(sql)[0]
    assert names == {"names": ["events", "inner_one", "other", "quoted", "recent"]}
    # Names of other schemas are not streams.
    assert ask("SELECT 1 FROM information_schema.tables")[0] == {"names": []}


# Parameters and types.


def test_parameters_are_values() -> None:
    evil = "'; DROP TABLE events; --"
    found = rows(
        "SELECT $1, $2, $3, $4, $5",
        *([NULL, None], [BIGINT, -5], [TEXT, evil], [BOOLEAN, True]),
        [TIMESTAMP, 1_700_000_000_123_456_789],
        events=[b"x"],
    )
    kinds, row = found
    assert kinds[1:] == [BIGINT, TEXT, BOOLEAN, TIMESTAMP]
    assert row == [None, -5, evil, True, "1700000000123456789"]
    assert rows("SELECT ? || ?", [TEXT, "a"], [TEXT, "b"])[1] == ["ab"]
    # A text is never taken for a name or a number.
    found = rows("SELECT $1 = 'events'", [TEXT, "events"], events=[b"x"])
    assert found[1] == [True]
    assert refused("SELECT * FROM $1", [TEXT, "events"], events=[b"x"])[0] == 7


@each("ns", [0, -1, 1, -(2**63), 2**63 - 2, 1_000_000_001, -1_000_000_001])
def test_times_that_are_given(ns: int) -> None:
    kinds, row = rows("SELECT $1", [TIMESTAMP, ns])
    assert (kinds, row) == ([TIMESTAMP], [str(ns)])


@each(
    ("value", "kind", "found"),
    [
        ("7::TINYINT", BIGINT, 7),
        ("-9223372036854775808", BIGINT, -(2**63)),
        ("18446744073709551615::UBIGINT", BIGINT, 2**64 - 1),
        ("170141183460469231731687303715884105727::HUGEINT", BIGINT, 2**127 - 1),
        ("NULL::BIGINT", BIGINT, None),
        ("false", BOOLEAN, False),
        ("'€' || chr(0)", TEXT, "€\0"),
        ("NULL", None, None),
        ("1.50", TEXT, "1.50"),
        ("1.5::DOUBLE", TEXT, "1.5"),
        ("'nan'::FLOAT", TEXT, "nan"),
        ("[1, 2]", TEXT, "[1, 2]"),
        ("{'a': 1}", TEXT, "{'a': 1}"),
        ("DATE '2020-01-02'", TEXT, "2020-01-02"),
        ("INTERVAL 1 DAY", TEXT, "1 day"),
        ("TIMESTAMP '2020-01-01'", TIMESTAMP, "1577836800000000000"),
        ("TIMESTAMP '1969-12-31 23:59:59.999999'", TIMESTAMP, "-1000"),
        ("TIMESTAMP_S '2020-01-01'", TIMESTAMP, "1577836800000000000"),
        ("TIMESTAMP_MS '2020-01-01'", TIMESTAMP, "1577836800000000000"),
        ("TIMESTAMP_NS '2020-01-01'", TIMESTAMP, "1577836800000000000"),
        ("TIMESTAMPTZ '2020-01-01 01:00+01'", TIMESTAMP, "1577836800000000000"),
        ("NULL::TIMESTAMP", TIMESTAMP, None),
        # These have no number of ns in 64 bits.
        ("TIMESTAMP '9999-12-31'", TIMESTAMP, "9999-12-31 00:00:00"),
        ("TIMESTAMP_S '0001-01-01'", TIMESTAMP, "0001-01-01 00:00:00"),
        ("'infinity'::TIMESTAMP", TIMESTAMP, "infinity"),
        ("'-infinity'::TIMESTAMP_NS", TIMESTAMP, "-infinity"),
        ("[TIMESTAMP '2020-01-01']", TEXT, "['2020-01-01 00:00:00']"),
    ],
)
def test_types(value: str, kind: int | None, found: Any) -> None:
    kinds, row = rows(f"SELECT {value}")
    assert row == [found]
    assert kind is None or kinds == [kind]


def test_bytes_have_no_form() -> None:
    code, text = refused("SELECT * FROM events", events=[b"x"])
    assert code == 8
    assert text == "column 'value' is bytes, which an answer can't carry: use hex()"


# What is refused.


@each(
    "sql",
    [
        "COPY (SELECT 1) TO '/tmp/lance-sql-copy.csv'",
        "COPY events FROM '/etc/passwd'",
        "ATTACH '/tmp/lance-sql-attached.db' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "SET threads = 4",
        "RESET memory_limit",
        "CALL pragma_version()",
        "EXPORT DATABASE '/tmp/lance-sql-export'",
        "CREATE TABLE t AS SELECT 1",
        "CREATE MACRO f(x) AS x",
        "INSERT INTO events VALUES (1, 'x', 'x')",
        "UPDATE events SET text = ''",
        "DELETE FROM events",
        "DROP VIEW events",
        "BEGIN TRANSACTION",
        "PREPARE p AS SELECT 1",
        "EXPLAIN SELECT 1",
        "VACUUM",
        "CHECKPOINT",
    ],
)
def test_only_reading_is_answered(sql: str) -> None:
    code, text = refused(sql, events=[b"x"])
    assert code == 7
    assert text.startswith("only SELECT is answered") or "syntax error" in text, text
    assert not list(Path("/tmp").glob("lance-sql-*"))


@each(
    "table",
    [
        "read_csv('/etc/passwd')",
        "read_csv_auto('/etc/passwd')",
        "read_json('/etc/passwd')",
        "read_parquet('/etc/passwd')",
        "read_text('/etc/passwd')",
        "read_blob('/etc/passwd')",
        "sniff_csv('/etc/passwd')",
        "glob('/etc/*')",
        "read_text('/proc/self/environ')",
        "read_csv('https://127.0.0.1:1/x.csv')",
        "read_csv('s3://bucket/x.csv')",
        "'/etc/passwd'",
        "'/etc/passwd.csv'",
        "'https://127.0.0.1:1/x.parquet'",
        "query('SELECT * FROM read_text(''/etc/passwd'')')",
        "duckdb_extensions()",
        "duckdb_secrets()",
        "postgres_scan('host=127.0.0.1', 'public', 't')",
        "sqlite_scan('/tmp/x.db', 't')",
    ],
)
def test_nothing_outside_is_reached(table: str) -> None:
    code, text = refused(f"SELECT * FROM {table}")
    assert code in (6, 7, 8), text


@each("call", ["getenv('HOME')", "read_text('/etc/passwd')", "pg_read_file('/etc/x')"])
def test_no_function_reaches_anything(call: str) -> None:
    code, text = refused(f"SELECT {call}")
    assert code == 7, text


def test_variables_of_this_process_are_no_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "secret", pa.table({"a": [1]}), raising=False)
    assert refused("SELECT * FROM secret")[0] == 6


@each(
    ("sql", "code", "part"),
    [
        ("", 7, "0 statements"),
        ("-- nothing", 7, "0 statements"),
        ("SELECT 1; SELECT 2", 7, "2 statements"),
        ("SELECT FROM WHERE", 7, "yntax"),
        ("SELECT nosuch FROM events", 7, "nosuch"),
        ("SELECT nosuch(1) FROM events", 7, "nosuch"),
        ("SELECT * FROM nosuch", 6, "nosuch"),
        ("SELECT * FROM Events, nosuch", 6, "does not exist"),
        ("SELECT * FROM query_table('nosuch')", 6, "nosuch"),
        ("WITH x AS (SELECT 1) SELECT nosuch(1) FROM x", 7, "nosuch"),
        ("SELECT CAST('x' AS BIGINT)", 8, "x"),
        ("SELECT $1", 8, "arameter"),
        ("SELECT error('boom')", 8, "boom"),
        ("SELECT * FROM range(70000)", 8, "more than 65535 rows: add a LIMIT"),
        ("SELECT repeat('x', 17000000)", 8, "over 16777216 bytes: ask for less"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, None, "depth|nest|recurs|stack"),
    ],
)
def test_refusals(sql: str, code: int | None, part: str) -> None:
    found, text = refused(sql, events=[b"x"])
    assert found == code or (code is None and found in (7, 8))
    assert any(one in text for one in part.split("|")), text


def test_rows_and_columns_are_bounded_together() -> None:
    columns = ", ".join(f"{n} AS c{n}" for n in range(10))
    code, text = refused(f"SELECT {columns} FROM range(40000)")
    assert (code, "more than 26214 rows" in text) == (8, True)
    assert len(rows(f"SELECT {columns} FROM range(26214)")) == 26215


def test_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own text would advise settings that a client can't change."""
    monkeypatch.setattr(worker, "connect", _connect)
    sql = "SELECT string_agg(repeat('x', 1000), '') FROM range(1000000)"
    code, text = refused(sql)
    assert code == 8
    assert text.startswith("the query takes more memory than the broker gives it")


def test_an_error_s_text_has_a_limit() -> None:
    code, text = refused(f"SELECT error('{'x' * 10_000}')")
    assert (code, len(text)) == (8, 4096)


# The broker and the system.


def test_a_broker_that_goes() -> None:
    asked = {"sql": "SELECT * FROM events", "params": [], "memory": 64 * MIB}
    for sent in (b"", b"\5", frame(b"events"), frame(b"events") + b"\5\0\0\0ab"):
        with pytest.raises(SystemExit):
            worker.answer(asked, BytesIO(sent), BytesIO())


def test_whatever_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*rest: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(worker, "read_tables", fail)
    assert refused("SELECT 1") == (8, "ZeroDivisionError")
    monkeypatch.setattr(worker, "connect", _connect)
    original = builtins.__import__

    def import_less(name: str, *rest: Any) -> Any:
        if name == "duckdb":
            raise ImportError("no shared object")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", import_less)
    assert refused("SELECT 1") == (8, "no shared object")
