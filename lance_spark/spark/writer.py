"""The writers of batches and of micro-batches, as Spark knows them.

Spark makes a batch writer on the driver, pickles it into every task, and asks the same
pickled one to commit or abort. It holds the job and nothing open.

For each micro-batch Spark makes a writer on the driver and pickles it into the tasks,
and another one, in another process, that commits or aborts. That one knows neither the
query nor what the first has decided: it commits what the messages of the tasks say. A
micro-batch is named by the query's id, which a restart keeps, and by its number. A
replayed one has the same name, so it is written once even if Spark has not noted that
it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lance_spark.errors import LanceError
from lance_spark.spark.job import WriteJob, plan_job
from lance_spark.spark.options import WriteOptions
from lance_spark.spark.schema import check_write_schema
from lance_spark.spark.sink import TaskResult, abort_job, commit_job, write_task

# Spark tells these to the tasks of a streaming query only.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

_AGAIN = "restart the query"


@dataclass
class LanceCommit(WriterCommitMessage):
    """What a task tells the driver: what it has written, and for which job."""

    result: TaskResult
    job: WriteJob


def check_messages(
    messages: list[WriterCommitMessage | None], *, again: str
) -> list[LanceCommit]:
    """Check that every task has told what it has written; Spark gives None if not.

    Args:
        messages: of the tasks.
        again: what the user can do to have it tried once more.

    Raises:
        LanceError: a task has said nothing.
    """
    commits = [each for each in messages if isinstance(each, LanceCommit)]
    if len(commits) < len(messages):
        raise LanceError(
            f"{len(messages) - len(commits)} of {len(messages)} tasks have not said "
            f"what they have written: nothing is committed; {again}"
        )
    return commits


class LanceWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame into topics.

    Args:
        options: what the user said.
        schema: the columns of the DataFrame.
        overwrite: replace what the topic holds.

    Raises:
        OptionError: columns or options can't be used.
        LanceError: the server can't do what they ask for, or can't be reached.
    """

    def __init__(
        self, options: WriteOptions, schema: StructType, overwrite: bool
    ) -> None:
        check_write_schema(
            schema, options.client.protocol, topic_option=options.topic is not None
        )
        self.job = plan_job(options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LanceCommit:
        """Write the rows of one task."""
        return LanceCommit(write_task(self.job, iterator), self.job)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible.

        Raises:
            LanceError: a task has said nothing; nothing is committed then.
        """
        commits = check_messages(messages, again=self.job.again)
        commit_job(self.job, [each.result for each in commits])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what tasks have staged, as the broker knows it."""
        abort_job(self.job)


class LanceStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of one micro-batch into topics.

    Args:
        options: what the user said.
        schema: the columns of the DataFrame.
        overwrite: replace what the topic holds, as complete mode does.

    Raises:
        OptionError: columns or options can't be used.
        LanceError: the server can't do what they ask for, or can't be reached.
    """

    def __init__(
        self, options: WriteOptions, schema: StructType, overwrite: bool
    ) -> None:
        check_write_schema(
            schema, options.client.protocol, topic_option=options.topic is not None
        )
        self.plan = plan_job(options, overwrite, is_stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LanceCommit:
        """Write the rows of one task.

        Raises:
            LanceError: it is no task of a streaming query.
        """
        job = self.plan.make_job(*find_batch())
        return LanceCommit(write_task(job, iterator), job)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the rows of all tasks visible, unless they are.

        Raises:
            LanceError: tasks have said nothing, or do not agree on what they have
                written; nothing is committed then.
        """
        commits = check_messages(messages, again=_AGAIN)
        job = _find_job(commits, batchId)
        if job is not None:
            commit_job(job, [each.result for each in commits])
        elif self.plan.overwrite:
            # Only a task knows the query, which is the writer that replaces the topic.
            raise LanceError(
                f"micro-batch {batchId} had no tasks: nothing is committed; {_AGAIN}"
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what tasks have staged, as far as a message tells whose it is.

        If none does, it goes with the commit of the replayed batch, or expires.
        """
        told = [each for each in messages if isinstance(each, LanceCommit)]
        for job in dict.fromkeys(each.job for each in told):
            abort_job(job)


def find_batch() -> tuple[str, int]:
    """Tell the query's id and the micro-batch's, of the task that asks.

    Raises:
        LanceError: there is no task, or it is not of a streaming query.
    """
    context = TaskContext.get()
    query_id = batch_id = None
    if context is not None:
        query_id = context.getLocalProperty(_QUERY_ID)
        batch_id = context.getLocalProperty(_BATCH_ID)
    if not query_id or not batch_id or not batch_id.isdecimal():
        raise LanceError(
            f"Spark does not tell which micro-batch this is ({_QUERY_ID} is "
            f"{query_id!r}, {_BATCH_ID} is {batch_id!r}), so it can't be written once: "
            "use writeStream, or write batches with df.write"
        )
    return query_id, int(batch_id)


def _find_job(commits: Sequence[LanceCommit], batch_id: int) -> WriteJob | None:
    """Find what all tasks have worked for; None if there were none.

    Raises:
        LanceError: they differ, or it is another batch.
    """
    jobs = list(dict.fromkeys(each.job for each in commits))
    if len(jobs) > 1:
        names = ", ".join(
            f"{job.writer_id} {job.sequence} {job.delivery}" for job in jobs[:3]
        )
        raise LanceError(
            f"the tasks of micro-batch {batch_id} have written for {len(jobs)} "
            f"different jobs ({names}): nothing is committed; {_AGAIN}"
        )
    if jobs and jobs[0].sequence != batch_id:
        raise LanceError(
            f"micro-batch {batch_id} is to be committed, but its tasks have written "
            f"micro-batch {jobs[0].sequence}: nothing is committed; {_AGAIN}"
        )
    return jobs[0] if jobs else None
