"""What producers and stage writers share: records and columns in, batches out."""

from __future__ import annotations

import logging
import warnings
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from lance_spark.client.delivery import Delivery
from lance_spark.columnar.encode import encode
from lance_spark.columnar.rows import check_plain_type
from lance_spark.errors import LocalProtocolError, OptionError, Timeout
from lance_spark.model import Buffer, RecordType
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import PAYLOAD_BYTES_MAX, Record, encode_record

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

logger = logging.getLogger(__name__)

COMPRESSIONS = ("none", "lz4")
# More would only hide a server that does not answer.
IN_FLIGHT_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
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

    batch_bytes: int = 1024 * 1024
    linger_s: float = 0.005
    max_in_flight: int = 8
    buffer_bytes: int = 32 * 1024 * 1024
    compression: str = "none"
    record_type: int = RecordType.RAW
    allow_null_records: bool = False

    def __post_init__(self) -> None:
        _check_range("batch_bytes", self.batch_bytes, 1, PAYLOAD_BYTES_MAX)
        _check_range("max_in_flight", self.max_in_flight, 1, IN_FLIGHT_MAX)
        _check_range("linger_s", self.linger_s, 0, 3600)
        _check_range("buffer_bytes", self.buffer_bytes, self.batch_bytes, 2**63 - 1)
        if self.compression not in COMPRESSIONS:
            raise OptionError(
                f"compression {self.compression!r} is unknown; "
                f"use {' or '.join(COMPRESSIONS)}"
            )
        check_plain_type(self.record_type)

    @property
    def compresses(self) -> bool:
        """Whether batches are compressed where that makes them smaller."""
        return self.compression == "lz4"


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise OptionError(f"{name} {value} can't be used: give {least} to {most}")


class Writer:
    """Takes records one by one or as columns; any number of threads may.

    Args:
        delivery: gets the batches acknowledged, and is stopped with this.
        options: how records are gathered.
        block_timeout_s: how long `send` and `write` wait for room by default.
    """

    def __init__(
        self, delivery: Delivery, options: WriterOptions, block_timeout_s: float
    ) -> None:
        self._delivery = delivery
        self._ledger = delivery.ledger
        self._options = options
        self._block_timeout_s = block_timeout_s
        self._is_closed = False
        # Closed, and everything that was ever taken is acknowledged.
        self._is_delivered = False
        # The thread does not know this object, so that one that is dropped can go.
        self._dropped = weakref.finalize(self, _release, delivery)
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
        if value is None and (fault := self._delivery.find_null_fault()) is not None:
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
            find_null_fault=self._delivery.find_null_fault,
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
        # First: what `send` takes during the flush would belong to nobody.
        self._ledger.close()
        is_flushed = False
        try:
            if not abandon:
                self.flush(timeout_s)
                is_flushed = self._is_delivered = True
        finally:
            self._delivery.stop(abandon=not is_flushed)
            self._is_closed = True
            self._dropped.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    if value is None:
        if key is not None or timestamp_ns is not None:
            raise LocalProtocolError(
                "a key or timestamp but no value: LWP has no such tombstone; "
                "send an empty value"
            )
        needed = RecordType.NULL
    elif key is not None and timestamp_ns is not None:
        needed = RecordType.KEY_TIMESTAMPED
    elif key is not None:
        needed = RecordType.KEY_VALUE
    elif timestamp_ns is not None:
        needed = RecordType.TIMESTAMPED
    elif given is None:
        return default
    else:
        check_plain_type(given)
        return given
    if given not in (None, needed):
        raise LocalProtocolError(
            f"type {given} contradicts key, timestamp and value, which need "
            f"{int(needed)}: leave it out to let them choose"
        )
    return needed
