"""What takes records: `Producer` for a topic, `StageWriter` for a stage.

A producer delivers at least once. A stage is what one task of a job has written: it
shows up in its topic when the job's driver commits it by name, number of batches and
bytes, which `finish` returns. Its batch ids are 1, 2, 3 …, and the broker stores a
repeated one only once, so that a lost acknowledgement doubles nothing.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from lance_spark.client.connection import Connection
from lance_spark.client.delivery import Delivery
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.outbox import BatchOptions, OutgoingBatch
from lance_spark.columnar.encode import encode
from lance_spark.errors import (
    LanceError,
    LocalProtocolError,
    OptionError,
    Timeout,
    Undelivered,
    Unsupported,
)
from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline
from lance_spark.quantity import check_choice, check_number
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import (
    PAYLOAD_BYTES_MAX,
    Record,
    RecordType,
    StageContent,
    check_plain_type,
    encode_record,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self, Unpack


logger = logging.getLogger(__name__)

COMPRESSIONS = ("none", "lz4")

# The types that records with a key, and with a timestamp, have to have.
_TYPES = {
    (False, False): None,
    (False, True): RecordType.TIMESTAMPED,
    (True, False): RecordType.KEY_VALUE,
    (True, True): RecordType.KEY_TIMESTAMPED,
}
_NULL_FAULT = (
    "no value, no key and no timestamp make a Null record, and a plain server must not "
    "get one: the LANCE server misreads it when it recovers from a crash and loses "
    "everything behind it. Send an empty value, or leave it out; to send it all the "
    "same, set allow_null_records=True (Spark: allowNullRecords=true)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions(BatchOptions):
    """How records are gathered and sent.

    Args:
        batch_bytes: how large a batch may get; a larger record goes alone.
        linger_s: how long a batch waits for more records.
        max_in_flight: how many batches may be sent and not acknowledged.
        buffer_bytes: how much may be pending before `send` and `write` wait.
        compression: `none` or `lz4`, which is used where it makes a batch smaller.
        record_type: the type of values that come without one, key or timestamp.
        allow_null_records: send Null records to a plain server, too. The LANCE server
            takes one for something else when it recovers from a crash, and cuts off
            everything behind it.

    Raises:
        OptionError: a value can't be used.
    """

    compression: str = "none"
    record_type: int = RecordType.RAW
    allow_null_records: bool = False

    def __post_init__(self) -> None:
        check_number("batch_bytes", self.batch_bytes, 1, PAYLOAD_BYTES_MAX)
        # With slots, `super()` without arguments means a class that is replaced.
        BatchOptions.__post_init__(self)
        check_choice("compression", self.compression, COMPRESSIONS)
        check_plain_type(self.record_type)

    @property
    def compresses(self) -> bool:
        """Whether batches are compressed where that makes them smaller."""
        return self.compression == "lz4"


class WriterKeywords(TypedDict, total=False):
    """The fields of `WriterOptions`, as keywords."""

    batch_bytes: int
    linger_s: float
    max_in_flight: int
    buffer_bytes: int
    compression: str
    record_type: int
    allow_null_records: bool


@dataclass(slots=True, eq=False)
class ServerRules:
    """What depends on the kind of server that a writer's batches go to.

    Args:
        client: has the connection.
        options: what the user wants.
        check: called with each new connection.
    """

    client: LanceClient
    options: WriterOptions
    check: Callable[[Connection], None] | None
    # Of the server that was reached last; None before the first.
    _is_plain: bool | None = None

    def check_connection(self, connection: Connection) -> None:
        is_plain = not connection.capabilities
        if self.options.compresses and is_plain:
            # It would store the compressed bytes as if they were records.
            raise Unsupported("compression", None, str(connection.address))
        if self.check is not None:
            self.check(connection)
        self._is_plain = is_plain

    def prepare(self, connection: Connection, batch: OutgoingBatch) -> None:
        """Compress a batch, and stop one that the server must not get."""
        if batch.has_nulls and self.find_null_fault() is not None:
            # The batch was taken while another server was there.
            raise LanceError(f"{connection.address} is a plain server: {_NULL_FAULT}")
        if self.options.compresses and batch.compressed is None:
            block = wire.compress(batch.payload)
            batch.compressed = len(block) < batch.size
            if batch.compressed:
                batch.payload = block

    def find_null_fault(self) -> str | None:
        """Say why Null records can't be taken; None if they can.

        Raises:
            LanceError: no server can be reached that would tell.
        """
        if self.options.allow_null_records:
            return None
        if self._is_plain is None:
            self._is_plain = self.client.is_plain
        return _NULL_FAULT if self._is_plain else None


class Writer:
    """Takes records one by one or as columns; any number of threads may.

    Args:
        client: says how to reach the server; it stays open.
        topic: the topic's name or id, for texts.
        target: where the batches go: the id of a topic or stage.
        options: how records are gathered.
        check: called with each new connection; an error that it raises ends the writer.
        resolve: finds the topic's id again after the server has lost it.
        strict: a refused batch is the end of all that follow it.
    """

    def __init__(
        self,
        client: LanceClient,
        topic: int | str,
        target: int,
        options: WriterOptions,
        *,
        check: Callable[[Connection], None] | None,
        resolve: Callable[[], int] | None = None,
        strict: bool = False,
    ) -> None:
        self.topic = topic
        # Batches of a topic are told apart by their numbers on a connection, which
        # must be new; a stage knows its own batches.
        self._lender = client if strict else None
        self._client = client = client.borrow() if strict else client.dedicated()
        self._rules = ServerRules(client, options, check)
        self._delivery = Delivery(
            client.link,
            topic,
            target,
            options=options,
            resolve=resolve,
            strict=strict,
            check=self._rules.check_connection,
            prepare=self._rules.prepare,
        )
        self._ledger = self._delivery.ledger
        self._options = options
        self._block_timeout_s = client.config.retry_timeout_s
        self._is_closed = False
        # Closed, and everything that was ever taken is acknowledged.
        self._is_delivered = False
        # The thread does not know this object, so that one that is dropped can go.
        self._dropped = weakref.finalize(self, _release, self._delivery)
        self._dropped.atexit = False

    # Records in.

    def send(
        self,
        value: Buffer | str | None,
        *,
        key: Buffer | str | None = None,
        timestamp_ns: int | None = None,
        type: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Take one record; it is acknowledged when `flush` says so.

        Args:
            value: None makes a Null record, which a plain server must not get.
            key: makes the record keyed.
            timestamp_ns: makes the record timed.
            type: of a value without key and timestamp, if not the default.
            timeout_s: how long to wait for room in the buffer.

        Raises:
            LocalProtocolError: LWP has no such record, it is too large, or it is a
                Null record and the server a plain one.
            OptionError: value or key is neither text nor bytes.
            Timeout: the buffer stayed full.
            Undelivered: records that were taken before can't be delivered.
        """
        default = self._options.record_type
        chosen = _choose_type(value, key, timestamp_ns, given=type, default=default)
        if value is None and (fault := self._rules.find_null_fault()) is not None:
            raise LocalProtocolError(fault)
        record = Record(
            chosen,
            b"" if value is None else _to_bytes(value, "value"),
            None if key is None else _to_bytes(key, "key"),
            timestamp_ns,
        )
        data, deadline = encode_record(record), self._deadline(timeout_s)
        self._ledger.add(data, 1, deadline, has_nulls=value is None)

    def write(
        self, columns: pa.Table | pa.RecordBatch, *, timeout_s: float | None = None
    ) -> None:
        """Take the rows of Arrow columns, the fast way for many records.

        All rows are checked before the first is taken.

        Args:
            columns: `value`, and where wanted `key`, `timestamp` or `timestamp_ns`,
                and `type`.
            timeout_s: how long to wait for room in the buffer each time it is full.

        Raises:
            RowError: a row can't be a record, or is a Null record and the server a
                plain one; nothing was taken.
            OptionError: the columns can't be used; nothing was taken.
            Timeout: the buffer stayed full; the text says how many rows were taken.
            Undelivered: records that were taken before can't be delivered.
        """
        if not hasattr(columns, "schema"):
            kind = columns.__class__.__name__
            raise OptionError(f"columns of type {kind}: give an Arrow table or batch")
        payloads = encode(
            columns,
            record_type=self._options.record_type,
            payload_bytes_max=self._options.batch_bytes,
            find_null_fault=self._rules.find_null_fault,
        )
        taken = 0
        for payload in payloads:
            try:
                self._ledger.add(
                    payload.data,
                    payload.records,
                    self._deadline(timeout_s),
                    has_nulls=payload.has_nulls,
                )
            except Timeout as error:
                rows = columns.num_rows
                raise Timeout(f"{error} ({taken} of {rows} rows were taken)") from None
            taken += payload.records

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline.after(self._block_timeout_s if timeout_s is None else timeout_s)

    # Acknowledgements.

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was taken is acknowledged.

        Args:
            timeout_s: how long to wait; without it until `retry_timeout_s` has passed
                without any acknowledgement.

        Raises:
            Undelivered: naming the batches that are not acknowledged, and why.
        """
        self._ledger.flush(None if timeout_s is None else Deadline.after(timeout_s))

    def close(self, *, abandon: bool = False, timeout_s: float | None = None) -> None:
        """Flush and give everything back; may be called again.

        No more records are taken from the beginning of the call on. Several threads
        may close: each waits for the end, and one that abandons ends it for all.

        Args:
            abandon: do not flush; what is not acknowledged yet may get stored or not.
            timeout_s: how long to flush.

        Raises:
            Undelivered: as `flush` does, after everything was given back.
        """
        if self._is_closed:
            return
        # First: no flush would cover what `send` takes from here on.
        self._ledger.close()
        is_flushed = False
        try:
            if not abandon:
                self.flush(timeout_s)
                is_flushed = self._is_delivered = True
        finally:
            lender = self._lender
            # An answer to a batch that was sent twice may still come: it would be
            # taken for one to a batch of the next writer.
            is_quiet = is_flushed and not (self.retried_batches or self.refused_records)
            keep = lender is not None and is_quiet
            self._delivery.stop(abandon=not is_flushed, keep_link=keep)
            if keep and lender is not None and not self._is_closed:
                lender.give_back(self._client)
            self._is_closed = True
            self._dropped.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
            return
        pending = self.pending_records
        if pending and not self._is_closed:
            logger.warning("%s: %d records are abandoned", self, pending)
        self.close(abandon=True)

    # Numbers.

    @property
    def pending_records(self) -> int:
        """How many records were taken and have no answer."""
        return self._ledger.outbox.pending_records

    @property
    def pending_bytes(self) -> int:
        """How many bytes they are."""
        return self._ledger.outbox.pending_bytes

    @property
    def acked_records(self) -> int:
        """How many records were acknowledged."""
        return self._ledger.outbox.acked.records

    @property
    def acked_bytes(self) -> int:
        """How many bytes they are, uncompressed."""
        return self._ledger.outbox.acked.bytes

    @property
    def acked_batches(self) -> int:
        """In how many batches they were."""
        return self._ledger.outbox.acked.batches

    @property
    def refused_records(self) -> int:
        """How many records the server would not take."""
        return self._ledger.outbox.refused.records

    @property
    def retried_batches(self) -> int:
        """How often a batch had to be sent again."""
        return self._ledger.outbox.retried.batches


class Producer(Writer):
    """Sends records to a topic and keeps them until they are acknowledged.

    Records keep their order, unless the server refuses a batch for now: it is sent
    again and comes after those behind it that were in flight. `max_in_flight=1` keeps
    the order even then. After a lost connection those that have no answer are sent
    again, so that some may be stored twice. A batch that the server refuses for good is
    dropped, and those behind it go on; each thread is told by its next `send`, `write`,
    `flush` or `close`.

    It has a connection and a thread of its own; any number of threads may use it. One
    that is dropped without `close` delivers what it has, and reports no failure.

    Args:
        client: says how to reach the server; it stays open.
        topic: name, or id.
        create_topic: create the topic if it is not there.
        check: called with each new connection; an error that it raises ends the writer.

    The other arguments are those of `WriterOptions`.

    Raises:
        TopicNotFound: there is no such topic.
        Unsupported: the server can't store what is compressed.
        OptionError: an option can't be used.
    """

    def __init__(
        self,
        client: LanceClient,
        topic: int | str,
        *,
        create_topic: bool = False,
        check: Callable[[Connection], None] | None = None,
        **options: Unpack[WriterKeywords],
    ) -> None:
        chosen = choose_options(client, options)

        def resolve() -> int:
            """Find the topic; also again, when it was created anew meanwhile."""
            if isinstance(topic, int):
                return topic
            client.forget(topic)
            if create_topic:
                return client.ensure_topic(topic).id
            return client.topic_id(topic)

        super().__init__(
            client,
            topic,
            resolve(),
            chosen,
            check=check,
            resolve=None if isinstance(topic, int) else resolve,
        )

    def __repr__(self) -> str:
        return f"<Producer to {self.topic!r}>"


class TopicWriter(Producer):
    """Writes to a topic, for drivers."""

    def finish(self) -> None:
        """Flush and close."""
        self.close()


class StageWriter(Writer):
    """Writes a stage of its own for a topic that need not exist yet.

    A refused batch is the end of the stage: all that follow it are undelivered too.

    Args:
        client: says how to reach the server; it stays open.
        topic_name: where the commit will put the records.
        writer_id: the job's.
        sequence: the job's.
        check: called with each new connection; an error that it raises ends the writer.

    The other arguments are those of `WriterOptions`.

    Raises:
        Unsupported: the server has no stages.
        OptionError: an option can't be used.
    """

    def __init__(
        self,
        client: LanceClient,
        topic_name: str,
        writer_id: str,
        sequence: int,
        *,
        check: Callable[[Connection], None] | None = None,
        **options: Unpack[WriterKeywords],
    ) -> None:
        chosen = choose_options(client, options)
        self.stage_id = client.open_stage(topic_name, writer_id, sequence)
        super().__init__(
            client, topic_name, self.stage_id, chosen, check=check, strict=True
        )

    def finish(self, timeout_s: float | None = None) -> StageContent:
        """Flush, close, and say what the stage holds, for the commit.

        Args:
            timeout_s: how long to flush.

        Raises:
            Undelivered: not everything was acknowledged; the stage can't be committed.
        """
        self.close(timeout_s=timeout_s)
        if not self._is_delivered:
            raise Undelivered(
                self.topic,
                (),
                self.pending_records,
                self.pending_bytes,
                LanceError("the stage was closed before everything was acknowledged"),
            )
        return StageContent(self.stage_id, self.acked_batches, self.acked_bytes)

    def __repr__(self) -> str:
        return f"<StageWriter of stage 0x{self.stage_id:X} for {self.topic!r}>"


def choose_options(client: LanceClient, options: WriterKeywords) -> WriterOptions:
    """Check the options, and that the server can do what they ask for.

    Raises:
        OptionError: an option can't be used.
        Unsupported: a plain server would store the compressed bytes as records.
    """
    chosen = WriterOptions(**options)
    if chosen.compresses and client.is_plain:
        raise Unsupported("compression", None, client.config.servers)
    return chosen


def _release(delivery: Delivery) -> None:
    """Clean up after a writer that was dropped without `close`."""
    delivery.release()
    text = f"topic {delivery.ledger.topic!r}: a producer was dropped without close()"
    warnings.warn(text, ResourceWarning, stacklevel=2)


def _to_bytes(data: Buffer | str, what: str) -> Buffer:
    """Take text and anything that has bytes; a number would become so many zeros."""
    if isinstance(data, str):
        return data.encode()
    try:
        return memoryview(data).cast("B")
    except (TypeError, ValueError):
        kind = data.__class__.__name__
        raise OptionError(
            f"a {what} of type {kind}: give text or bytes; for others say how they "
            "become bytes, as json.dumps does"
        ) from None


def _choose_type(
    value: Buffer | str | None,
    key: Buffer | str | None,
    timestamp_ns: int | None,
    *,
    given: int | None,
    default: int,
) -> int:
    """Choose the type of a record as `columnar.rows` does for columns."""
    needed = _TYPES[key is not None, timestamp_ns is not None]
    if value is None and needed is not None:
        raise LocalProtocolError(
            "a key or timestamp but no value: LWP has no such tombstone; "
            "send an empty value"
        )
    if value is None:
        needed = RecordType.NULL
    if needed is None:
        if given is not None:
            check_plain_type(given)
        return default if given is None else given
    if given not in (None, needed):
        raise LocalProtocolError(
            f"type {given} contradicts key, timestamp and value, which need "
            f"{int(needed)}: leave it out to let them choose"
        )
    return needed
