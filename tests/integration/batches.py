"""Batches of any protocol that counts records: who writes and reads them, the model.

All batches have the same number of rows, and each row says whose it is and which. So a
log can be told to be made of whole batches, and it can be told which of them are there
twice. `protocol` has the table of protocols.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lance_spark.client import LogClient, connect
from lance_spark.client.config import Runtime
from lance_spark.client.driver import WriterSettings
from lance_spark.client.fluvio import driver as fluvio
from lance_spark.model import Partition
from lance_spark.net.address import Address, parse_address
from lance_spark.net.connect import connect as dial_address
from lance_spark.net.stream import Stream
from lance_spark.testing.relay import Relay
from tests.integration.kit import QUICK, Worker, first_occurrences

ROWS = 5
_VALUE_BYTES = 34
# What a writer counts for a row beside its value.
_ROW_BYTES = 16
# Several batches are under way where the protocol allows it.
SETTINGS = WriterSettings(
    batch_bytes=ROWS * (_VALUE_BYTES + _ROW_BYTES),
    linger_s=0.0,
    max_in_flight=4,
    buffer_bytes=1 << 20,
    compression="none",
    record_type=1,
    allow_null_records=False,
    partitions=1,
    sole_writer=False,
)
Place = tuple[int, bytes]


def open_client(protocol: str, address: str, **options: Any) -> LogClient:
    """Make a client that does not wait long between tries."""
    return connect(f"{protocol}://{address}", **{**QUICK, **options})


def open_through(
    protocol: str, address: str, relay: Relay, **options: Any
) -> LogClient:
    """Make such a client for which a relay stands where its target does.

    Fluvio's clients are told by the server where the records are, so that they can't be
    given another address.
    """
    if address == relay.target:
        return open_client(protocol, relay.address, **options)
    aside = {relay.target: parse_address(relay.address)}

    def dial(to: Address, **more: Any) -> Stream:
        return dial_address(aside.get(str(to), to), **more)

    config = fluvio.Config(servers=address, **{**QUICK, **options})
    return LogClient(fluvio.FluvioDriver(config, Runtime(connect=dial)))


def make_rows(writer: str, batch: int, count: int = 1) -> list[bytes]:
    """Make the rows of some batches."""
    numbers = range(ROWS * batch, ROWS * (batch + count))
    digits = _VALUE_BYTES - len(writer) - 1
    return [f"{writer} {number:0{digits}d}".encode() for number in numbers]


def has_partitions(client: LogClient) -> bool:
    """Tell whether topics may have several."""
    return "partition" in client.driver.traits.columns


def make_logs(client: LogClient, topic: str, count: int) -> list[Partition]:
    """Create a topic of so many partitions, or so many topics of one each.

    The first has a batch already.
    """
    driver: Any = client.driver
    if has_partitions(client):
        driver.create_topic(topic, count)
        logs = [Partition(topic, number) for number in range(count)]
    else:
        logs = [Partition(f"{topic}-{number}", 0) for number in range(count)]
        for log in logs:
            driver.create_topic(log.topic)
    client.append(logs[0].topic, make_rows("before", 0), 0)
    return logs


def read_places(client: LogClient, at: Partition, **more: Any) -> list[Place]:
    """Read positions and values of a partition."""
    more = {"fetch_bytes": 1000, **more}
    return list(_places(client.read(at.topic, at.number, **more)))


def _places(batches: Iterator[pa.RecordBatch]) -> Iterator[Place]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("offset", "value"))
        yield from zip(*columns, strict=True)


def check_whole(places: Sequence[Place], first: int) -> dict[str, list[int]]:
    """Check that a log has whole batches without a gap; give them by writer."""
    assert [at for at, _ in places] == list(range(first, first + len(places)))
    assert len(places) % ROWS == 0, "a batch is torn"
    found: dict[str, list[int]] = defaultdict(list)
    for start in range(0, len(places), ROWS):
        rows = [value for _, value in places[start : start + ROWS]]
        writer, number = rows[0].decode().rsplit(" ", 1)
        batch = int(number) // ROWS
        assert rows == make_rows(writer, batch), f"torn at {start}"
        found[writer].append(batch)
    return found


class BatchWriter(Worker):
    """Appends batches, one or several at a time, and counts the acknowledged ones.

    Args:
        client: closed at its end.
        at: where to.
        name: its own, which its rows have.
        sole: no other writer is there.
    """

    acked = 0

    def __init__(
        self, client: LogClient, at: Partition, name: str, *, sole: bool = False
    ) -> None:
        super().__init__(name)
        self.at = at
        self.is_sole = sole
        self._client = self._stack.enter_context(client)
        self._several = replace(SETTINGS, sole_writer=sole)

    def _begin(self) -> None:
        pass

    def _step(self) -> None:
        self.append(1 if self.steps % 3 else 6)

    def append(self, count: int) -> None:
        """Append so many batches."""
        rows, to = make_rows(self.name, self.acked, count), self.at
        if count == 1:
            self._client.append(to.topic, rows, to.number, sole_writer=self.is_sole)
        else:
            writer = self._client.driver.open_writer(
                to,
                options=self._several,
                create_topic=False,
                check=lambda server: None,
            )
            writer.write(pa.table({"value": rows}))
            writer.finish()
        self.acked += count

    def check(self, batches: list[int], *, is_once: bool) -> int:
        """Compare with its batches in a log; give how many are there twice."""
        expected = list(range(self.acked))
        found = batches if is_once else first_occurrences(batches)
        assert found == expected, self.name
        return len(batches) - len(expected)


class Follower(Worker):
    """Follows a partition from its first record on, and keeps what it has seen."""

    def __init__(self, client: LogClient, at: Partition, name: str) -> None:
        super().__init__(name)
        self.at = at
        self.seen: list[Place] = []
        self._client = self._stack.enter_context(client)

    def _begin(self) -> None:
        self._next = self._client.driver.traits.first_position
        self._batches = self._follow()

    def _follow(self) -> Iterator[pa.RecordBatch]:
        at, start = self.at, self._next
        return self._client.follow(
            at.topic, at.number, start, timeout_s=0.05, fetch_bytes=700
        )

    def _step(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = self._follow()
            return
        self.seen += _places(iter([batch]))
        self._next = self.seen[-1][0] + 1

    def _end(self) -> None:
        self._batches.close()  # type: ignore[attr-defined]
        self.seen += read_places(self._client, self.at, start=self._next)


class Reader(Worker):
    """Reads the last rows of a partition again and again, and keeps them."""

    def __init__(self, client: LogClient, at: Partition, name: str) -> None:
        super().__init__(name)
        self.at = at
        self.seen: dict[int, bytes] = {}
        self._client = self._stack.enter_context(client)

    def _begin(self) -> None:
        pass

    def _step(self) -> None:
        bounds = self._client.bounds(self.at.topic)[self.at.number]
        start = max(bounds.start, bounds.end - 100)
        found = read_places(self._client, self.at, start=start, end=bounds.end)
        assert [at for at, _ in found] == list(range(start, bounds.end)), "a gap"
        for at, value in found:
            assert self.seen.setdefault(at, value) == value, "a log has changed"
