"""Where to start and to stop."""

from __future__ import annotations

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli.place import find_end, find_start, parse_end, parse_start
from lance_spark.client import LanceClient, Producer, SeekPosition
from lance_spark.errors import OptionError, Unsupported


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", SeekPosition.BEGINNING),
        ("end", SeekPosition.END),
        ("0", SeekPosition.offset(0)),
        ("4096", SeekPosition.offset(4096)),
        ("1970-01-01T00:00:01Z", SeekPosition.time_ns(1_000_000_000)),
    ],
)
def test_start(text: str, position: SeekPosition) -> None:
    assert parse_start(text) == position


@pytest.mark.parametrize("text", ["", "start", "-1", "\u0661", str(2**64)])
def test_no_start(text: str) -> None:
    with pytest.raises(OptionError):
        parse_start(text)
    with pytest.raises(OptionError):
        parse_end(text)


def test_end() -> None:
    assert parse_end("end") is SeekPosition.END
    assert parse_end("7") == SeekPosition.offset(7)
    with pytest.raises(OptionError, match="give end, or an offset"):
        parse_end("2024-05-01")


@pytest.fixture
def filled(client: LanceClient, topic: str) -> str:
    """Two records of ten bytes."""
    with Producer(client, topic) as producer:
        producer.send(b"12345")
        producer.send(b"67890")
    return topic


@pytest.mark.parametrize(
    ("position", "start", "note"),
    [
        (SeekPosition.BEGINNING, 0, None),
        (SeekPosition.END, 20, None),
        (SeekPosition.offset(10), 10, None),
        (SeekPosition.offset(20), 20, None),
        (SeekPosition.offset(3), 10, "offset 3 is inside a record, starting at 10"),
        (SeekPosition.offset(99), 20, "offset 99 is not there yet, starting at 20"),
        (SeekPosition.time_ns(0), 0, None),
        (SeekPosition.time_ns(2**63), 20, None),
    ],
)
def test_find_start(
    client: LanceClient,
    filled: str,
    position: SeekPosition,
    start: int,
    note: str | None,
) -> None:
    assert find_start(client, filled, position) == (start, note)


def test_start_that_is_gone(client: LanceClient, filled: str) -> None:
    # An overwrite drops what was there.
    client.open_stage(filled, "overwrite", 1)
    client.commit_stages("overwrite", 1, [], overwrite=[filled])
    assert find_start(client, filled, SeekPosition.BEGINNING) == (20, None)
    found = find_start(client, filled, SeekPosition.offset(10))
    assert found == (20, "offset 10 is not there any more, starting at 20")


def test_find_end(client: LanceClient, filled: str) -> None:
    assert find_end(client, filled, SeekPosition.END) == 20
    assert find_end(client, filled, SeekPosition.offset(10)) == 10


def test_plain_server(plain_server: EmbeddedBroker) -> None:
    with LanceClient(plain_server.address, checksum="crc32") as client:
        client.create_topic("places")
        assert find_start(client, "places", SeekPosition.BEGINNING) == (0, None)
        # Nobody can tell whether a record starts there.
        assert find_start(client, "places", SeekPosition.offset(3)) == (3, None)
        with pytest.raises(Unsupported):
            find_start(client, "places", SeekPosition.time_ns(0))
        client.delete_topic("places")
