"""The stage writer: records to a stage, each batch stored exactly once.

A stage is what one task of a job has written. It shows up in its topic when the job's
driver commits it by name, number of batches and bytes, which `finish` returns. Batch
ids are 1, 2, 3 …, and the broker stores a repeated one only once, so that a lost
acknowledgement doubles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lance_spark.client.delivery import Delivery
from lance_spark.client.producer import check_compression
from lance_spark.client.writer import Writer, WriterOptions
from lance_spark.errors import LanceError, Undelivered
from lance_spark.model import RecordType
from lance_spark.wire.lwp import StageContent

if TYPE_CHECKING:
    from lance_spark.client.client import LanceClient
    from lance_spark.client.connection import Connection


class StageWriter(Writer):
    """Writes a stage of its own for a topic that need not exist yet.

    A refused batch is the end of the stage: all that follow it are undelivered too.

    Args:
        client: says how to reach the server; it stays open.
        topic_name: where the commit will put the records.
        writer_id: the job's.
        sequence: the job's.
        check: called with each new connection; what it raises is the end.

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
        batch_bytes: int = 1024 * 1024,
        linger_s: float = 0.005,
        max_in_flight: int = 8,
        buffer_bytes: int = 32 * 1024 * 1024,
        compression: str = "none",
        record_type: int = RecordType.RAW,
        check: Callable[[Connection], None] | None = None,
    ) -> None:
        options = WriterOptions(
            batch_bytes=batch_bytes,
            linger_s=linger_s,
            max_in_flight=max_in_flight,
            buffer_bytes=buffer_bytes,
            compression=compression,
            record_type=record_type,
        )
        check_compression(client, options)
        self.topic = topic_name
        self.stage_id = client.open_stage(topic_name, writer_id, sequence)
        delivery = Delivery(
            client.dedicated(),
            topic_name,
            self.stage_id,
            options=options,
            strict=True,
            check=check,
        )
        super().__init__(delivery, options, client.config.retry_timeout_s)

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
