"""Queries of Kimberlite's clients, each answered by DuckDB in a process of its own.

The process (`worker`) is bounded by the system, reaches no file and no network, and is
killed when its time is up. It is told the query and says which tables that names; then
it is sent those streams, batch by batch. What comes back is checked as what a client
sends is: nothing that it says is trusted but to be an answer to its own query.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from lance_spark.errors import (
    BrokerError,
    InternalError,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.net.deadline import READABLE, WRITABLE, Deadline, wait_ready
from lance_spark.wire import kimberlite as wire

logger = logging.getLogger(__name__)

PARSE_ERROR, EXECUTION_ERROR = 7, 8
# The types of values, by their numbers on the wire.
_NULL, _BIGINT, _TEXT, _BOOLEAN, _TIMESTAMP = range(5)
# How many run at a time: each may take all of `query_memory_bytes_max`.
_RUNNING_MAX = 2
# The longest that a worker says: its answer in JSON.
_FRAME_BYTES_MAX = 16 * 1024 * 1024
_LENGTH_BYTES = 4
# How often it is looked whether the client is still there.
_LOOK_S = 0.1
# What a query may have: parameters, and characters of all its texts together.
PARAMS_MAX = 1000
TEXT_MAX = 1024 * 1024
# A text in JSON becomes a Python object, and that a part of a frame.
_GROWTH = 12
# How long a process that has closed its pipes may take to end.
_END_S = 1.0
_WORKER = str(Path(__file__).with_name("worker.py"))

# The batches of a stream, by the name that the query gives it; None if there is none.
LoadTable = Callable[[str], Iterator[pa.RecordBatch] | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query may take.

    Args:
        memory_bytes: of memory; a quarter of it may be streams.
        seconds: of time, with the wait for its turn.
    """

    memory_bytes: int
    seconds: float


class Queries:
    """Runs queries, a few at a time; any thread may call it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._turns = threading.Semaphore(_RUNNING_MAX)

    def run(
        self,
        sql: str,
        params: Sequence[wire.Value],
        *,
        load: LoadTable,
        hold: Callable[[int], None],
        check: Callable[[], None],
    ) -> tuple[tuple[str, ...], tuple[tuple[wire.Value, ...], ...]]:
        """Answer a query with its columns and rows.

        Args:
            sql: the query.
            params: what `$1` and so on stand for.
            load: gives the tables that it names.
            hold: is told how many bytes the answer takes before it is read.
            check: is called now and then; raises if nobody waits for the answer.

        Raises:
            BrokerError: it can't be answered.
            Timeout: it took too long, or others did.
        """
        if find_spec("duckdb") is None:
            raise _refuse(
                PARSE_ERROR,
                "this broker answers no queries: install lance-spark[sql] where it "
                "runs, which brings DuckDB",
            )
        if len(params) > PARAMS_MAX:
            text = f"{len(params)} parameters: a query has at most {PARAMS_MAX}"
            raise _refuse(PARSE_ERROR, text)
        size = sum(len(text) for text in (sql, *params) if isinstance(text, str))
        if size > TEXT_MAX:
            raise _refuse(
                PARSE_ERROR,
                f"{size} characters: a query and its parameters have at most "
                f"{TEXT_MAX}",
            )
        deadline = Deadline.after(self._limits.seconds)
        while not self._turns.acquire(timeout=min(_LOOK_S, deadline.remaining())):
            check()
            if deadline.expired:
                raise Timeout("other queries took too long: ask again")
        try:
            with _start(deadline, check) as worker:
                return self._ask(worker, sql, params, load, hold)
        finally:
            self._turns.release()

    def _ask(
        self,
        worker: _Worker,
        sql: str,
        params: Sequence[wire.Value],
        load: LoadTable,
        hold: Callable[[int], None],
    ) -> tuple[tuple[str, ...], tuple[tuple[wire.Value, ...], ...]]:
        asked = {
            "sql": sql,
            "params": [_describe(value) for value in params],
            "memory": self._limits.memory_bytes,
            "seconds": math.ceil(self._limits.seconds),
            "path": sys.path,
        }
        worker.send(json.dumps(asked).encode())
        names = worker.ask()["names"]
        most = self._limits.memory_bytes // 4
        loaded: dict[str, str] = {}
        for name in names:
            batches = load(name)
            if batches is None:
                continue
            other = loaded.setdefault(name.lower(), name)
            if other != name:
                raise _refuse(
                    PARSE_ERROR,
                    f"streams {other!r} and {name!r} are the same table to SQL, which "
                    "does not tell capital letters: query one at a time",
                )
            worker.send(name.encode())
            for batch in batches:
                most -= batch.nbytes
                if most < 0:
                    raise _refuse(
                        EXECUTION_ERROR,
                        f"the streams of the query have more than "
                        f"{self._limits.memory_bytes // 4} bytes, a quarter of "
                        "query_memory_bytes_max: query fewer",
                    )
                worker.send(_write(batch))
            worker.send(b"")
        worker.send(b"")
        answer = worker.ask(hold)
        columns, kinds = answer["columns"], answer["kinds"]
        rows = tuple(tuple(map(_make_value, kinds, row)) for row in answer["rows"])
        return tuple(columns), rows


def _refuse(code: int, text: str) -> BrokerError:
    return wire.make_error(code, text)


class _Worker:
    """The process of one query: frames to it and from it, with a deadline."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        deadline: Deadline,
        check: Callable[[], None],
    ) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        self._deadline = deadline
        self._check = check
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)

    def send(self, data: bytes | pa.Buffer) -> None:
        """Send a frame."""
        size = memoryview(data).nbytes
        for part in (size.to_bytes(_LENGTH_BYTES, "little"), data):
            rest = memoryview(part).cast("B")
            while len(rest):
                self._wait(self._to, WRITABLE)
                try:
                    rest = rest[os.write(self._to, rest) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    # What it has said before that is the reason.
                    return

    def ask(self, hold: Callable[[int], None] | None = None) -> Mapping[str, Any]:
        """Read the next frame.

        Raises:
            BrokerError: it says why the query can't be answered, or has ended.
        """
        size = int.from_bytes(self._read(_LENGTH_BYTES), "little")
        if size > _FRAME_BYTES_MAX:
            raise RemoteProtocolError(f"a worker sends {size} bytes")
        if hold is not None:
            hold(_GROWTH * size)
        answer: Mapping[str, Any] = json.loads(self._read(size))
        if "error" in answer:
            raise _refuse(answer["error"], answer["text"])
        return answer

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._wait(self._from, READABLE)
            with suppress(BlockingIOError):
                piece = os.read(self._from, size - len(found))
                if not piece:
                    raise self._explain_end()
                found += piece
        return bytes(found)

    def _explain_end(self) -> BrokerError:
        """Make the error for a process that has ended without an answer."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.returncode
        how = f"exit status {code}"
        if code is not None and code < 0:
            how = signal.strsignal(-code) or f"signal {-code}"
        logger.warning("the process of a query has ended: %s", how)
        return _refuse(
            EXECUTION_ERROR,
            f"the process of the query has ended ({how}): it may have taken more "
            "memory than the broker gives it (query_memory_bytes_max)",
        )

    def _wait(self, descriptor: int, event: int) -> None:
        while not wait_ready(descriptor, event, self._deadline.sooner(_LOOK_S)):
            self._check()
            if self._deadline.expired:
                raise _refuse(
                    EXECUTION_ERROR,
                    "the query took longer than the broker lets it (query_timeout_s)",
                )


@contextmanager
def _start(deadline: Deadline, check: Callable[[], None]) -> Iterator[_Worker]:
    try:
        # Isolated: neither its directory nor the environment says what it imports.
        process = subprocess.Popen(
            [sys.executable, "-I", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"TZ": "UTC"},
            cwd="/",
        )
    except OSError as error:
        logger.error("no process for a query can be started: %s", error)
        text = f"no process for the query can be started: {error.strerror}"
        raise InternalError(text) from error
    try:
        yield _Worker(process, deadline, check)
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        process.wait()


def _write(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _describe(value: wire.Value) -> tuple[int, Any]:
    """Give the type of a parameter, by its number on the wire, and its value."""
    if value is None:
        return _NULL, None
    if isinstance(value, wire.Timestamp):
        return _TIMESTAMP, value.ns
    if isinstance(value, bool):
        return _BOOLEAN, value
    return (_TEXT if isinstance(value, str) else _BIGINT), value


def _make_value(kind: int, value: Any) -> wire.Value:
    """Make a value of an answer: of its column's type, or a text if it does not fit."""
    if kind == _TIMESTAMP and value is not None:
        # A text in any case, of the number if there is one.
        text = str(value)
        is_number = text.removeprefix("-").isdecimal()
        return wire.Timestamp(int(text)) if is_number else text
    if kind == _BIGINT and value is not None and not -(2**63) <= value < 2**63:
        return str(value)
    found: wire.Value = value
    return found
