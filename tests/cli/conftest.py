"""The command line in this process, and a store to use it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from lance_spark.cli.main import main
from lance_spark.columnar.encode import encode
from lance_spark.columnar.layout import validate
from lance_spark.store import NamedStage, Store

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
