"""A write job: what the driver decides once, for all tasks and for the commit.

Nothing here holds a connection: a job is pickled into every task. Where its rows go,
and in which stages, is in `sink`.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lance_spark.client import Capability, LanceClient
from lance_spark.errors import LanceError, OptionError, TopicNotFound, Unsupported
from lance_spark.spark.options import WriteOptions
from lance_spark.spark.pool import lease
from lance_spark.spark.value import find_topic_fault

if TYPE_CHECKING:
    from lance_spark.client.connection import Connection

logger = logging.getLogger(__name__)

Delivery = Literal["exactly-once", "at-least-once"]

# The broker keeps the names of writers for days and takes no longer ones.
WRITER_ID_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """One write, as its tasks and its commit know it.

    Args:
        options: what the user said.
        delivery: what `auto` came to, or what the user said.
        writer_id: who writes; with the sequence it names the job to the broker.
        sequence: which of the writer's jobs this is.
        overwrite: the rows replace what the topic holds.
    """

    options: WriteOptions
    delivery: Delivery
    writer_id: str
    sequence: int
    overwrite: bool = False

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

    def check_server(self, connection: Connection) -> None:
        """Check that a server is of the kind that the job was made for.

        Raises:
            LanceError: it has no stages, or has some although `auto` found none.
        """
        has_stages = Capability.STAGED_COMMIT.value in connection.capabilities
        if self.is_staged and not has_stages:
            found = "it has no stages"
        elif has_stages and not self.is_staged and self.options.delivery == "auto":
            found = "it could write exactly once"
        else:
            return
        raise LanceError(
            f"the server {connection.address} is not of the kind that the job was made "
            f"for, which is to write {self.delivery}: {found}. All of servers="
            f"{self.options.client.servers} have to be alike; if they were being "
            "replaced, run the job again"
        )


def make_batch_job(options: WriteOptions, overwrite: bool) -> WriteJob:
    """Decide how a batch is written; called on the driver, once per write.

    Raises:
        OptionError: the options contradict each other.
        Unsupported: the server can't do what they ask for.
        TopicNotFound: there is no such topic, and none may be created.
        LanceError: the server can't be reached.
    """
    _check_options(options, overwrite)
    writer_id, sequence = _name_job(options)
    with lease(options.client) as client:
        delivery = _resolve_delivery(options, overwrite, client)
        if options.compression == "lz4" and client.is_plain:
            # It would store the compressed bytes as if they were records.
            what = "compression=lz4 (use compression=none here)"
            raise Unsupported(what, "lz4", _address(client))
        if options.topic is not None and not options.create_topic:
            check_topics(client, [options.topic])
        server = _address(client)
    if delivery == "at-least-once":
        asked = options.delivery == delivery
        why = "it was asked for" if asked else f"the server {server} has no stages"
        logger.warning(
            "delivery is at-least-once, so that a retried task writes rows twice: %s",
            why,
        )
    return WriteJob(
        options=options,
        delivery=delivery,
        writer_id=writer_id,
        sequence=sequence,
        overwrite=overwrite,
    )


def check_topics(client: LanceClient, topics: Iterable[str]) -> set[str]:
    """Check that topics are there, as they may not be created; return all there are.

    Raises:
        TopicNotFound: naming those that are not.
    """
    there = {info.name for info in client.topics()}
    missing = sorted(set(topics) - there)
    if missing:
        names = ", ".join(map(repr, missing[:10]))
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        raise TopicNotFound(
            f"createTopic=false, and there is no topic {names}{more}: create it, or "
            "set createTopic=true"
        )
    return there


def _check_options(options: WriteOptions, overwrite: bool) -> None:
    fault = None if options.topic is None else find_topic_fault(options.topic)
    if fault is not None:
        raise OptionError(f"option topic: the name {options.topic!r:.100} {fault}")
    if overwrite and options.topic is None:
        raise OptionError(
            'mode("overwrite") needs option topic: it replaces one topic, and which '
            "ones a topic column names is only known when all rows were seen"
        )
    needs = _find_need_of_stages(options, overwrite)
    if needs is not None and options.delivery == "at-least-once":
        what, instead = needs
        raise OptionError(
            f"{what} can't be had with delivery=at-least-once: use auto or "
            f"exactly-once, or {instead}"
        )


def _find_need_of_stages(
    options: WriteOptions, overwrite: bool
) -> tuple[str, str] | None:
    """Say what of it can't be done without stages, and what can be done instead."""
    if overwrite:
        return 'mode("overwrite")', 'use mode("append")'
    if options.txn_app_id is not None:
        return "txnAppId", "leave out txnAppId and txnVersion"
    if options.delivery == "exactly-once":
        return "delivery=exactly-once", "use auto or at-least-once"
    return None


def _resolve_delivery(
    options: WriteOptions, overwrite: bool, client: LanceClient
) -> Delivery:
    has_stages = client.supports(Capability.STAGED_COMMIT)
    if has_stages and options.delivery != "at-least-once":
        return "exactly-once"
    needs = _find_need_of_stages(options, overwrite)
    if needs is not None:
        what, instead = needs
        capability = Capability.STAGED_COMMIT.value
        raise Unsupported(f"{what} ({instead} here)", capability, _address(client))
    return "at-least-once"


def _name_job(options: WriteOptions) -> tuple[str, int]:
    """Give writer id and sequence: the user's, or ones that nobody has had."""
    if options.txn_app_id is None or options.txn_version is None:
        return f"spark-batch:{uuid.uuid4()}", 0
    # As Delta's are per table, these are per target: a topic, or all of a column's. An
    # array in JSON can be read in one way only, whatever is in the names.
    names = [options.txn_app_id]
    if options.topic is not None:
        names.append(options.topic)
    writer_id = f"spark-txn:{json.dumps(names, ensure_ascii=False)}"
    if len(writer_id.encode()) > WRITER_ID_BYTES_MAX:
        raise OptionError(
            "txnAppId is too long: with the topic's name it may take about "
            f"{WRITER_ID_BYTES_MAX - 20} bytes; use a shorter one, as a hash"
        )
    return writer_id, options.txn_version


def _address(client: LanceClient) -> str:
    return str(client.connection().address)
