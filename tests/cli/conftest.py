"""The command line in this process, and stores and servers to use it on."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli.main import main
from lance_spark.client import LanceClient
from lance_spark.columnar.encode import encode
from lance_spark.errors import TopicDeleted, TopicNotFound
from lance_spark.store import NamedStage, Store
from lance_spark.wire.lwp import validate

CONSUMER = 77


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command as the console would, without a process of its own."""

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


ROWS = pa.table(
    {
        "type": pa.array([1, 2, None, None, None, 0xFF, 0x80], pa.int16()),
        "key": [None, None, b"k1", None, b"k2", None, None],
        "timestamp_ns": [
            None,
            None,
            None,
            1_000,
            1_700_000_000_123_456_789,
            None,
            None,
        ],
        "value": [
            b"plain text",
            b'{"a": 1}',
            b"keyed",
            b"timed",
            b"both",
            None,
            b"\x00\xff\x1b[2J",
        ],
    }
)


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """A closed store: `events` with three batches of `ROWS`, one committed stage."""
    path = tmp_path / "store"
    (payload,) = encode(ROWS)
    with Store(path, framing=validate) as store:
        topic = store.create_topic("events").metadata.id
        for _ in range(3):
            store.append(topic, payload.data)
        store.commit_offset(CONSUMER, topic, 16)
        stage = store.open_stage("staged", "writer", 5)
        end = store.append_stage(stage, 1, payload.data).end
        store.commit_stages("writer", 5, [NamedStage(stage, 1, end)])
    return path


@pytest.fixture
def segment(store_path: Path) -> Path:
    """The data file of `events`."""
    (path,) = store_path.glob("segments/1/*.lnc")
    return path


# Servers. One of each kind serves all tests of a run; tests use topics of their own.


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedBroker]:
    """A broker in this process."""
    with EmbeddedBroker(fsync="none") as broker:
        yield broker


@pytest.fixture(scope="session")
def plain_server() -> Iterator[EmbeddedBroker]:
    """A broker that behaves as the LANCE server in the field."""
    with EmbeddedBroker(fsync="none", dialect="plain") as broker:
        yield broker


@pytest.fixture
def client(server: EmbeddedBroker) -> Iterator[LanceClient]:
    with LanceClient(server.address) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest, client: LanceClient) -> Iterator[str]:
    """The name of a topic that is there for one test."""
    name = re.sub("[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:200]
    client.create_topic(name)
    yield name
    with suppress(TopicNotFound, TopicDeleted):
        client.delete_topic(name)


@pytest.fixture
def ask(run: Run, server: EmbeddedBroker) -> Run:
    """Run a command against `server`."""

    def call(*arguments: object) -> Result:
        return run(*arguments, "--servers", server.address)

    return call


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Give the next command something on its standard input."""

    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


@pytest.fixture
def terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make standard output and standard error look like a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
