"""A visitor of the console: one connection per request, and a cookie."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from lance_spark.broker import EmbeddedBroker
from lance_spark.wire.lwp import RecordType, scan
from lance_spark.wire.lwp.record import Record, encode_record
from tests.broker.kit import PATIENCE_S


class Answer:
    """What came back, read whole."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """The kind of the error that it is."""
        error = self.json["error"]
        assert sorted(error) == ["kind", "remedy", "text"] and error["text"]
        return str(error["kind"])


class Visitor:
    """Sends requests as the console's own page does, unless told otherwise."""

    def __init__(
        self, broker: EmbeddedBroker, tls: ssl.SSLContext | None = None
    ) -> None:
        assert broker.ui_address is not None
        self.host = broker.ui_address
        self.tls = tls
        self.cookie: str | None = None

    @property
    def origin(self) -> str:
        """What a page of the console has as its origin."""
        return f"{'http' if self.tls is None else 'https'}://{self.host}"

    def connect(self) -> http.client.HTTPConnection:
        """Make a connection."""
        host, _, port = self.host.rpartition(":")
        if self.tls is None:
            return http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        return http.client.HTTPSConnection(
            host, int(port), timeout=PATIENCE_S, context=self.tls
        )

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str | None
    ) -> Answer:
        """Send a request; a header that is None is left out."""
        connection = self.connect()
        try:
            self.send(connection, method, path, body, **headers)
            answer = Answer(connection.getresponse())
        finally:
            connection.close()
        found = answer.headers.get("Set-Cookie")
        if found is not None:
            self.cookie = found.split(";")[0]
        return answer

    def send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any = None,
        **headers: str | None,
    ) -> None:
        """Send a request over a connection."""
        sent: dict[str, str | None] = {}
        if method != "GET":
            sent = {"Origin": self.origin, "X-Lance-Console": "1"}
        if self.cookie is not None:
            sent["Cookie"] = self.cookie
        sent.update({name.replace("_", "-"): value for name, value in headers.items()})
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        kept = {name: value for name, value in sent.items() if value is not None}
        # Who refuses a body by its length may close before all of it is sent.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, path, data, kept)

    def get(self, path: str) -> Any:
        """Ask for JSON that has to be there."""
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["Cache-Control"] == "no-store"
        return answer.json

    def records(self, name: str, **fields: object) -> Any:
        """Ask for a page of records."""
        query = "&".join(f"{k}={quote(str(v), safe='')}" for k, v in fields.items())
        query = query.replace("from_=", "from=")
        return self.get(f"/api/topics/{quote(name, safe='')}/records?{query}")


def add_topic(broker: EmbeddedBroker, name: str, *batches: bytes) -> int:
    """Make a topic with batches in it, past everything; give its id."""
    store = broker.service.store
    topic = store.create_topic(name).metadata.id
    for batch in batches:
        store.append(topic, batch, scan(batch).starts)
    return topic


def keyed(key: bytes, value: bytes, *, timestamp_ns: int | None = None) -> bytes:
    """Make a record with a key, and a time if there is one."""
    timed = timestamp_ns is not None
    kind = RecordType.KEY_TIMESTAMPED if timed else RecordType.KEY_VALUE
    return encode_record(Record(kind, value, key, timestamp_ns))
