"""The producer: records that differ, sent as long as the query keeps up."""

from __future__ import annotations

import random
import threading

from lance_spark.client import Producer
from lance_spark.wire.lwp import Record, RecordType
from tests.integration.kit import PATIENCE_S, make_client

BURST_RECORDS = 100
VALUE_BYTES_MAX = 1000

_OPTIONS = {"backoff_max_s": 0.05, "connect_timeout_s": 20.0}


def make_record(number: int) -> Record:
    """Make the record of a number: with and without key and time, of any size."""
    rng = random.Random(number)
    value = b"%012d" % number + rng.randbytes(rng.randrange(VALUE_BYTES_MAX))
    key = b"key %d" % (number % 97) if number % 3 else None
    # Rows have microseconds.
    time_ns = 1_700_000_000_000_000_000 + number * 1000 if number % 2 else None
    if key is None:
        kind = RecordType.RAW if time_ns is None else RecordType.TIMESTAMPED
    else:
        kind = RecordType.KEY_VALUE if time_ns is None else RecordType.KEY_TIMESTAMPED
    return Record(kind, value, key, time_ns)


def read_number(record: Record) -> int:
    """Say which record it is."""
    return int(bytes(record.value[:12]))


class Feed:
    """Sends records to a topic, in a thread, over restarts of the broker.

    A burst that had no answer is sent again, so that the topic may have it twice.

    Args:
        servers: where the topic is.
        topic: its name; it is there.
        ahead: how many records it is ahead of the output at most.
    """

    def __init__(self, servers: str, topic: str, ahead: int) -> None:
        self._ahead = ahead
        self.acked = 0
        # How many records came out, as far as somebody has told.
        self.output = 0
        self._client = make_client(servers, **_OPTIONS)
        self._topic = topic
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._client, Producer(self._client, self._topic) as producer:
                while not self._stop.is_set():
                    if self.acked - self.output > self._ahead:
                        self._stop.wait(0.01)
                    else:
                        self._send(producer)
        except Exception as error:
            self._failure = error

    def _send(self, producer: Producer) -> None:
        for number in range(self.acked, self.acked + BURST_RECORDS):
            record = make_record(number)
            producer.send(
                record.value, key=record.key, timestamp_ns=record.timestamp_ns
            )
        producer.flush(PATIENCE_S)
        self.acked += BURST_RECORDS

    def check(self) -> None:
        """Check that it goes on."""
        if self._failure is not None:
            raise AssertionError("the producer has failed") from self._failure

    def finish(self) -> None:
        """Let it end what it has begun."""
        self.abandon()
        assert not self._thread.is_alive(), "the producer hangs"
        self.check()

    def abandon(self) -> None:
        """End it, whatever has happened."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
