"""The process that the crash campaign kills: appends and commits until it is killed.

usage: python -m tests.store.crash_child DATA_DIR FSYNC ROUND

After each acknowledgement it writes a line to standard output: what was acknowledged.
Whoever reads the lines knows what must be there, whatever happens next.
"""

from __future__ import annotations

import os
import sys
import threading

from lance_spark.store import Fsync, NamedStage, Store, StoreConfig
from lance_spark.wire.lwp import scan
from tests.store.kit import record

BATCHES_MAX = 400


def say(*words: object) -> None:
    # One write of a short line to a pipe is atomic: lines of threads don't mix.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def append_many(store: Store, topic: int, writer: str) -> None:
    """Append batches of one to five records, and say each that is durable.

    Not for ever after all: without syncs this would be all that the test reads.
    """
    number = 0
    for batch in range(BATCHES_MAX):
        count = 1 + batch % 5
        records = [f"{writer} {number + n}".encode() for n in range(count)]
        store.append(topic, b"".join(map(record, records)))
        number += count
        say("append", writer, number)


def commit_for_ever(store: Store, writer: str) -> None:
    """Commit to two topics at once, small and large stages, with losers beside."""
    sequence = 0
    while True:
        sequence += 1
        named = []
        for topic in ("left", "right"):
            loser = store.open_stage(topic, writer, sequence)
            store.append_stage(loser, 1, record(b"loser"))
            stage = store.open_stage(topic, writer, sequence)
            size = 0
            for batch in (1, 2):
                data = b"".join(
                    record(f"{writer} {sequence} {batch} {n}".encode().ljust(60))
                    for n in range(1 + 40 * (sequence % 3))
                )
                store.append_stage(stage, batch, data)
                store.append_stage(stage, batch, data)
                size += len(data)
            named.append(NamedStage(stage, 2, size))
        store.commit_stages(writer, sequence, named)
        say("commit", writer, sequence)


def main(path: str, fsync: str, round_: str) -> None:
    config = StoreConfig(
        fsync=Fsync(fsync),
        segment_bytes=20_000,
        stage_adopt_bytes=4000,
        index_stride_bytes=64,
        open_segments_max=8,
    )
    store = Store(path, framing=scan, config=config)
    topics = [
        (store.find_topic(name) or store.create_topic(name)).metadata.id
        for name in ("one", "two")
    ]
    say("open")
    for number, topic in enumerate([topics[0], topics[0], topics[1]]):
        writer = f"a{number}-{round_}"
        args = (store, topic, writer)
        threading.Thread(target=append_many, args=args, daemon=True).start()
    commit_for_ever(store, f"c-{round_}")


if __name__ == "__main__":
    main(*sys.argv[1:])
