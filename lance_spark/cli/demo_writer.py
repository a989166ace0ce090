"""The demo's writer: appends records and tells when they are acknowledged.

As a process of its own (`python -m lance_spark.cli.demo_writer`) it is there to be
killed: it never closes its store, and stops only when its parent goes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from lance_spark.cli.demo_record import make_records
from lance_spark.columnar.encode import encode
from lance_spark.columnar.layout import validate
from lance_spark.errors import LanceError
from lance_spark.store import Appended, Store

TOPIC = "events"
_BATCH_RECORDS_MAX = 10_000
# A short run is cut into as many batches as this, so that it can be killed half-way.
_BATCHES_MIN = 40


class Ack(NamedTuple):
    """What is acknowledged: all bytes of the topic up to `end`.

    Args:
        records: how many records they are.
        end: where the last of them ends.
        crc: checksum of the bytes [0, end).
        elapsed_s: time since the writing began.
    """

    records: int
    end: int
    crc: int
    elapsed_s: float


def write_records(
    store: Store, topic: int, start: int, end: int, *, total: int, crc: int = 0
) -> Iterator[Ack]:
    """Append the records [start, end) and give each batch's acknowledgement.

    One batch is always on its way while the next one is made.

    Args:
        store: where to.
        topic: the topic's id.
        start: number of the first record.
        end: number behind the last one.
        total: how many records the demo is about.
        crc: checksum of what the topic holds already.
    """
    began = time.perf_counter()
    step = max(1, min(_BATCH_RECORDS_MAX, total // _BATCHES_MIN))
    on_its_way: tuple[Appended, int] | None = None

    def wait(batch: tuple[Appended, int]) -> Ack:
        appended, crc_then = batch
        store.wait_durable(topic, appended)
        records = appended.record + appended.records
        return Ack(records, appended.end, crc_then, time.perf_counter() - began)

    for first in range(start, end, step):
        for payload in encode(make_records(first, min(first + step, end))):
            appended = store.append(topic, payload.data, wait=False)
            crc = crc32c(payload.data, crc)
            if on_its_way is not None:
                yield wait(on_its_way)
            on_its_way = appended, crc
    if on_its_way is not None:
        yield wait(on_its_way)


def run(path: Path, end: int, total: int) -> None:
    """Write the first records of the demo, then wait for the parent's end."""
    store = Store(path, framing=validate)
    topic = store.create_topic(TOPIC).metadata.id
    for ack in write_records(store, topic, 0, end, total=total):
        print(json.dumps(ack), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    try:
        run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except BrokenPipeError:
        os._exit(1)  # The parent has gone; nobody is there to be told anything.
    except LanceError as error:
        sys.exit(f"lance-spark: {error}")
