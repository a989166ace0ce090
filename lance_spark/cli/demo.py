"""`lance-spark demo`: the store's promises, shown on a million records.

A child process writes and is killed half-way; what it was told to be durable must be
there. The rest is written, everything is checked, read back and compared.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
from crc32c import crc32c

from lance_spark.cli.demo_record import CYCLE, make_records
from lance_spark.cli.demo_writer import TOPIC, Ack, write_records
from lance_spark.cli.show.segment import name_type
from lance_spark.cli.text import count, format_bytes
from lance_spark.columnar.decode import decode
from lance_spark.columnar.encode import encode
from lance_spark.columnar.layout import validate
from lance_spark.errors import LanceError
from lance_spark.store import NamedStage, Store, check_store

_READ_BYTES = 4 * 1024 * 1024
_WRITER = (sys.executable, "-m", "lance_spark.cli.demo_writer")
_COLUMNS = ("type", "key", "value", "timestamp_ns")


@click.command("demo")
@click.option(
    "--records",
    type=click.IntRange(min=100),
    default=1_000_000,
    show_default=True,
    help="How many records to write.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Keep the store here; must not exist or be empty.",
)
def command(records: int, directory: Path | None) -> None:
    """Write records of all types, crash on purpose, recover, read back and compare."""
    with _place(directory) as path:
        print(
            f"{count(records, 'record')} of {len(CYCLE)} types, store in {path}",
            flush=True,
        )
        ack = _write_and_kill(path, records)
        crc = _recover(path, records, ack)
        _check(path)
        _read_back(path, records, crc)
    kept = "" if directory is None else f"; look around: lance-spark check {path}"
    print(f"all of it as promised{kept}")


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="lance-demo-") as temporary:
            yield Path(temporary)
        return
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise LanceError(f"{directory}: must not exist or be an empty directory")
    yield directory


def _say(step: str, text: str) -> None:
    print(f"  {step:8} {text}", flush=True)


def _rate(records: int, size: int, seconds: float) -> str:
    seconds = max(seconds, 1e-9)
    return (
        f"{seconds:.2f} s: {records / seconds:,.0f} records/s, "
        f"{size / seconds / 1e6:,.0f} MB/s"
    )


def _write_and_kill(path: Path, records: int) -> Ack:
    """Let a child write and kill it once half of the records are acknowledged."""
    half = records // 2
    # It may be ahead of what it told when the signal comes, but never through.
    end = half + records // 4
    ack: Ack | None = None
    with _start_writer(path, end, records) as child:
        assert child.stdout is not None
        for line in child.stdout:
            ack = Ack(*json.loads(line))
            if ack.records >= half:
                break
    if ack is None or ack.records < half or child.returncode != -signal.SIGKILL:
        raise LanceError("the writing process ended before it was killed")
    done = count(ack.records, "record")
    rate = _rate(ack.records, ack.end, ack.elapsed_s)
    _say("write", f"process {child.pid}: {done} acknowledged, {rate}")
    _say(
        "crash",
        f"killed by signal {signal.SIGKILL:d}, with its store open and more to write",
    )
    return ack


@contextmanager
def _start_writer(
    path: Path, end: int, total: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the writing process, which is killed at the end, however that comes."""
    # An interrupt inside of Popen would leave the process alone, so it has to wait
    # until the process is known. To block the signal is not enough: it would be taken
    # by a thread of a library.
    waiting: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        child = subprocess.Popen(
            [*_WRITER, str(path), str(end), str(total)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us; we end it then.
        )
    except BaseException:
        signal.signal(signal.SIGINT, usual)
        raise
    with child:
        try:
            signal.signal(signal.SIGINT, usual)
            if waiting:
                raise KeyboardInterrupt
            yield child
        finally:
            child.kill()
            # Popen itself waits only a moment after an interrupt, and what the process
            # still has open would be removed under it.
            child.wait()


def _recover(path: Path, records: int, ack: Ack) -> int:
    """Open the store, look for what was acknowledged, write the rest.

    Returns the checksum of all that was written.
    """
    began = time.perf_counter()
    with Store(path, framing=validate) as store:
        elapsed_ms = 1000 * (time.perf_counter() - began)
        topic = store.find_topic(TOPIC)
        if topic is None:
            raise LanceError(f"topic {TOPIC} was acknowledged and is gone")
        crc = _check_acknowledged(store, topic.metadata.id, ack)
        end = store.view(topic.metadata.id).locate_end()
        _say(
            "recover",
            f"opened in {elapsed_ms:.0f} ms: {end.record:,} records are there, "
            f"the {ack.records:,} acknowledged ones among them",
        )
        for text in (
            map(str, store.findings) if store.findings else ["nothing was torn"]
        ):
            _say("", text)
        *_, last = write_records(
            store, topic.metadata.id, end.record, records, total=records, crc=crc
        )
        rate = _rate(last.records - end.record, last.end - end.offset, last.elapsed_s)
        _say("write", f"the other {last.records - end.record:,} records, {rate}")
        _commit_once(store)
        return last.crc


def _check_acknowledged(store: Store, topic: int, ack: Ack) -> int:
    """Compare what was acknowledged with what is there; give the checksum of it all."""
    crc = at = 0
    acknowledged_crc = None
    for data in _read_topic(store, topic):
        if at < ack.end <= at + len(data):
            acknowledged_crc = crc32c(data[: ack.end - at], crc)
        at, crc = at + len(data), crc32c(data, crc)
    if acknowledged_crc != ack.crc:
        raise LanceError(
            f"{ack.records} records up to offset {ack.end} were acknowledged, but the "
            f"topic ends at {at} or holds other bytes"
        )
    return crc


def _read_topic(store: Store, topic: int) -> Iterator[bytes]:
    view = store.view(topic)
    offset = view.start.offset
    while len(part := view.read(offset, _READ_BYTES)):
        yield part.read()
        offset = part.end


def _commit_once(store: Store) -> None:
    """Commit to two topics at once, and once more as after a lost answer."""
    names = ("orders", "payments")
    (payload,) = encode(make_records(0, 1000))
    stages = []
    for name in names:
        stage = store.open_stage(name, "demo", 1)
        end = store.append_stage(stage, 1, payload.data).end
        stages.append(NamedStage(stage, 1, end))
    first = store.commit_stages("demo", 1, stages)
    again = store.commit_stages("demo", 1, stages)
    found = [store.find_topic(name) for name in names]
    ends = [t and store.view(t.metadata.id).locate_end().record for t in found]
    if ends != [1000, 1000] or again.ranges != first.ranges:
        raise LanceError(f"a commit of 1000 records to two topics left {ends}")
    _say("commit", f"1,000 records to {' and '.join(names)}, all or nothing")
    _say(
        "", f"once: {first.status.value}; sent again: {again.status.value}, not doubled"
    )


def _check(path: Path) -> None:
    verified = 0

    def add(size: int) -> None:
        nonlocal verified
        verified += size

    findings = check_store(path, framing=validate, progress=add)
    if findings:
        raise LanceError(f"the checker found: {findings[0]}")
    _say("check", f"{format_bytes(verified)} verified, nothing found")


def _read_back(path: Path, records: int, crc: int) -> None:
    """Read everything as Arrow and compare it with what was written."""
    counts = np.zeros(256, np.int64)
    row = size = read_crc = 0
    seconds = 0.0
    with Store(path, framing=validate) as store:
        topic = store.find_topic(TOPIC)
        assert topic is not None, "the store was checked"
        parts = _read_topic(store, topic.metadata.id)
        began = time.perf_counter()
        for data in parts:
            batch = decode(data, columns=_COLUMNS).batch
            # Only reading is measured; what follows is the demo's own doubt.
            seconds += time.perf_counter() - began
            end = row + batch.num_rows
            if not batch.equals(make_records(row, end)):
                raise LanceError(f"records [{row}, {end}) are not what was written")
            counts += np.bincount(batch.column("type").to_numpy(), minlength=256)
            row, size = end, size + len(data)
            read_crc = crc32c(data, read_crc)
            began = time.perf_counter()
    if (row, read_crc) != (records, crc):
        raise LanceError(f"{row} records with checksum {read_crc:08x} were read back")
    _say("read", f"{row:,} records as Arrow, {_rate(row, size, seconds)}")
    names = [f"{name_type(kind)} {counts[kind]:,}" for kind in CYCLE]
    _say("", ", ".join(names[:5]))
    _say("", ", ".join(names[5:]))
    text = f"every record once, in order; checksum {crc:08x} as written"
    _say("compare", text)
