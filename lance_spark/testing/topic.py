"""A topic as tests use one: filled with rows, read back, compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.client import Capability, Producer, RecordReader
from lance_spark.columnar.decode import decode, make_schema
from lance_spark.errors import TopicNotFound
from lance_spark.net.deadline import Deadline
from lance_spark.testing.rows import Comparison, list_fields, to_table, to_tuples

if TYPE_CHECKING:
    from lance_spark.testing.scratch import ScratchBroker

_COLUMNS = ("offset", "type", "key", "value", "timestamp_ns")
_TIME = pa.timestamp("ns", tz="UTC")
# Python's own times have no nanoseconds.
_PYTHON_TIME = pa.timestamp("us", tz="UTC")
# A wait on the broker is cut into pieces, as one that is killed does not answer.
_WAIT_S = 1.0
# How often a server is asked that can't tell when there is more.
_LOOK_S = 0.05


class ScratchTopic:
    """A topic of a `ScratchBroker`, which need not be there yet.

    Its calls go straight to the broker and meet no faults of the network.

    Args:
        broker: where the topic is.
        name: its name.
    """

    def __init__(self, broker: ScratchBroker, name: str) -> None:
        self.name = name
        self._broker = broker

    @property
    def options(self) -> dict[str, str]:
        """What a Spark reader or writer needs: `.options(**topic.options)`."""
        return {**self._broker.options, "topic": self.name}

    @property
    def exists(self) -> bool:
        """Whether there is such a topic."""
        try:
            self._broker.client.forget(self.name)
            self._broker.client.topic(self.name)
        except TopicNotFound:
            return False
        return True

    def create(self) -> ScratchTopic:
        """Create the topic if it is not there, and return it."""
        self._broker.client.ensure_topic(self.name)
        return self

    def fill(self, rows: Any) -> int:
        """Append rows, acknowledged when this returns; tell how many they are.

        The topic is created if it is not there.

        Args:
            rows: texts, bytes, None for a Null record, or dicts with `value` and
                perhaps `key`, `timestamp` or `timestamp_ns`, and `type`; an Arrow
                table or batch; a DataFrame of Spark or pandas.

        Raises:
            OptionError: they can't be the rows of a write.
            RowError: one of them can't be a record; nothing was appended.
        """
        table = to_table(rows)
        client = self._broker.client
        # A broker for tests gets over Null records, also one that plays a plain server.
        with Producer(
            client, self.name, create_topic=True, allow_null_records=True
        ) as producer:
            producer.write(table)
        return int(table.num_rows)

    # What it holds.

    def table(self) -> pa.Table:
        """Read all records as Arrow columns; none if there is no such topic.

        The columns are `offset`, `type`, `key`, `value` and `timestamp`, which has
        nanoseconds.
        """
        return self._read()[0]

    def _read(self) -> tuple[pa.Table, int | None]:
        """Read all records; tell where they end, None if there is no such topic."""
        client, schema = self._broker.client, make_schema(_COLUMNS)
        # Deleted and created anew, it has another number.
        client.forget(self.name)
        try:
            bounds = client.bounds(self.name)
        except TopicNotFound:
            return _set_time(schema.empty_table(), _TIME), None
        reader = RecordReader(client, self.name, bounds.start or 0, end=bounds.end)
        batches = []
        while (chunk := reader.next_chunk()) is not None:
            decoded = decode(
                chunk.data, base_offset=chunk.start, columns=_COLUMNS, found=chunk.found
            )
            batches.append(decoded.batch)
        return _set_time(pa.Table.from_batches(batches, schema), _TIME), bounds.end

    def rows(self) -> list[dict[str, Any]]:
        """Read all records as dicts with `offset`, `key`, `value` and `timestamp`."""
        table = _set_time(self.table().drop_columns(["type"]), _PYTHON_TIME)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def values(self, decode: Callable[[bytes], Any] | None = None) -> list[Any]:
        """Read the values of all records.

        Args:
            decode: what is made of each, as `json.loads` or `bytes.decode` do; a Null
                record stays None.
        """
        values: list[Any] = self.table()["value"].to_pylist()
        if decode is None:
            return values
        return [None if value is None else decode(value) for value in values]

    def assert_holds(
        self, rows: Any, *, ordered: bool = False, within_s: float = 0.0
    ) -> None:
        """Check that the topic holds these rows, each as often, and no others.

        Rows that only have a value are compared by it. A field that any of them has is
        compared for all of them, and those that do not have it should have none.

        Args:
            rows: what `fill` takes.
            ordered: whether they have to come in this order. Spark keeps the order of
                a partition and not that between partitions.
            within_s: how long to wait for rows that are missing.

        Raises:
            AssertionError: saying what is missing, too much, doubled or out of order,
                and where.
        """
        __tracebackhide__ = True
        table = to_table(rows)
        fields = list_fields(table)
        expected = to_tuples(table, fields)
        deadline = Deadline.after(within_s)
        while True:
            found, end = self._read()
            held = to_tuples(found, fields)
            result = Comparison(expected, held, fields=fields, ordered=ordered)
            if result.is_equal:
                return
            # More rows mend nothing where there are too many.
            if not result.missing or result.surplus or deadline.expired:
                break
            self._await_more(end, deadline)
        text = result.describe(self.name, found["offset"].to_pylist())
        if end is None:
            text += "\n  there is no such topic"
        raise AssertionError(text)

    def _await_more(self, end: int | None, deadline: Deadline) -> None:
        """Wait until there are records behind an offset, or for a moment."""
        client = self._broker.client
        wait_s = min(deadline.remaining(), _WAIT_S)
        if end is None or not client.supports(Capability.FETCH_FLAGS):
            time.sleep(min(wait_s, _LOOK_S))
            return
        # The next read reports a topic that is deleted meanwhile.
        with suppress(TopicNotFound):
            client.fetch(self.name, end, 1, wait_s=wait_s)

    def __repr__(self) -> str:
        return f"<ScratchTopic {self.name!r} of {self._broker.address}>"


def _set_time(table: pa.Table, kind: pa.DataType) -> pa.Table:
    """Make the last column, which has times or their numbers, one of these times."""
    at = table.num_columns - 1
    return table.set_column(at, "timestamp", table[at].cast(kind, safe=False))
