"""A write job: what the driver decides once, for all tasks and for the commit.

Nothing here holds a connection: a job is pickled into every task. Where its rows go,
and in which stages, is in `sink`. Of a micro-batch the driver can decide all but its
name, as Spark tells the query's id and the batch's to tasks only: each task gives its
job the same name.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from lance_spark.client.driver import (
    Driver,
    ServerKind,
    StageCalls,
    find_protocol,
    list_topics,
)
from lance_spark.errors import LanceError, OptionError, TopicNotFound
from lance_spark.model import find_name_fault
from lance_spark.spark.options import WriteOptions, describe_missing
from lance_spark.spark.pool import lease

logger = logging.getLogger(__name__)

Delivery = Literal["exactly-once", "at-least-once"]

# The broker keeps the names of writers for days and takes no longer ones.
WRITER_ID_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """One write, as its tasks and its commit know it.

    Args:
        options: what the user said.
        overwrite: the rows replace what the topic holds.
        is_stream: it is a micro-batch, whose id is the sequence.
        delivery: what `auto` came to, or what the user said.
        writer_id: the writer's name; with the sequence it names the job to the broker.
        sequence: which of the writer's jobs this is.
    """

    options: WriteOptions
    overwrite: bool
    is_stream: bool
    delivery: Delivery = "at-least-once"
    writer_id: str = ""
    sequence: int = 0

    def make_job(self, query_id: str, batch_id: int) -> WriteJob:
        """Name the job of a micro-batch, alike in all its tasks and replays.

        Args:
            query_id: stays the same when a query is started again.
            batch_id: rises by one from batch to batch.
        """
        writer_id = f"spark-stream:{_join_names(query_id, self.options.topic)}"
        return replace(self, writer_id=writer_id, sequence=batch_id)

    @property
    def mode(self) -> str:
        """What the user has called to replace a topic."""
        return 'outputMode("complete")' if self.is_stream else 'mode("overwrite")'

    def check_options(self) -> None:
        """Check what can be checked without a server.

        Raises:
            OptionError: the options contradict each other.
        """
        topic = self.options.topic
        fault = None if topic is None else find_name_fault(topic)
        if fault is not None:
            raise OptionError(f"option topic: the name {topic!r:.100} {fault}")
        if self.overwrite and topic is None:
            raise OptionError(
                f"{self.mode} needs option topic: it replaces one topic, and which "
                "ones a topic column names is only known when all rows were seen"
            )
        needs = self.find_need_of_stages()
        protocol = self.options.client.protocol
        if needs is not None and not find_protocol(protocol).TRAITS.has_stages:
            what, instead = needs
            raise OptionError(
                f"{what} is not possible with format {protocol}, which has no "
                f"staged writes: {instead}"
            )
        if needs is not None and self.options.delivery == "at-least-once":
            what, instead = needs
            raise OptionError(
                f"{what} is not possible with delivery=at-least-once: use auto or "
                f"exactly-once, or {instead}"
            )

    def find_need_of_stages(self) -> tuple[str, str] | None:
        """Say what can't be done without stages, and what can be done instead."""
        if self.overwrite:
            append = 'outputMode("append")' if self.is_stream else 'mode("append")'
            return self.mode, f"use {append}"
        if self.options.txn_app_id is not None:
            return "txnAppId", "leave out txnAppId and txnVersion"
        if self.options.delivery == "exactly-once":
            return "delivery=exactly-once", "use auto or at-least-once"
        return None

    @property
    def is_staged(self) -> bool:
        """Whether rows go into stages, which show up at the commit."""
        return self.delivery == "exactly-once"

    @property
    def target(self) -> str:
        """Where the rows go, for texts."""
        if self.options.topic is None:
            return "the topics of column topic"
        return f"topic {self.options.topic!r}"

    def check_server(self, server: ServerKind) -> None:
        """Check that a server is of the kind that the job was made for.

        Raises:
            LanceError: it has no stages, or has some although `auto` found none.
        """
        if self.is_staged and not server.has_stages:
            found = "it has no stages"
        elif (
            server.has_stages and not self.is_staged and self.options.delivery == "auto"
        ):
            found = "it could write exactly once"
        else:
            return
        raise self._make_other_kind(server, found)

    def find_stages(self, driver: Driver) -> StageCalls:
        """Return the calls for stages, which a staged job can't do without.

        A connection may be lost between two questions, and another of the servers
        answer the second: rows of a staged job must never be written without a stage.

        Raises:
            LanceError: the server has no stages.
        """
        self.check_server(driver.server)
        calls = driver.stages()
        if calls is None:
            raise self._make_other_kind(driver.server, "it had no stages when asked")
        return calls

    def _make_other_kind(self, server: ServerKind, found: str) -> LanceError:
        return LanceError(
            f"the server {server.address} is not of the kind that the job was made "
            f"for, which is to write {self.delivery}: {found}. All of servers="
            f"{self.options.client.servers} have to be alike; if they were being "
            f"replaced, {self.again}"
        )

    @property
    def again(self) -> str:
        """What to do to have it tried once more, for texts."""
        return "restart the query" if self.is_stream else "run the job again"


def plan_job(
    options: WriteOptions, overwrite: bool, *, is_stream: bool = False
) -> WriteJob:
    """Decide how rows are written; called on the driver, once per write.

    Micro-batches are small and many, so this process remembers what it has asked.

    Args:
        options: what the user said.
        overwrite: the rows replace what the topic holds.
        is_stream: it is a micro-batch; its tasks name it.

    Raises:
        OptionError: the options contradict each other.
        Unsupported: the server can't do what they ask for.
        TopicNotFound: there is no such topic, and none may be created.
        LanceError: the server can't be reached.
    """
    job = WriteJob(options=options, overwrite=overwrite, is_stream=is_stream)
    job.check_options()
    memory = _remember(options) if is_stream else _Memory()
    if not is_stream:
        writer_id, sequence = _name_job(options)
        job = replace(job, writer_id=writer_id, sequence=sequence)
    with lease(options.client) as driver:
        delivery = _decide(job, driver)
        if not options.create_topic and not memory.has_topic and options.topic:
            # Whether it is still there, each task and each commit finds out for itself.
            check_topics(driver, [options.topic])
            memory.has_topic = True
        reason = "the option delivery asks for it"
        if options.delivery != "at-least-once":
            reason = f"the server {driver.server.address} has no stages"
    memory.check_kept(delivery, reason)
    if delivery == "at-least-once" and not memory.is_warned:
        memory.is_warned = True
        logger.warning(
            "delivery is at-least-once, so that a retried task%s writes rows twice: %s",
            " or a replayed micro-batch" if is_stream else "",
            reason,
        )
    return replace(job, delivery=delivery)


@dataclass(slots=True)
class _Memory:
    """What this process knows of earlier micro-batches of the same options.

    Spark ends the process after a minute without work, and the memory with it.
    """

    deliveries: set[Delivery] = field(default_factory=set)
    has_topic: bool = False
    is_warned: bool = False

    def check_kept(self, delivery: Delivery, reason: str) -> None:
        """Check that `auto` does not become less while a query runs.

        Raises:
            LanceError: batches before this one were written exactly once.
        """
        if delivery == "at-least-once" and "exactly-once" in self.deliveries:
            raise LanceError(
                f"{reason}, and micro-batches before this one were written exactly "
                "once: let the query reach the server that it had, or set "
                "delivery=at-least-once and restart it"
            )
        self.deliveries.add(delivery)


# By options, those of the queries that wrote last.
_memories: OrderedDict[WriteOptions, _Memory] = OrderedDict()
_MEMORIES_MAX = 64


def _remember(options: WriteOptions) -> _Memory:
    memory = _memories.pop(options, _Memory())
    _memories[options] = memory
    if len(_memories) > _MEMORIES_MAX:
        _memories.popitem(last=False)
    return memory


def check_topics(driver: Driver, topics: Iterable[str]) -> set[str]:
    """Check that topics are there which may not be created; return all there are.

    Raises:
        TopicNotFound: naming those that are not.
    """
    wanted = set(topics)
    there = {entry.name for entry in list_topics(driver, wanted)}
    missing = sorted(wanted - there)
    if missing:
        if driver.config.finds_by_id:
            raise TopicNotFound(describe_missing(driver.config, missing))
        names = ", ".join(map(repr, missing[:10]))
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        raise TopicNotFound(
            f"createTopic=false, and there is no topic {names}{more}: create it, or "
            "set createTopic=true"
        )
    return there


def _decide(job: WriteJob, driver: Driver) -> Delivery:
    """Find out whether the server can do it, and what is promised then."""
    options = job.options
    delivery: Delivery = "at-least-once"
    if driver.server.has_stages:
        if options.delivery != "at-least-once":
            delivery = "exactly-once"
    elif (needs := job.find_need_of_stages()) is not None:
        what, instead = needs
        raise driver.make_unsupported(f"{what} ({instead} here)", "stages")
    if options.compression not in driver.traits.compressions:
        # The server would store the compressed bytes as if they were records.
        raise driver.make_unsupported(
            f"compression={options.compression} (use compression=none here)"
        )
    return delivery


def _name_job(options: WriteOptions) -> tuple[str, int]:
    """Give writer id and sequence: the user's, or new ones."""
    if options.txn_app_id is None or options.txn_version is None:
        return f"spark-batch:{uuid.uuid4()}", 0
    writer_id = f"spark-txn:{_join_names(options.txn_app_id, options.topic)}"
    if len(writer_id.encode()) > WRITER_ID_BYTES_MAX:
        raise OptionError(
            "txnAppId is too long: with the topic's name it may take about "
            f"{WRITER_ID_BYTES_MAX - 20} bytes; use a shorter one, as a hash"
        )
    return writer_id, options.txn_version


def _join_names(writer: str, topic: str | None) -> str:
    """Name a writer per target, as Delta's are per table: a topic, or a column's."""
    # An array in JSON can be read in one way only, whatever is in the names.
    names = [writer] if topic is None else [writer, topic]
    return json.dumps(names, ensure_ascii=False)
