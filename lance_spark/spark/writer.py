"""The batch writer, as Spark knows it.

Spark makes it on the driver, pickles it into every task, and asks the same pickled one
to commit or abort. It holds the job and nothing open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lance_spark.errors import LanceError
from lance_spark.spark.job import make_batch_job
from lance_spark.spark.options import WriteOptions
from lance_spark.spark.schema import check_write_schema
from lance_spark.spark.sink import TaskResult, abort_job, commit_job, write_task


@dataclass
class LanceCommit(WriterCommitMessage):
    """What a task tells the driver."""

    result: TaskResult


C = TypeVar("C", bound=LanceCommit)


def check_messages(
    messages: list[WriterCommitMessage | None], kind: type[C], *, again: str
) -> list[C]:
    """Check that every task has told what it has written; Spark gives None if not.

    Args:
        messages: of the tasks.
        kind: what the messages are.
        again: what the user can do to have it tried once more.

    Raises:
        LanceError: a task has said nothing.
    """
    commits = [each for each in messages if isinstance(each, kind)]
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
        check_write_schema(schema, topic_option=options.topic is not None)
        self.job = make_batch_job(options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LanceCommit:
        """Write the rows of one task."""
        return LanceCommit(write_task(self.job, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible.

        Raises:
            LanceError: a task has said nothing; nothing is committed then.
        """
        commits = check_messages(messages, LanceCommit, again=self.job.again)
        commit_job(self.job, [each.result for each in commits])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what tasks have staged; which they are, the broker knows best."""
        abort_job(self.job)
