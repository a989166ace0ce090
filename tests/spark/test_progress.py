"""What is read from the progress of a query: documents as Spark has them, no JVM."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from lance_spark.html import UNKNOWN
from lance_spark.spark.progress import StreamProgress, TopicLag, parse_batch
from tests.test_html import Reader

START = datetime(2024, 6, 1, 12, tzinfo=timezone.utc)


def make_document(batch: int, rows: int, *, behind: int = 0) -> dict[str, Any]:
    """Make what Spark tells of a batch; one starts each second and takes half of it."""
    started = START + timedelta(seconds=batch)
    topic = {
        "id": 1,
        "epoch": 7,
        "partitions": {"0": 4096},
        "bytesBehind": behind,
        "recordsBehind": behind // 10,
        "oldestUnreadMs": 2500 if behind else None,
        "retentionHeadroomBytes": None,
        "retentionHeadroomMs": None,
        "bytesLost": 0,
        "recordsLost": None,
    }
    source = {
        "description": "lance",
        "latestOffset": {"version": 1, "topics": {"clicks": topic}},
        "numInputRows": rows,
    }
    return {
        "batchId": batch,
        "timestamp": f"{started:%Y-%m-%dT%H:%M:%S}.250Z",
        "numInputRows": rows,
        "durationMs": {"addBatch": 300, "triggerExecution": 500},
        "sources": [source],
    }


@dataclass
class Told:
    """One entry of `recentProgress`."""

    document: dict[str, Any]

    @property
    def json(self) -> str:
        return json.dumps(self.document)


@dataclass
class Query:
    """A query that has told what it is given."""

    documents: list[dict[str, Any]]
    name: str | None = "pages"
    id: str = "deac01c0"
    isActive: bool = True
    recentProgress: list[Told] = field(init=False)

    def __post_init__(self) -> None:
        self.recentProgress = [Told(document) for document in self.documents]


def read(*documents: dict[str, Any], **fields: Any) -> StreamProgress:
    """Read the progress of a query with these documents."""
    query: Any = Query([*documents], **fields)
    return StreamProgress(query)


def test_a_batch() -> None:
    batch = parse_batch(make_document(3, 100, behind=400))
    assert (batch.batch, batch.rows, batch.duration_s) == (3, 100, 0.5)
    assert batch.started == START + timedelta(seconds=3.25)
    assert batch.ended == START + timedelta(seconds=3.75)
    assert batch.rows_per_s == 200
    assert batch.lag == {"clicks": TopicLag(400, 40, 2500, 0)}
    assert batch.unread_bytes == 400


def test_rates_are_over_the_whole_time() -> None:
    progress = read(*(make_document(n, 100) for n in range(4)))
    # Four batches, from the start of the first to the end of the last: 3.5 s.
    assert progress.rows == 400
    assert progress.rows_per_s == pytest.approx(400 / 3.5)


def test_lag_is_that_of_the_newest_batch() -> None:
    progress = read(make_document(0, 1, behind=90), make_document(1, 1, behind=30))
    assert progress.lag == {"clicks": TopicLag(30, 3, 2500, 0)}
    assert progress.last is progress.batches[1]


def test_history_has_columns_of_the_same_length() -> None:
    history = read(make_document(0, 5, behind=7), make_document(1, 6)).history
    assert history["batch"] == [0, 1]
    assert history["rows"] == [5, 6]
    assert history["rows_per_s"] == [10, 12]
    assert history["unread_bytes"] == [7, 0]
    assert history["unread_records"] == [0, 0]
    assert {len(column) for column in history.values()} == {2}


def test_a_query_that_has_told_nothing() -> None:
    progress = read()
    assert (progress.rows, progress.rows_per_s, progress.last) == (0, 0.0, None)
    assert progress.lag == {}
    assert all(column == [] for column in progress.history.values())
    assert str(progress) == "query pages: running, 0 batches, none done yet"
    assert "none done yet" in Reader(progress._repr_html_()).outside


def test_text() -> None:
    progress = read(make_document(0, 100, behind=1500), isActive=False)
    text = "query pages: ended, 1 batch, 100 rows, 200 rows/s; clicks 1.5 kB behind"
    assert str(progress) == text
    assert repr(progress) == f"<StreamProgress {text}>"


def test_html() -> None:
    documents = [make_document(n, n, behind=1500) for n in range(8)]
    read_html = Reader(read(*documents)._repr_html_())
    assert read_html.rows[1] == ["clicks", "150", "1.5 kB", "2.5 s", "0 bytes"]
    # The newest five batches, and a bar for each of all eight.
    assert [row[0] for row in read_html.rows[3:]] == ["3", "4", "5", "6", "7"]
    assert "▁▂▃▄▅▆▇█" in read_html.outside


def test_a_query_without_a_name_has_its_id() -> None:
    assert str(read(name=None)).startswith("query deac01c0: ")


def test_names_are_escaped() -> None:
    document = make_document(0, 1)
    topics = document["sources"][0]["latestOffset"]["topics"]
    topics["<b>"] = topics.pop("clicks")
    shown = read(document, name="<i>")._repr_html_()
    assert "<b>" not in shown and "<i>" not in shown


@pytest.mark.parametrize(
    "latest",
    [None, "12", 5, {"topics": 3}, {"orders": {"0": 17}}, {"topics": {"x": {"0": 1}}}],
)
def test_other_sources_have_no_lag(latest: object) -> None:
    document = make_document(0, 10)
    document["sources"][0]["latestOffset"] = latest
    assert parse_batch(document).lag == {}
    assert parse_batch(document).rows == 10


def test_two_sources_add_up() -> None:
    document = make_document(0, 10, behind=5)
    other = json.loads(json.dumps(document["sources"][0]).replace("clicks", "orders"))
    document["sources"].append(other)
    assert parse_batch(document).unread_bytes == 10


def count_records(document: dict[str, Any], behind: int, lost: int) -> dict[str, Any]:
    """Make a document one of a format whose positions count records."""
    topic = document["sources"][0]["latestOffset"]["topics"]["clicks"]
    topic.update(bytesBehind=None, bytesLost=None, oldestUnreadMs=None)
    topic.update(recordsBehind=behind, recordsLost=lost)
    return document


@pytest.mark.parametrize(
    ("behind", "lost", "shown"),
    [
        (0, 0, ["0 records", "0 records"]),
        (1, 1, ["1 record", "1 record"]),
        (12_345, 2, ["12,345 records", "2 records"]),
    ],
)
def test_formats_that_count_records(behind: int, lost: int, shown: list[str]) -> None:
    """They have no bytes to show, and 0 bytes would look like no lag at all."""
    document = count_records(make_document(0, 10), behind, lost)
    progress = read(document)
    assert str(progress).endswith(f"; clicks {shown[0]} behind")
    rows = Reader(progress._repr_html_()).rows
    assert rows[1] == ["clicks", f"{behind:,}", shown[0], UNKNOWN, shown[1]]
    assert progress.lag == {"clicks": TopicLag(None, behind, None, None, lost)}
    history = progress.history
    assert history["unread_bytes"] == [None]
    assert history["unread_records"] == [behind]


def test_plain_servers_count_no_records() -> None:
    document = make_document(0, 10, behind=5)
    topic = document["sources"][0]["latestOffset"]["topics"]["clicks"]
    topic.update(recordsBehind=None, oldestUnreadMs=None)
    assert parse_batch(document).lag == {"clicks": TopicLag(5)}
    rows = Reader(read(document)._repr_html_()).rows
    assert rows[1] == ["clicks", UNKNOWN, "5 bytes", UNKNOWN, "0 bytes"]
