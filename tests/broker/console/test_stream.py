"""The live stream, over real HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.console import stream as module
from lance_spark.broker.console.overview import Overview
from tests.broker.console.visit import Visitor, add_topic
from tests.broker.kit import StartBroker, eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send events a hundred times as often."""
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "_REST", 0.0)


@contextmanager
def listening(visitor: Visitor) -> Iterator[http.client.HTTPResponse]:
    """Open a stream."""
    connection = visitor.connect()
    try:
        visitor.send(connection, "GET", "/api/events")
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield response
    finally:
        connection.close()


def next_event(stream: http.client.HTTPResponse) -> Any:
    """Read an event; None at the end of the stream."""
    kind = stream.readline()
    if not kind:
        return None
    assert kind == b"event: overview\n"
    data, empty = stream.readline(), stream.readline()
    assert data.startswith(b"data: ") and empty == b"\n"
    return json.loads(data[len(b"data: ") :])


def streams_of(broker: EmbeddedBroker) -> int:
    """Count the streams that are open."""
    assert broker._console is not None and broker._console._server is not None
    streams = broker._console._server._server._ending.__self__  # type: ignore[attr-defined]
    assert isinstance(streams, module.Streams)
    return streams._open


def test_events_until_the_end(broker: EmbeddedBroker, visitor: Visitor) -> None:
    with listening(visitor) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        assert stream.headers["Cache-Control"] == "no-store"
        assert next_event(stream)["topics"] == []
        add_topic(broker, "new")
        assert broker._console is not None
        broker._console._sampler.sample()
        # A few may still be as before.
        for _ in range(1000):
            if topics := next_event(stream)["topics"]:
                break
        assert [topic["name"] for topic in topics] == ["new"]
        broker.stop()
        while next_event(stream) is not None:
            pass


def test_an_overview_is_made_once_for_all(
    broker: EmbeddedBroker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    describe = Overview.describe

    def count(self: Overview, client: Any) -> Any:
        made.append(client)
        return describe(self, client)

    monkeypatch.setattr(Overview, "describe", count)
    assert broker._console is not None
    monkeypatch.setattr(broker._console._sampler, "sample", lambda: None)
    with listening(visitor) as first, listening(visitor) as second:
        for _ in range(5):
            assert next_event(first) == next_event(second)
    # Twice at most, if the sampler was just at it.
    assert 1 <= len(made) <= 2


def test_what_takes_long_is_told_less_often(
    broker: EmbeddedBroker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An hour for each byte: there is no second event, and the end comes all the same.
    monkeypatch.setattr(module, "_BYTES_PER_S", 1 / 3600)
    with listening(visitor) as stream:
        assert next_event(stream)
        broker.stop()
        assert next_event(stream) is None


def test_a_stream_that_can_not_begin_is_not_counted(start: StartBroker) -> None:
    broker = start(ui=True, tokens=["secret"])
    visitor = Visitor(broker)
    assert visitor.ask("GET", "/api/events").status == 401
    assert streams_of(broker) == 0


def test_who_leaves_is_forgotten(broker: EmbeddedBroker, visitor: Visitor) -> None:
    with listening(visitor) as stream:
        next_event(stream)
        assert streams_of(broker) == 1
    assert eventually(lambda: streams_of(broker) == 0)


def test_number_of_streams_is_bounded(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 2)
    broker = start(ui=True)
    visitor = Visitor(broker)
    with listening(visitor) as first, listening(visitor) as second:
        assert next_event(first) and next_event(second)
        answer = visitor.ask("GET", "/api/events")
        assert (answer.status, answer.kind) == (503, "ConnectionLimit")
    assert eventually(lambda: streams_of(broker) == 0)
    with listening(visitor) as third:
        assert next_event(third)


def test_signing_out_ends_it(start: StartBroker) -> None:
    broker = start(ui=True, tokens=["secret"])
    visitor, other = Visitor(broker), Visitor(broker)
    for each in (visitor, other):
        assert each.ask("POST", "/api/session", {"token": "secret"}).status == 200
    with listening(visitor) as stream, listening(other) as stays:
        assert next_event(stream) and next_event(stays)
        assert visitor.ask("DELETE", "/api/session").status == 200
        while next_event(stream) is not None:
            pass
        assert next_event(stays)
