"""What a write job does: rows in each task, then one commit on the driver.

With stages nothing of a task shows up before the commit, which names the stages of the
tasks that won; the others are dropped with it. Without, rows are in their topics when
their task ends, and there is nothing left to commit or abort.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from lance_spark.client import CommitStatus, StagesCommitted
from lance_spark.errors import (
    AccessDenied,
    BrokerError,
    CommitConflictError,
    InvalidPayload,
    InvalidTopicName,
    LanceError,
    PayloadTooLarge,
    RowError,
    StageExpiredError,
    StageMismatchError,
    StageNotFound,
    StorageError,
    TopicNotFound,
)
from lance_spark.spark.job import WriteJob, check_topics
from lance_spark.spark.outlet import Outlet, TopicStage
from lance_spark.spark.pool import lease
from lance_spark.spark.routing import route_rows

logger = logging.getLogger(__name__)

# What a server says of a commit that it has not carried out. Whatever else comes may
# come when it has, or while it still does.
_REFUSALS = (
    AccessDenied,
    CommitConflictError,
    InvalidPayload,
    InvalidTopicName,
    PayloadTooLarge,
    StageExpiredError,
    StageMismatchError,
    StageNotFound,
    StorageError,
    TopicNotFound,
)

# Outside of Spark there are no partitions.
NO_PARTITION = -1


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task has written.

    Args:
        partition_id: of its rows; `NO_PARTITION` outside of Spark.
        records: how many rows there were.
        stages: its stages, those of a topic in the order of their rows; none if rows
            are written at least once.
    """

    partition_id: int
    records: int
    stages: tuple[TopicStage, ...] = ()


def write_task(job: WriteJob, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    """Write the rows of one task; called on an executor.

    All of them are acknowledged when this returns. If it fails, what a task has staged
    is dropped with the job's other losers: a stage belongs to nobody else.

    Raises:
        RowError: a row can't be a record, with its number in the partition.
        OptionError: the columns can't be used.
        Undelivered, Timeout: the server does not take the rows.
        LanceError: the server is of another kind than the job was made for.
    """
    partition_id = _find_partition()
    records = 0
    try:
        with lease(job.options.client) as client, Outlet(job, client) as outlet:
            for batch in batches:
                for routed in route_rows(batch, job.options.topic, first_row=records):
                    outlet.write(routed)
                records += batch.num_rows
            stages = outlet.finish()
    except RowError as error:
        where = f"(in partition {partition_id}, whose first row is row 0)"
        raise RowError(f"{error.reason} {where}", error.row) from None
    return TaskResult(partition_id, records, stages)


def commit_job(job: WriteJob, results: Iterable[TaskResult]) -> None:
    """Make the rows of all tasks visible at once; called on the driver.

    Rows are in the order of the partitions. A commit of no rows that replaces a topic
    leaves it empty, and creates it if need be; one that appends does nothing, and does
    not even create the topic.

    Args:
        job: the job.
        results: one for each task.

    Raises:
        TopicNotFound: a topic that may not be created is gone.
        StageExpiredError, StageNotFound, StageMismatchError: a stage is not what its
            task has written; nothing is visible.
        CommitConflictError: the writer has committed this sequence with other topics.
        LanceError: it is not known whether the commit was carried out; the text says
            so. Or the server is of another kind than the job was made for.
    """
    if not job.is_staged:
        return
    # Stable: outside of Spark results come in the order of their rows.
    ordered = sorted(results, key=lambda result: result.partition_id)
    stages = [stage for result in ordered for stage in result.stages]
    if not stages and not job.overwrite:
        # Nobody names the stages of tasks that failed before they were run again.
        abort_job(job)
        return
    replaced = [job.options.topic] if job.overwrite and job.options.topic else []
    with lease(job.options.client) as client:
        job.check_server(client.connection())
        if not job.options.create_topic:
            check_topics(client, [*replaced, *(stage.topic for stage in stages)])
        contents = [stage.content for stage in stages]
        with _explaining(job):
            committed = client.commit_stages(
                job.writer_id, job.sequence, contents, overwrite=replaced
            )
    _log_commit(job, sum(result.records for result in ordered), committed)


@contextmanager
def _explaining(job: WriteJob) -> Iterator[None]:
    """Say what became of a commit that failed, and what to do about it."""
    try:
        yield
    except _REFUSALS as error:
        remedy = _find_remedy(job, error)
        if remedy is None:
            raise
        text = f"{error.message}: {remedy}"
        raise type(error)(text, error.code, error.details) from error
    except LanceError as error:
        rerun = (
            "Look at the topic before you run the job again; with txnAppId and "
            "txnVersion it could be run again without a look"
        )
        if job.options.txn_app_id is not None:
            rerun = "Run it again with the same txnAppId and txnVersion, which is safe"
        raise LanceError(
            f"it is not known whether the commit to {job.target} was carried out: its "
            f"rows may be visible, now or later. {rerun}. What has failed: {error}"
        ) from error


def _find_remedy(job: WriteJob, error: BrokerError) -> str | None:
    if job.options.txn_app_id is None:
        return None
    if isinstance(error, StageNotFound):
        return (
            "another run with this txnAppId and txnVersion has ended meanwhile, and "
            "its end drops what it did not write; nothing of this run is visible"
        )
    if isinstance(error, CommitConflictError):
        return (
            "one txnVersion can't both append and overwrite, nor be of several sets of "
            "topics; give this write a txnVersion or txnAppId of its own"
        )
    return None


def abort_job(job: WriteJob) -> None:
    """Drop the stages of a job; never raises, as stages also go by themselves.

    Nobody tells whether a commit was tried before, and what became of it: one that was
    carried out has left nothing to drop.
    """
    if not job.is_staged:
        return
    try:
        with lease(job.options.client) as client:
            dropped = client.abort_stages(job.writer_id, job.sequence)
    except Exception as error:
        # Whatever it is, it must not hide why the job was aborted.
        logger.warning(
            "stages of %s can't be dropped now; those that are not committed expire "
            "by themselves: %s",
            job.writer_id,
            error,
        )
    else:
        logger.info("%d stages of %s dropped", dropped, job.writer_id)


def _log_commit(job: WriteJob, records: int, committed: StagesCommitted) -> None:
    who = f"{job.writer_id}, {job.sequence}"
    if committed.status is CommitStatus.STALE:
        logger.warning(
            "%s: nothing was written to %s: the writer has committed a higher version",
            who,
            job.target,
        )
        return
    spans = ", ".join(f"{t.name!r} [{t.start}, {t.end})" for t in committed.topics)
    if committed.status is CommitStatus.REPEATED:
        logger.info("%s: was committed before, to %s; nothing changed", who, spans)
    else:
        logger.info("%s: %d records committed to %s", who, records, spans)


def _find_partition() -> int:
    context = TaskContext.get()
    return NO_PARTITION if context is None else context.partitionId()
