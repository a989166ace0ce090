"""Records in and out of logs by record number, for protocols that do not count bytes.

A topic with one partition is the log of its name, one with several is a *family* of
logs, `orders/0`, `orders/1` and so on. Every call goes through `Service`, and so passes
the gate. How records are stored is not known here: the broker hands in the functions
that read and write the stored format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lance_spark.broker.access import Principal
from lance_spark.broker.service import Service
from lance_spark.errors import (
    OffsetOutOfRange,
    StorageError,
    UnknownTopic,
)
from lance_spark.model import Bounds, Buffer, Partition, Retention
from lance_spark.records import Records
from lance_spark.store import Appended, Slice, Topic, View

# What the stored format adds to a record, with room to spare: type, length, time, and
# the length of a key.
_HEAD_BYTES_MAX = 16


@dataclass(frozen=True, slots=True)
class Family:
    """A topic with its partitions.

    Args:
        name: the topic's name.
        partitions: how many it has.
        logs: those that can be used, by number. A partition whose metadata is damaged
            is missing here, and the others are served.
    """

    name: str
    partitions: int
    logs: Mapping[int, Topic]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Records of a log, and the numbers that it has at that moment."""

    records: Records
    bounds: Bounds
    # When each record was appended, if that was asked for.
    append_ns: NDArray[np.uint64] | None = None


class Exchange:
    """Stores and loads `Records`; any thread may call it.

    Args:
        service: does it.
        read_records: reads stored bytes.
        write_records: writes bytes as they are stored, and tells where each record
            starts in them.
    """

    def __init__(
        self,
        service: Service,
        *,
        read_records: Callable[[Buffer], Records],
        write_records: Callable[[Records], tuple[Buffer, NDArray[np.int64]]],
    ) -> None:
        self.service = service
        self._read_records = read_records
        self._write_records = write_records

    # Topics.

    def topics(self, client: Principal) -> list[Family]:
        """List the topics that a client may see, by name."""
        families: dict[str, dict[int, Topic]] = {}
        for log in self.service.topics(client):
            partition = log.metadata.partition
            families.setdefault(partition.topic, {})[partition.number] = log
        return [_gather(name, logs) for name, logs in sorted(families.items())]

    def family(self, client: Principal, topic: str) -> Family:
        """Find one topic with its partitions.

        Raises:
            UnknownTopic: there is none.
            AccessDenied: it is not for this client.
        """
        return _gather(topic, self.service.partitions(client, topic))

    def find(self, client: Principal, topic: str, partition: int | None = 0) -> int:
        """Give the id of the log of a partition.

        Args:
            client: who asks.
            topic: the topic's name. That of a partition, such as `orders/1`, is no
                topic's.
            partition: its number. None in a protocol without partitions: then `topic`
                is the name of a log, as in LWP.

        Raises:
            UnknownTopic: there is no such topic or partition.
            PartitionedTopic: the topic has several, and the client knows of none.
            AccessDenied: it is not for this client.
        """
        if partition is None:
            names = [topic]
        elif partition or self.service.store.partitions(topic) > 1:
            names = [f"{topic}/{partition}"]
        else:
            names = [topic, f"{topic}/0"]
        for log in self.service.resolve(client, names).values():
            found = self.service.topic(client, log).metadata.partition
            if partition is None or found == Partition(topic, partition):
                return log
        if partition is None:
            self.service.check_log_name(client, topic)
        # A denial for what is there alone would tell what is there.
        self.service.gate.admit_name(client, topic)
        raise UnknownTopic(names[-1] if partition else topic)

    def create(
        self,
        client: Principal,
        topic: str,
        partitions: int = 1,
        *,
        retention: Retention | None = None,
    ) -> Family:
        """Create a topic with all of its partitions, or nothing.

        Raises:
            TopicAlreadyExists, InvalidName, AccessDenied: it can't be created.
            InvalidPartitionCount: it can't have so many partitions.
            LimitReached: there are too many topics.
        """
        logs = self.service.create_topics(client, topic, partitions, retention)
        return _gather(topic, {log.metadata.partition.number: log for log in logs})

    # Records.

    def bounds(self, client: Principal, log: int) -> Bounds:
        """Give the number of the first record that can be read, and of the next."""
        return self.service.view(client, log).records

    def stored_bytes_max(self, records: Records) -> int:
        """Tell how many bytes records take at most once they are stored."""
        parts = int(records.values.lengths.sum()) + int(records.keys.lengths.sum())
        return parts + len(records) * _HEAD_BYTES_MAX

    def store(
        self,
        client: Principal,
        log: int,
        records: Records,
        *,
        expected: int | None = None,
    ) -> Appended:
        """Append records to a log as one batch; `Service.wait_durable` is to follow.

        Args:
            client: who asks.
            log: its id.
            records: what to append.
            expected: append only if the first of them gets this number.

        Raises:
            AppendConflict: it would get another one; what is there is durable.
            RowError: the stored format can't hold one of them.
        """
        data, starts = self._write_records(records)
        return self.service.append(
            client, log, 0, data, starts=starts, expected_record=expected
        )

    def load(
        self,
        client: Principal,
        log: int,
        start: int,
        *,
        max_bytes: int,
        times: bool = False,
        hold: Callable[[Slice], None] | None = None,
        fit: Callable[[Records], Records] | None = None,
    ) -> Loaded:
        """Read records from exactly a number on; their positions are numbers.

        Args:
            client: who asks.
            log: its id.
            start: the first record; the next one to be written gives no records.
            max_bytes: the most to read of what is stored, unless one record is larger.
            times: tell when the records were appended, too.
            hold: is told what is found before it is read into memory.
            fit: keeps the first of them that fit into an answer; only these count as
                sent.

        Raises:
            OffsetOutOfRange: there is no record of that number, any more or yet; the
                details have `log_start` and `log_end`, as numbers.
            StorageError: what is stored there is not records, or damaged.
        """

        def look(view: View) -> Loaded:
            bounds = view.records
            if not bounds.start <= start <= bounds.end:
                raise OffsetOutOfRange(
                    f"Record {start} is not in the log of topic {log}, which has "
                    f"[{bounds.start}, {bounds.end})",
                    details={"log_start": bounds.start, "log_end": bounds.end},
                )
            found, records = self._read(view, log, start, max_bytes, hold)
            kept = records if fit is None else fit(records)
            size = len(found) * len(kept) // max(1, len(records))
            self.service.metrics.fetched(log, len(kept), size)
            if not times:
                return Loaded(kept, bounds)
            append_ns = view.find_append_times(found, start)[: len(kept)]
            return Loaded(kept, bounds, append_ns.astype(np.uint64))

        return self.service.look(client, log, look)

    def _read(
        self,
        view: View,
        log: int,
        start: int,
        max_bytes: int,
        hold: Callable[[Slice], None] | None,
    ) -> tuple[Slice, Records]:
        at = view.locate_record(start)
        if at.record != start:
            raise StorageError(f"log {log}: record {start} was in a part that is lost")
        # A batch that is no records may be among the first: then one record at a time.
        for size in (max_bytes, 1):
            found = view.read(at.offset, size)
            if hold is not None:
                hold(found)
                hold = None
            records = self._read_records(found.read())
            if records.fault is None and len(records) == found.records:
                return found, replace(records, base=start, positions=None, nexts=None)
        raise StorageError(f"log {log}: what is stored as record {start} is no record")

    # Consumers.

    def commit(self, client: Principal, log: int, group: str, record: int) -> None:
        """Keep the number of the record that a group reads next, durably.

        Raises:
            OffsetOutOfRange: the log does not reach so far.
            LimitReached: the group's name is empty or too long.
        """
        self.service.commit_offset(client, log, group, record)

    def committed(self, client: Principal, log: int, group: str) -> int | None:
        """Tell which record a group reads next; None if it has committed nothing."""
        return self.service.committed_offset(client, log, group)


def _gather(name: str, logs: Mapping[int, Topic]) -> Family:
    count = next(iter(logs.values())).metadata.partitions
    return Family(name, count or 1, logs)
