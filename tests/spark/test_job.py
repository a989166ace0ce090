"""Jobs: what the driver decides, and what it refuses before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.driver import open_driver
from lance_spark.client.lwp.driver import make_driver
from lance_spark.errors import (
    ConnectionLost,
    LanceError,
    OptionError,
    Timeout,
    TopicNotFound,
    Unsupported,
)
from lance_spark.spark.job import (
    WRITER_ID_BYTES_MAX,
    check_topics,
    plan_job,
)
from tests.spark.writing import (
    create_topics,
    leaving_nothing,
    make_config,
    make_job,
    make_options,
    travel,
)

TXN: dict[str, Any] = {"txn_app_id": "app", "txn_version": 7}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with leaving_nothing():
        yield


# Delivery.


@pytest.mark.parametrize("delivery", ["auto", "exactly-once"])
def test_exactly_once_where_there_are_stages(
    broker: EmbeddedBroker, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(broker, topic="a", delivery=delivery)
    assert (job.delivery, job.is_staged) == ("exactly-once", True)
    assert not caplog.records


def test_at_least_once_where_there_are_none(
    plain_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(plain_broker, topic="a")
    assert (job.delivery, job.is_staged) == ("at-least-once", False)
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert "at-least-once" in said.message
    assert f"the server {plain_broker.address} has no stages" in said.message


def test_at_least_once_where_it_is_asked_for(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(broker, topic="a", delivery="at-least-once")
    assert job.delivery == "at-least-once"
    (said,) = caplog.messages
    assert "the option delivery asks for it" in said


@pytest.mark.parametrize(
    ("changes", "overwrite", "said"),
    [
        (
            {"delivery": "exactly-once"},
            False,
            r"delivery=exactly-once \(use auto or at-least-once",
        ),
        ({}, True, r'mode\("overwrite"\) \(use mode\("append"\)'),
        (TXN, False, r"txnAppId \(leave out txnAppId and txnVersion"),
    ],
)
def test_a_plain_server_is_refused_what_needs_stages(
    plain_broker: EmbeddedBroker,
    changes: dict[str, Any],
    overwrite: bool,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = make_options(plain_broker, topic="a", **changes)
    text = f"{said} here.*{plain_broker.address}.*'staged-commit'"
    with pytest.raises(Unsupported, match=text):
        plan_job(options, overwrite)
    assert not caplog.records


@pytest.mark.parametrize(
    ("changes", "overwrite", "said"),
    [({}, True, r'mode\("overwrite"\)'), (TXN, False, "txnAppId")],
)
def test_at_least_once_can_not_do_what_needs_stages(
    broker: EmbeddedBroker, changes: dict[str, Any], overwrite: bool, said: str
) -> None:
    options = make_options(broker, topic="a", delivery="at-least-once", **changes)
    with pytest.raises(OptionError, match=f"{said} is not possible .*use auto.*, or"):
        plan_job(options, overwrite)


def test_overwrite_needs_the_option(broker: EmbeddedBroker) -> None:
    with pytest.raises(OptionError, match="needs option topic"):
        plan_job(make_options(broker), overwrite=True)


def test_a_plain_server_gets_nothing_compressed(plain_broker: EmbeddedBroker) -> None:
    options = make_options(plain_broker, topic="a", compression="lz4")
    with pytest.raises(Unsupported, match=r"compression=lz4 \(use compression=none"):
        plan_job(options, overwrite=False)


def test_ours_does(broker: EmbeddedBroker) -> None:
    assert make_job(broker, topic="a", compression="lz4").is_staged


def test_no_server() -> None:
    with EmbeddedBroker(fsync="none") as broker:
        config = make_config(broker, retry_timeout_s=0.05)
        options = make_options(broker, topic="a", client=config)
    with pytest.raises((ConnectionLost, Timeout), match=broker.address):
        plan_job(options, overwrite=False)


# Topics that may not be created.


@pytest.mark.parametrize("dialect", ["broker", "plain_broker"])
def test_the_topic_has_to_be_there(
    dialect: str, request: pytest.FixtureRequest
) -> None:
    server: EmbeddedBroker = request.getfixturevalue(dialect)
    options = make_options(server, topic="a", create_topic=False)
    with pytest.raises(TopicNotFound, match=r"no topic 'a'.*createTopic=true"):
        plan_job(options, overwrite=False)
    create_topics(server, "a")
    plan_job(options, overwrite=False)


@pytest.mark.parametrize("dialect", ["broker", "plain_broker"])
@pytest.mark.parametrize("name", ["a/b", "..", "t" * 300, "a\ud800"])
def test_a_name_that_can_not_be(
    dialect: str, name: str, request: pytest.FixtureRequest
) -> None:
    server: EmbeddedBroker = request.getfixturevalue(dialect)
    options = make_options(server, topic=name)
    with pytest.raises(OptionError, match=r"^option topic: the name '.{,100} .*: "):
        plan_job(options, overwrite=False)


def test_missing_topics_are_named(broker: EmbeddedBroker) -> None:
    create_topics(broker, "a", "b")
    with closing(open_driver(make_config(broker))) as client:
        assert check_topics(client, ["b", "b"]) == {"a", "b"}
        with pytest.raises(TopicNotFound, match="no topic 'c', 'd': create"):
            check_topics(client, ["d", "a", "c", "d"])
        with pytest.raises(TopicNotFound, match="'n19' and 2 more: create"):
            check_topics(client, (f"n{n}" for n in range(10, 22)))


# Names.


def test_names_are_random(broker: EmbeddedBroker) -> None:
    options = make_options(broker, topic="a")
    first, second = (plan_job(options, overwrite=False) for _ in range(2))
    assert first.writer_id != second.writer_id
    assert first.sequence == second.sequence == 0


def test_names_are_the_users(broker: EmbeddedBroker) -> None:
    first, second = (make_job(broker, topic="a", **TXN) for _ in range(2))
    assert first == second
    assert first.sequence == 7
    other = make_job(broker, topic="a", **{**TXN, "txn_version": 8})
    assert (other.writer_id, other.sequence) == (first.writer_id, 8)


def test_version_zero_is_a_version(broker: EmbeddedBroker) -> None:
    first = make_job(broker, topic="a", txn_app_id="app", txn_version=0)
    second = make_job(broker, topic="a", txn_app_id="app", txn_version=0)
    assert first == second


def test_names_of_different_targets_differ(broker: EmbeddedBroker) -> None:
    pairs = [
        ("a", "b:c"),
        ("a:b", "c"),
        ("a", "b"),
        ("a", None),
        ("b", None),
        ('a", "b', None),
        ('["a', "b"),
        ("a", 'b"]'),
        ("ä", "b"),
        ("\\u00e4", "b"),
        ("a", "null"),
    ]
    names = {
        make_job(broker, topic=topic, txn_app_id=app, txn_version=1).writer_id
        for app, topic in pairs
    }
    assert len(names) == len(pairs)
    assert all("spark-txn:" in name for name in names)


def test_a_name_as_long_as_can_be(broker: EmbeddedBroker) -> None:
    options = make_options(broker, topic="t" * 255, txn_version=1)
    spare = WRITER_ID_BYTES_MAX - len('spark-txn:["", ""]') - 255
    long = replace(options, txn_app_id="ä" * (spare // 2))
    job = plan_job(long, overwrite=False)
    assert len(job.writer_id.encode()) in (WRITER_ID_BYTES_MAX - 1, WRITER_ID_BYTES_MAX)
    with LanceClient(config=make_config(broker)) as client:
        client.open_stage("t", job.writer_id, job.sequence)
    longer = replace(options, txn_app_id="ä" * (spare // 2 + 1))
    with pytest.raises(OptionError, match="txnAppId is too long"):
        plan_job(longer, overwrite=False)


# Micro-batches.


def test_a_plan_makes_the_same_job_in_every_task(broker: EmbeddedBroker) -> None:
    options = make_options(broker, topic="a")
    plan = plan_job(options, overwrite=True, is_stream=True)
    job = travel(plan).make_job("query", 7)
    assert job == plan_job(options, overwrite=True, is_stream=True).make_job("query", 7)
    assert (job.writer_id, job.sequence) == ('spark-stream:["query", "a"]', 7)
    assert (job.delivery, job.overwrite, job.is_stream) == ("exactly-once", True, True)
    assert job.options == options


def test_jobs_of_streams_and_batches_do_not_mix(broker: EmbeddedBroker) -> None:
    plans = [
        plan_job(make_options(broker, topic=topic), overwrite=False, is_stream=True)
        for topic in ("a", "b", None)
    ]
    jobs = [plan.make_job(query, 1) for plan in plans for query in ("app", "other")]
    jobs.append(make_job(broker, topic="a", txn_app_id="app", txn_version=1))
    assert len({job.writer_id for job in jobs}) == len(jobs)


def test_the_longest_topic_fits_the_name_of_a_writer(broker: EmbeddedBroker) -> None:
    options = make_options(broker, topic='"' * 255)
    job = plan_job(options, overwrite=False, is_stream=True).make_job(
        "q" * 36, 2**63 - 1
    )
    assert len(job.writer_id.encode()) <= WRITER_ID_BYTES_MAX


def test_what_to_do_when_servers_differ(
    broker: EmbeddedBroker, plain_broker: EmbeddedBroker
) -> None:
    plan = plan_job(make_options(broker, topic="a"), overwrite=False, is_stream=True)
    with LanceClient(config=make_config(plain_broker)) as client:
        job = plan.make_job("query", 1)
        with pytest.raises(LanceError, match=r"being replaced, restart the query$"):
            job.check_server(make_driver(client).server)


# On its way.


def test_travels(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a", overwrite=True)
    assert travel(job) == job
    assert job.overwrite
    assert job.target == "topic 'a'"
    assert make_job(broker).target == "the topics of column topic"


def test_shows_no_secrets(broker: EmbeddedBroker) -> None:
    config = make_config(broker, auth_token="sesame")
    assert "sesame" not in repr(make_job(broker, topic="a", client=config))


def test_meets_a_server_of_another_kind(
    broker: EmbeddedBroker, plain_broker: EmbeddedBroker
) -> None:
    staged, plain = make_config(broker), make_config(plain_broker)
    exactly = make_job(broker, topic="a")
    atleast = make_job(plain_broker, topic="a")
    asked = make_job(broker, topic="a", delivery="at-least-once")
    with LanceClient(config=staged) as client, LanceClient(config=plain) as other:
        ours, theirs = make_driver(client).server, make_driver(other).server
        exactly.check_server(ours)
        atleast.check_server(theirs)
        with pytest.raises(LanceError, match=r"exactly-once: it has no stages.*again"):
            exactly.check_server(theirs)
        with pytest.raises(LanceError, match="at-least-once: it could write exactly"):
            atleast.check_server(ours)
        # Whoever asks for less can have it everywhere.
        asked.check_server(ours)
        asked.check_server(theirs)
