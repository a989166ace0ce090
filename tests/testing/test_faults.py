"""Faults that tests ask for: they happen, and they end."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lance_spark.client import LanceClient, Producer
from lance_spark.errors import LanceError, OptionError, Timeout, Undelivered
from lance_spark.store.files import File
from lance_spark.testing import ScratchBroker, ScratchTopic
from lance_spark.testing.faults import Fault, ScratchDisk
from lance_spark.wire.lwp import ListTopics

QUICK: dict[str, Any] = {
    "backoff_base_s": 0.001,
    "backoff_max_s": 0.002,
    "retry_timeout_s": 60.0,
}


@pytest.fixture
def client(lance_broker: ScratchBroker) -> Iterator[LanceClient]:
    """A client that is connected, and quick to try again."""
    with LanceClient(lance_broker.address, **QUICK) as made:
        yield made.connect()


def test_fault_ends_once() -> None:
    ends: list[int] = []
    fault = Fault(lambda: ends.append(1))
    with fault as same:
        assert same is fault and not fault.is_over
    fault.end()
    assert fault.is_over and ends == [1]


# The network.


def test_dropped_connections(
    lance_broker: ScratchBroker, lance_topic: ScratchTopic, client: LanceClient
) -> None:
    before = client.connection()
    with Producer(client, lance_topic.name) as producer:
        producer.send("a")
        producer.flush()
        lance_broker.faults.drop_connections()
        producer.send("b")
        producer.flush()
    assert client.topic(lance_topic.name).name == lance_topic.name
    assert client.connection() is not before
    lance_topic.assert_holds(["a", "b"], ordered=True)


def test_delay(lance_broker: ScratchBroker, client: LanceClient) -> None:
    with lance_broker.faults.delay(0.05):
        began_s = time.monotonic()
        client.topics()
        # There and back.
        assert time.monotonic() - began_s >= 0.1


def test_delay_ends(lance_broker: ScratchBroker, client: LanceClient) -> None:
    # Longer than any test lasts: what still met it afterwards would never end.
    with lance_broker.faults.delay(3600), pytest.raises(Timeout):
        client.call(ListTopics(), timeout_s=0.05)
    assert client.topics() == []


def test_delay_does_not_meet_the_kit(
    lance_broker: ScratchBroker, lance_topic: ScratchTopic
) -> None:
    # Longer than a test may take: what meets it never ends.
    lance_broker.faults.delay(3600)
    lance_topic.fill(["a"])
    lance_topic.assert_holds(["a"])


def test_lost_acks_double_what_a_producer_sends(
    lance_broker: ScratchBroker, lance_topic: ScratchTopic, client: LanceClient
) -> None:
    with Producer(client, lance_topic.name, max_in_flight=1) as producer:
        producer.send("a")
        producer.flush()
        lance_broker.faults.cut_after(1)
        producer.send("b")
        producer.flush()
        assert producer.retried_batches == 1
    lance_topic.assert_holds(["a", "b", "b"], ordered=True)
    with pytest.raises(AssertionError, match=r"doubled \(1\):\n    value 'b': 2 times"):
        lance_topic.assert_holds(["a", "b"])


def test_cut_requests_are_sent_again(
    lance_broker: ScratchBroker, lance_topic: ScratchTopic, client: LanceClient
) -> None:
    with Producer(client, lance_topic.name) as producer:
        lance_broker.faults.cut_after(20, times=3, towards="broker")
        producer.send("a")
        producer.flush()
    lance_topic.assert_holds(["a"])


def test_cut_that_is_taken_back(
    lance_broker: ScratchBroker, client: LanceClient
) -> None:
    before = client.connection()
    lance_broker.faults.cut_after(1).end()
    client.topics()
    assert client.connection() is before


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("delay", (-1,), {}),
        ("delay", (float("nan"),), {}),
        ("cut_after", (-1,), {}),
        ("cut_after", (1,), {"times": 0}),
        ("cut_after", (1,), {"towards": "server"}),
    ],
)
def test_what_can_not_be(
    lance_broker: ScratchBroker, name: str, arguments: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(OptionError, match="give "):
        getattr(lance_broker.faults, name)(*arguments, **options)


# The disk.


def test_full_disk(
    lance_broker: ScratchBroker, lance_topic: ScratchTopic, client: LanceClient
) -> None:
    lance_topic.fill(["a"])
    with lance_broker.faults.fill_disk():
        with pytest.raises(Undelivered, match="No space left on device"):
            lance_topic.fill(["b"])
        with pytest.raises(LanceError, match="No space left on device"):
            client.create_topic("other")
        # What is there can be read.
        lance_topic.assert_holds(["a"])
    lance_topic.fill(["c"])
    lance_topic.assert_holds(["a", "c"], ordered=True)
    assert client.create_topic("other").name == "other"


def test_room_on_the_disk(
    lance_broker: ScratchBroker, lance_topic: ScratchTopic
) -> None:
    fault = lance_broker.faults.fill_disk()
    lance_broker.faults.free_disk()
    lance_topic.fill(["a"])
    fault.end()
    lance_topic.assert_holds(["a"])


# The process.


def test_killed_and_started_again(lance_broker_process: ScratchBroker) -> None:
    broker, topic = lance_broker_process, lance_broker_process.topic("t")
    with LanceClient(broker.address, **QUICK) as client:
        client.create_topic("t")
        with Producer(client, "t") as producer:
            producer.send("a")
            producer.flush()
            pid = broker.broker.pid  # type: ignore[union-attr]
            broker.faults.kill_and_restart()
            assert broker.broker.pid != pid  # type: ignore[union-attr]
            producer.send("b")
            producer.flush()
            with broker.faults.kill():
                assert not broker.broker.is_running
                producer.send("c")
            producer.flush()
    topic.assert_holds(["a", "b", "c"], ordered=True)
    with pytest.raises(OptionError, match=r"fill_disk: .* use run_broker"):
        broker.faults.fill_disk()


def test_killed_until_the_end(lance_broker_process: ScratchBroker) -> None:
    """Whoever ends the fixture finds it running, and it stops as it should."""
    lance_broker_process.faults.kill()
    lance_broker_process.faults.clear()
    assert lance_broker_process.broker.is_running
    lance_broker_process.faults.kill()


def test_a_broker_of_this_process_can_not_be_killed(
    lance_broker: ScratchBroker,
) -> None:
    with pytest.raises(OptionError, match="use run_broker_process or the fixture"):
        lance_broker.faults.kill_and_restart()


def make_file(disk: ScratchDisk, path: Path) -> File:
    file = disk.open(path, create=True)
    file.pwrite(b"abc", 0)
    return file


def refused(do: Callable[[], object]) -> bool:
    try:
        do()
    except OSError as error:
        assert error.errno == errno.ENOSPC
        assert error.filename
        return True
    return False


def test_empty_disk_takes_everything(tmp_path: Path) -> None:
    disk = ScratchDisk()
    file = make_file(disk, tmp_path / "a")
    file.truncate(10)
    disk.mkdir(tmp_path / "b")
    assert (file.size(), file.pread(3, 0)) == (10, b"abc")
    file.close()


def test_full_disk_refuses_what_needs_room(tmp_path: Path) -> None:
    disk = ScratchDisk()
    file = make_file(disk, tmp_path / "a")
    disk.fill()
    assert disk.is_full
    assert refused(lambda: file.pwrite(b"d", 3))
    assert refused(lambda: file.pwrite(b"xx", 2))
    assert refused(lambda: file.truncate(4))
    assert refused(lambda: disk.open(tmp_path / "b", create=True))
    assert refused(lambda: disk.mkdir(tmp_path / "c"))
    assert file.pread(10, 0) == b"abc"
    assert sorted(entry.name for entry in disk.list(tmp_path)) == ["a"]
    file.close()


def test_full_disk_takes_what_needs_none(tmp_path: Path) -> None:
    disk = ScratchDisk()
    (tmp_path / "there").mkdir()
    file = make_file(disk, tmp_path / "a")
    disk.fill()
    file.pwrite(b"x", 1)
    file.sync()
    file.truncate(2)
    disk.mkdir(tmp_path / "there")
    file.close()
    assert disk.open(tmp_path / "a", write=False).pread(9, 0) == b"ax"
    disk.replace(tmp_path / "a", tmp_path / "b")
    disk.unlink(tmp_path / "b")


def test_room_is_made(tmp_path: Path) -> None:
    disk = ScratchDisk()
    file = make_file(disk, tmp_path / "a")
    disk.fill()
    with pytest.raises(OSError):
        file.pwrite(b"d", 3)
    disk.free()
    file.pwrite(b"d", 3)
    assert file.pread(9, 0) == b"abcd"
    file.close()
