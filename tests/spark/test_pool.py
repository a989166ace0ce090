"""Drivers that are kept between tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import ClientConfig
from lance_spark.client.driver import WriterSettings
from lance_spark.spark.pool import Pool, clear_pool, lease
from tests.spark.reading import fill, parse


@pytest.fixture
def clients() -> Iterator[Pool]:
    made = Pool(idle_max=2)
    yield made
    made.clear()


@pytest.fixture
def config(broker: EmbeddedBroker) -> ClientConfig:
    return parse(broker, topic="a").client


def test_a_client_is_kept_and_lent_again(
    broker: EmbeddedBroker, clients: Pool, config: ClientConfig
) -> None:
    with clients.lease(config) as first:
        first.topics()
    # Equal settings are as good as the same ones: they come pickled.
    with clients.lease(replace(config)) as second:
        second.topics()
    assert second is first
    assert broker.metrics.snapshot().connections_opened == 1


def test_nobody_shares_a_client(clients: Pool, config: ClientConfig) -> None:
    with clients.lease(config) as first, clients.lease(config) as second:
        assert first is not second
    assert not first.is_closed
    assert not second.is_closed


def test_the_one_that_was_used_last_comes_first(
    clients: Pool, config: ClientConfig
) -> None:
    with clients.lease(config) as outer, clients.lease(config) as inner:
        pass
    with clients.lease(config) as third:
        # Given back after the inner one: its connection is the fresher one.
        assert third is outer
        assert third is not inner


def test_other_settings_are_another_client(clients: Pool, config: ClientConfig) -> None:
    other = replace(config, auth_token="sesame")
    with clients.lease(config) as first:
        pass
    with clients.lease(other) as second:
        assert second is not first
        assert second.config == other
    with clients.lease(config) as third:
        assert third is first


def test_a_client_that_met_an_error_is_closed(
    clients: Pool, config: ClientConfig
) -> None:
    for error in (ValueError, GeneratorExit, KeyboardInterrupt):
        with pytest.raises(error), clients.lease(config) as client:
            raise error
        assert client.is_closed
        with clients.lease(config) as other:
            assert other is not client


def test_those_that_were_not_used_for_longest_go_first(
    clients: Pool, config: ClientConfig
) -> None:
    settings = [replace(config, auth_token=name) for name in ("a", "b", "c")]
    made = []
    for each in settings:
        with clients.lease(each) as client:
            made.append(client)
    assert [client.is_closed for client in made] == [True, False, False]
    # Using one makes it the youngest.
    with clients.lease(settings[1]):
        pass
    with clients.lease(settings[0]):
        pass
    assert [client.is_closed for client in made] == [True, False, True]


def test_clear_closes_what_is_idle(clients: Pool, config: ClientConfig) -> None:
    with clients.lease(config) as idle:
        pass
    with clients.lease(replace(config, auth_token="a")) as used:
        clients.clear()
        assert idle.is_closed
        assert not used.is_closed


def test_a_client_whose_server_was_away(
    broker: EmbeddedBroker, clients: Pool, config: ClientConfig
) -> None:
    fill(broker, "a")
    with clients.lease(config) as client:
        pass
    broker.stop()
    broker.start()
    with clients.lease(config) as again:
        assert again is client
        assert [info.name for info in again.topics()] == ["a"]


def test_a_process_has_one_pool(config: ClientConfig) -> None:
    try:
        with lease(config) as first:
            pass
        with lease(config) as second:
            assert second is first
    finally:
        clear_pool()
    assert first.is_closed


def test_a_child_starts_with_an_empty_pool(config: ClientConfig) -> None:
    mine = Pool()
    with mine.lease(config) as client:
        pass
    # What a child of `fork` runs first.
    mine.start_empty()
    with mine.lease(config) as other:
        assert other is not client
    assert not client.is_closed
    mine.clear()
    client.close()


_FORK = """
import gc, os, sys
from lance_spark.client import ClientConfig
from lance_spark.spark.pool import clear_pool, lease

def talk():
    with lease(config) as mine:
        for _ in range(100):
            assert [info.name for info in mine.topics()] == names
    return mine

config = ClientConfig(servers=sys.argv[1])
names = ["a"]
with lease(config) as client:
    client.client.create_topic("a")
child = os.fork()
assert (talk() is client) == bool(child), "the wrong client"
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # The child has let go of it, and it works still.
    assert talk() is client
else:
    del client
    gc.collect()
clear_pool()
"""


def test_parent_and_child_talk_at_the_same_time(broker: EmbeddedBroker) -> None:
    done = subprocess.run(
        # A fork beside threads is what is tested here.
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            _FORK,
            broker.address,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert broker.metrics.snapshot().connections_opened == 2


def test_stages_of_tasks_one_behind_the_other_share_a_connection(
    broker: EmbeddedBroker, clients: Pool, config: ClientConfig
) -> None:
    """A connection for commands and one for batches; both outlast a task."""
    settings = WriterSettings(
        batch_bytes=1000,
        linger_s=0.0,
        max_in_flight=1,
        buffer_bytes=9000,
        compression="none",
        record_type=1,
        allow_null_records=False,
    )

    def stage(sequence: int) -> None:
        with clients.lease(config) as driver:
            calls = driver.stages()
            assert calls is not None
            writer = calls.open_writer(
                "a", "w", sequence, options=settings, check=lambda server: None
            )
            writer.write(pa.table({"value": pa.array([b"x"], pa.binary())}))
            content = writer.finish()
            assert content is not None
            assert calls.commit("w", sequence, [content]).status == "committed"

    for sequence in range(3):
        stage(sequence)
    assert broker.metrics.snapshot().connections_opened == 2
    # What the broker has closed is not lent again.
    broker.stop()
    requests = broker.metrics.snapshot().requests
    # Three round trips for each: the stage, its batch, the commit.
    assert {name: each.count for name, each in requests.items()} == {
        "GetClusterStatus": 2,
        **dict.fromkeys(("OpenStage", "Ingest", "CommitStages"), 3),
    }
    with EmbeddedBroker(listen=config.servers) as again:
        for sequence in range(3):
            stage(sequence)
        assert again.metrics.snapshot().connections_opened == 2
