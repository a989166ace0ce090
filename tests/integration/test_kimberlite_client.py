"""A client that others wrote: `kimberlite` 0.9.1 of PyPI, against a broker's process.

It sends frames of version 5 with the tags of 0.8. It takes no frame above 128 KiB, and
of a push it hands out the first event alone. A conflict it calls an internal error.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lance_spark.client import connect
from lance_spark.testing import BrokerProcess

kimberlite = pytest.importorskip(
    "kimberlite", reason="kimberlite 0.9.1 has no wheel for this machine"
)

pytestmark = pytest.mark.timeout(120)
Value = kimberlite.Value
TENANT = 1
ROOT = Path(__file__).parent.parent.parent
HERE = "127.0.0.1:0"
PUBLIC = kimberlite.DataClass.PUBLIC

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker that serves the protocol."""
    directory = tmp_path_factory.mktemp("kimberlite") / "data"
    with BrokerProcess(directory, kimberlite=HERE, fsync="none") as running:
        yield running


@pytest.fixture
def open_client(broker: BrokerProcess) -> Iterator[Open]:
    """Connect as a tenant."""
    opened: list[Any] = []

    def connect_as(tenant: int = TENANT, token: str | None = None) -> Any:
        address = broker.address_of("kimberlite")
        opened.append(kimberlite.Client.connect([address], tenant, token))
        return opened[-1]

    yield connect_as
    for one in opened:
        one.disconnect()


@pytest.fixture
def client(open_client: Open) -> Any:
    """Connect as the home tenant."""
    return open_client()


_names = itertools.count()


@pytest.fixture
def name() -> str:
    """Name a stream that no other test has."""
    return f"stream_{next(_names)}"


def read_values(client: Any, stream: int, start: int = 0) -> list[bytes]:
    """Read a stream to its end, an answer at a time."""
    values: list[bytes] = []
    while found := client.read(stream, start + len(values)):
        assert found[0].offset == start + len(values)
        values += [event.data for event in found]
    return values


def test_streams_events_and_conflicts(client: Any, name: str) -> None:
    stream = client.create_stream(name, PUBLIC)
    assert client.create_stream(name, PUBLIC) == stream
    assert stream >> 32 == TENANT
    assert client.append(stream, [b"one", b"", b"\xff" * 300], 0) == 0
    with pytest.raises(kimberlite.KimberliteError):
        client.append(stream, [b"too late"], 0)
    assert client.append(stream, [b"four"], 3) == 3
    assert read_values(client, stream) == [b"one", b"", b"\xff" * 300, b"four"]
    assert read_values(client, stream, 2) == [b"\xff" * 300, b"four"]
    assert client.read(stream, 4) == []


def test_every_placement(client: Any, name: str) -> None:
    kinds = kimberlite.Placement
    streams = [
        client.create_stream(name, PUBLIC, kinds.US_EAST_1),
        client.create_stream(name, PUBLIC, kinds.AP_SOUTHEAST_2),
        client.create_stream(name, PUBLIC, kinds.CUSTOM, "attic"),
    ]
    assert len(set(streams)) == 1


def test_two_writers_of_one_place(open_client: Open, name: str) -> None:
    clients = [open_client() for _ in range(4)]
    stream = clients[0].create_stream(name, PUBLIC)
    ready = threading.Barrier(len(clients))

    def append(number: int) -> bool:
        ready.wait(60)
        try:
            clients[number].append(stream, [b"%d" % number], 0)
        except kimberlite.KimberliteError:
            return False
        return True

    with ThreadPoolExecutor(len(clients)) as pool:
        won = list(pool.map(append, range(len(clients))))
    assert won.count(True) == 1
    assert read_values(clients[0], stream) == [b"%d" % won.index(True)]


def test_answers_fit_the_client(client: Any, name: str) -> None:
    stream = client.create_stream(name, PUBLIC)
    values = [bytes([n]) * 60_000 for n in range(20)]
    client.append(stream, values, 0)
    # It asks for 1 MiB by default, and takes frames of 128 KiB.
    assert read_values(client, stream) == values


def test_tenants_do_not_see_each_other(open_client: Open, name: str) -> None:
    home, guest = open_client(), open_client(42)
    streams = [one.create_stream(name, PUBLIC) for one in (home, guest)]
    assert streams[1] >> 32 == 42
    home.append(streams[0], [b"home"], 0)
    guest.append(streams[1], [b"guest"], 0)
    assert read_values(home, streams[0]) == [b"home"]
    assert read_values(guest, streams[1]) == [b"guest"]
    with pytest.raises(kimberlite.StreamNotFoundError):
        guest.read(streams[0])


def test_a_stream_is_a_topic(client: Any, broker: BrokerProcess, name: str) -> None:
    stream = client.create_stream(name, PUBLIC)
    client.append(stream, [b"by kimberlite"], 0)
    with connect(f"lance://{broker.address}") as other:
        other.append(name, [b"by lance"])
        found = [v for b in other.read(name) for v in b["value"].to_pylist()]
    assert found == read_values(client, stream) == [b"by kimberlite", b"by lance"]


@pytest.mark.parametrize(("group", "credits"), [(None, 4), ("readers", 100)])
def test_subscription(client: Any, name: str, group: str | None, credits: int) -> None:
    stream = client.create_stream(name, PUBLIC)
    values = [b"%d" % n for n in range(30)]
    client.append(stream, values[:20], 0)
    with client.subscribe(stream, 0, credits, group) as subscription:
        found = [next(subscription) for _ in range(20)]
        client.append(stream, values[20:], 20)
        found += [next(subscription) for _ in range(10)]
    assert [event.offset for event in found] == list(range(30))
    assert [event.data for event in found] == values
    # The connection serves requests as before.
    assert read_values(client, stream) == values


def test_query_with_each_kind_of_parameter(client: Any, name: str) -> None:
    pytest.importorskip("duckdb")
    stream = client.create_stream(name, PUBLIC)
    client.append(stream, [b"ant", b"bee", b"cat", b"\xff"], 0)
    sql = f'SELECT "offset", "text" FROM {name} WHERE "offset" >= $1 AND "text" <> $2'
    found = client.query(f"{sql} ORDER BY 1", [Value.bigint(1), Value.text("cat")])
    assert list(found.columns) == ["offset", "text"]
    assert [[value.data for value in row] for row in found.rows] == [[1, "bee"]]
    given = [
        Value.null(),
        Value.bigint(-5),
        Value.text("'; DROP TABLE x; --"),
        Value.boolean(True),
        Value.timestamp(1_700_000_000_123_456_789),
    ]
    (row,) = client.query("SELECT $1, $2, $3, $4, $5", given).rows
    assert [value.data for value in row][:4] == [None, -5, given[2].data, True]
    assert row[4].data == given[4].data
    count = f"SELECT count(*) FROM {name}"
    assert client.query_at(count, [], 1).rows[0][0].data == 2
    with pytest.raises(kimberlite.KimberliteError):
        client.query(f"DELETE FROM {name}", [])
    with pytest.raises(kimberlite.KimberliteError):
        client.query("SELECT * FROM read_text('/etc/passwd')", [])
    with pytest.raises(kimberlite.KimberliteError):
        client.query("SELECT nonsense FROM", [])
    assert read_values(client, stream) == [b"ant", b"bee", b"cat", b"\xff"]


def test_tokens(tmp_path: Path) -> None:
    with BrokerProcess(
        tmp_path / "data", kimberlite=HERE, fsync="none", tokens=["secret"]
    ) as broker:
        address = [broker.address_of("kimberlite")]
        with kimberlite.Client.connect(address, TENANT, "secret") as client:
            stream = client.create_stream("events", PUBLIC)
            client.append(stream, [b"one"], 0)
        for token in ("wrong", None):
            with (
                pytest.raises(kimberlite.KimberliteError),
                kimberlite.Client.connect(address, TENANT, token) as client,
            ):
                client.create_stream("events", PUBLIC)


def test_the_page() -> None:
    """The example on the page runs."""
    page = (ROOT / "docs" / "kimberlite.md").read_text(encoding="utf-8")
    source = page.partition("```python not run\n")[2].partition("```")[0]
    assert "import kimberlite" in source
    exec(compile(source, "kimberlite.md", "exec"), {})
