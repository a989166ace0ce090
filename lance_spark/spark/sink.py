"""What a write job does: rows in each task, then one commit on the driver.

With stages nothing of a task shows up before the commit, which names the stages of the
tasks that won; the others are dropped with it. Without, rows are in their topics when
their task ends, and there is nothing left to commit or abort.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pyarrow as pa
from pyspark import TaskContext

from lance_spark.client.driver import Committed
from lance_spark.errors import (
    BrokerError,
    CommitConflictError,
    CommitUnknownError,
    LanceError,
    RowError,
    StageExpiredError,
    StageMismatchError,
    StageNotFound,
    StorageError,
    Undelivered,
)
from lance_spark.spark.job import WriteJob, check_topics
from lance_spark.spark.pool import lease
from lance_spark.spark.schema import find_carried, list_written
from lance_spark.spark.task_writer import Placement, TaskWriter, TopicStage, route_rows
from lance_spark.value import dataclass

logger = logging.getLogger(__name__)

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
    is dropped with the other stages of the job that lost: each belongs to one task.

    Raises:
        RowError: a row can't be a record, with its number in the partition.
        OptionError: the columns can't be used.
        Undelivered, Timeout: the server does not take the rows.
        LanceError: the server is of another kind than the job was made for.
    """
    partition_id = _find_partition()
    protocol = job.options.client.protocol
    carried, placement = find_carried(protocol), None
    opened: list[TaskWriter] = []
    records = 0
    try:
        with ExitStack() as stack:

            def get_writer() -> TaskWriter:
                """Connect for the first row: a task without rows needs no server."""
                if not opened:
                    driver = stack.enter_context(lease(job.options.client))
                    opened.append(TaskWriter(job, driver))
                    stack.callback(opened[0].close)
                return opened[0]

            if "partition" in list_written(protocol):
                placement = Placement(
                    lambda topic: get_writer().count_partitions(topic),
                    max(partition_id, 0),
                    job.options.partition,
                )
            for batch in batches:
                for routed in route_rows(
                    batch,
                    job.options.topic,
                    first_row=records,
                    carried=carried,
                    placement=placement,
                ):
                    get_writer().write(routed)
                records += batch.num_rows
            stages = opened[0].finish() if opened else ()
    except RowError as error:
        where = f"(in Spark's partition {partition_id}, whose first row is row 0)"
        raise RowError(f"{error.reason} {where}", error.row) from None
    except (StorageError, Undelivered) as error:
        _make_room(job, error)
        raise
    return TaskResult(partition_id, records, stages)


def _make_room(job: WriteJob, error: StorageError | Undelivered) -> None:
    """Drop all stages of a micro-batch for which the broker has no room.

    Spark tells the driver of no task when a batch fails, so what its attempts leave is
    there until one of them is committed, and as long as there are new ones it does not
    expire. A batch that fails for ever would take all stages that a broker may have, or
    its disk, from all other jobs, and could not even be run when its cause is mended.
    Other tasks of this attempt lose theirs too, and it fails as a whole.
    """
    cause = error.cause if isinstance(error, Undelivered) else error
    if not job.is_stream or not isinstance(cause, StorageError):
        return
    logger.warning(
        "%s: the broker has no room; what this and earlier attempts of the micro-batch "
        "have staged is dropped: %s",
        _name(job),
        cause.message,
    )
    abort_job(job)


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
        CommitConflictError: the writer has committed this sequence with other topics,
            and it is not a micro-batch.
        CommitUnknownError: the client has asked for the commit until `retryTimeout`
            was up, and it is still not known whether it was carried out.
        LanceError: the server is of another kind than the job was made for, can't be
            reached, or has committed a later micro-batch of the query. As with all
            others but CommitUnknownError, nothing of the job is or will be visible.
    """
    if not job.is_staged:
        return
    # Stable: outside of Spark results come in the order of their rows.
    ordered = sorted(results, key=lambda result: result.partition_id)
    stages = [stage for result in ordered for stage in result.stages]
    if not stages and not job.overwrite:
        # Tasks that failed before they were run again may have left stages, which no
        # commit names. A query has many batches of no rows, whose failed tasks had no
        # rows either, and is spared the request: if they had some, their stages expire.
        if not job.is_stream:
            abort_job(job)
        return
    try:
        committed = _commit(job, stages)
    except CommitConflictError as error:
        if not job.is_stream:
            raise
        _pass_over(job, error)
    else:
        records = sum(result.records for result in ordered)
        _conclude(job, committed, records, stages)


def _commit(job: WriteJob, stages: Sequence[TopicStage]) -> Committed:
    replaced = [job.options.topic] if job.overwrite and job.options.topic else []
    with lease(job.options.client) as driver:
        calls = job.find_stages(driver)
        if not job.options.create_topic:
            check_topics(driver, [*replaced, *(stage.topic for stage in stages)])
        contents = [stage.content for stage in stages]
        with _explaining(job):
            return calls.commit(
                job.writer_id, job.sequence, contents, overwrite=replaced
            )


def _pass_over(job: WriteJob, conflict: CommitConflictError) -> None:
    """Go on behind a micro-batch that is committed, though it now looks different.

    The broker says so only of the very sequence that the writer has committed last, so
    this batch is in its topics, whole and for good. What it compares are the topics
    of the stages and the topics to be replaced. These differ if the query is not
    deterministic and routes its rows otherwise this time, or if its output mode was
    changed before the restart. Of two versions of a batch one may count, and that is
    the first: readers have seen it. To fail would be to fail at every replay, for ever.
    After a change to complete mode the next batch replaces the topic as a whole.
    """
    logger.warning(
        "%s: the micro-batch was committed before it was replayed, and is not written "
        "again, although it would go elsewhere now; a query whose rows find their "
        "topics by chance, or a changed output mode, does that: %s",
        _name(job),
        conflict.message,
    )
    # Unlike a commit that is merely repeated, a refused one leaves its stages.
    abort_job(job)


@contextmanager
def _explaining(job: WriteJob) -> Iterator[None]:
    """Say what became of a commit that failed, and what to do about it."""
    try:
        yield
    except CommitUnknownError as error:
        raise CommitUnknownError(
            f"it is not known whether the commit to {job.target} was carried out: its "
            "rows may be visible, now or when the broker is started again, or not at "
            f"all. {_find_rerun(job)}. What has failed: {error.__cause__ or error}",
            error.code,
        ) from error
    except BrokerError as error:
        remedy = _find_remedy(job, error)
        if remedy is None:
            raise
        text = f"{error.message}: {remedy}"
        raise type(error)(text, error.code, error.details) from error


def _find_rerun(job: WriteJob) -> str:
    """Say what to do when it is unknown whether rows were written."""
    if job.is_stream:
        return "Restart the query: the micro-batch is replayed, and written once"
    if job.options.txn_app_id is not None:
        return "Run it again with the same txnAppId and txnVersion, which is safe"
    return (
        "Do not just run the job again, which may write its rows twice: when the "
        "broker runs, compare the topic with what was to be written. With txnAppId and "
        "txnVersion it could be run again without a look"
    )


def _find_remedy(job: WriteJob, error: BrokerError) -> str | None:
    if job.is_stream:
        return _find_stream_remedy(error)
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


def _find_stream_remedy(error: BrokerError) -> str | None:
    if isinstance(error, StageNotFound):
        return (
            "another run of this query, or of a copy of its checkpoint, has ended this "
            "micro-batch meanwhile, which drops what it did not write, or a task of it "
            "had no room on the broker; see that there is one run only, and restart "
            "the query: the micro-batch is replayed, and written once"
        )
    if isinstance(error, (StageExpiredError, StageMismatchError)):
        return (
            "nothing of the micro-batch is visible; restart the query: it is replayed, "
            "and written once"
        )
    return None


def abort_job(job: WriteJob) -> None:
    """Drop the stages of a job; never raises, as stages also go by themselves.

    A commit may have been tried before; if it was carried out, nothing is left to drop.
    """
    if not job.is_staged:
        return
    try:
        with lease(job.options.client) as driver:
            dropped = job.find_stages(driver).abort(job.writer_id, job.sequence)
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


def _conclude(
    job: WriteJob,
    committed: Committed,
    records: int,
    stages: Sequence[TopicStage],
) -> None:
    """Say what became of a commit.

    Raises:
        LanceError: it was a micro-batch before the last one that was committed.
    """
    spans = ", ".join(
        f"{partition.topic!r} [{at.start}, {at.end})"
        for partition, at in committed.spans
    )
    if committed.status == "stale":
        if job.is_stream:
            raise _make_stale(job)
        logger.warning(
            "%s: nothing was written to %s: the writer has committed a higher version",
            _name(job),
            job.target,
        )
    elif committed.status == "repeated":
        logger.info(
            "%s: was committed before, to %s; nothing changed", _name(job), spans
        )
        size = sum(stage.content.byte_count for stage in stages)
        written = sum(at.end - at.start for _, at in committed.spans)
        if job.is_stream and size != written:
            logger.warning(
                "%s: the micro-batch has %d bytes now and had %d when it was committed "
                "to %s, which counts: the query is not deterministic, or runs from a "
                "copy of its checkpoint that is older than its output",
                _name(job),
                size,
                written,
                spans,
            )
    else:
        logger.info("%s: %d records committed to %s", _name(job), records, spans)


def _make_stale(job: WriteJob) -> LanceError:
    """Make the error for a checkpoint that does not know all that was written.

    Spark replays the last micro-batch at most. One before it is not a replay: with an
    older checkpoint the batches of the same numbers have other rows, and to take them
    for written would lose those.
    """
    return LanceError(
        f"micro-batch {job.sequence} is not written to {job.target}: this query has "
        "committed a later one already, so that its checkpoint is older than its "
        "output, or another run of the query is further. End the other run, or put "
        "the newest checkpoint back; with a new checkpoint location the query starts "
        "anew, and writes again what its startingOffsets say"
    )


def _name(job: WriteJob) -> str:
    return f"{job.writer_id}, {job.sequence}"


def _find_partition() -> int:
    context = TaskContext.get()
    return NO_PARTITION if context is None else context.partitionId()
