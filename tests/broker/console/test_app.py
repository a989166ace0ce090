"""The requests of the console, over real HTTP."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import quote

import pytest

from lance_spark import __version__
from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.access import Policy, Principal
from lance_spark.broker.console import app as module
from lance_spark.broker.console.app import FAILURES_BURST, SESSION_S, Visitors
from lance_spark.broker.console.records import Query
from lance_spark.broker.gate import Gate
from lance_spark.errors import AuthenticationFailed, RateLimited, StoreClosed
from tests.broker.console.visit import Answer, Visitor, add_topic, keyed
from tests.broker.kit import (
    PATIENCE_S,
    Client,
    StartBroker,
    record,
    records,
    running,
)

NAMES = [
    "events",
    "two words",
    "grüße",
    "100%",
    "a%2Fb",
    "?#&=+;",
    "日本",
    ".hidden",
    "%",
]


# Topics.


def test_overview(broker: EmbeddedBroker, visitor: Visitor) -> None:
    add_topic(broker, "b", records("x", 10), records("y", 5))
    add_topic(broker, "a")
    found = visitor.get("/api/overview")
    assert sorted(found) == [
        *("broker", "health", "hidden_topics", "tick", "time_ms", "topics"),
        *("traffic", "uptime_s"),
    ]
    assert found["broker"]["address"] == broker.address
    assert found["broker"]["version"] == __version__
    assert found["broker"]["dialect"] == "lwp" and found["broker"]["fsync"] == "none"
    assert not found["broker"]["tls"] and not found["broker"]["tokens"]
    assert found["broker"]["data_dir"] == str(broker.data_dir)
    free, total = (found["broker"][f"disk_{n}_bytes"] for n in ("free", "total"))
    assert 0 < free <= total
    assert found["hidden_topics"] == 0
    assert sorted(found["traffic"]) == [
        *("bytes_in_per_s", "bytes_out_per_s", "connections", "errors_last_min"),
        *("errors_per_s", "faults_last_min", "records_in_per_s"),
        *("records_out_per_s", "requests_per_s"),
    ]
    empty, full = found["topics"]
    assert (empty["name"], full["name"]) == ("a", "b")
    assert (full["id"], full["records"], full["bytes"]) == (1, 15, 15 * 25)
    assert (full["log_start"], full["log_end"]) == (0, 15 * 25)
    assert full["disk_bytes"] > full["bytes"]
    assert found["broker"]["disk_bytes"] == full["disk_bytes"]
    assert full["retention"] == {"max_age_s": None, "max_bytes": None}
    assert full["last_append_ms"] >= full["created_ms"] > 1.7e12
    assert empty["last_append_ms"] is None and empty["records"] == 0
    assert full["records_in_per_s"] == 0.0 and full["stages"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_names(shared: EmbeddedBroker, guest: Visitor, name: str) -> None:
    path = f"/api/topics/{quote(name, safe='')}"
    answer = guest.ask("POST", "/api/topics", {"name": name})
    assert answer.status == 200 and answer.json["name"] == name
    topic = answer.json["id"]
    shared.service.store.append(topic, record(name.encode()))
    assert guest.get(path)["records"] == 1
    page = guest.get(f"{path}/records")
    assert page["topic"] == name
    assert page["records"][0]["value"]["text"] == name
    assert guest.ask("GET", f"{path}/records/0/value").body == name.encode()
    found = guest.get(f"/api/history?topic={quote(name, safe='')}")
    assert found["interval_s"] == 1.0
    assert guest.ask("PUT", f"{path}/retention", {"max_bytes": 5}).status == 200
    assert guest.ask("DELETE", path).json == {}
    assert guest.ask("GET", path).kind == "TopicNotFound"


def test_partitions(broker: EmbeddedBroker, visitor: Visitor) -> None:
    """Their names have a slash, whether a URL has it encoded or not."""
    broker.service.create_topics(Principal(), "orders", 2)
    found = broker.service.store.find_topic("orders/1")
    assert found is not None
    broker.service.store.append(found.metadata.id, record(b"x"))
    names = [topic["name"] for topic in visitor.get("/api/overview")["topics"]]
    assert names == ["orders/0", "orders/1"]
    for path in ("/api/topics/orders%2F1", "/api/topics/orders/1"):
        assert visitor.get(path)["name"] == "orders/1"
        page = visitor.get(f"{path}/records")
        assert page["topic"] == "orders/1" and len(page["records"]) == 1
        assert visitor.ask("GET", f"{path}/records/0/value").body == b"x"
        # One partition can't be changed alone, and the text says so.
        for answer in (
            visitor.ask("PUT", f"{path}/retention", {"max_bytes": 5}),
            visitor.ask("DELETE", path),
        ):
            assert answer.status == 400
            assert "is a partition of topic 'orders'" in answer.json["error"]["text"]
    assert visitor.get("/api/history?topic=orders%2F1")["points"] is not None
    for path in ("orders", "orders/2", "orders/1/2", "orders/x"):
        answer = visitor.ask("GET", f"/api/topics/{path}")
        assert (answer.status, answer.kind) == (404, "TopicNotFound"), path
    # The topic goes as a whole.
    assert visitor.ask("DELETE", "/api/topics/orders").json == {}
    assert visitor.get("/api/overview")["topics"] == []
    assert visitor.ask("DELETE", "/api/topics/orders").kind == "TopicNotFound"


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", "x" * 256, "a\x00b", "a\nb", "\ud800"]
)
def test_names_that_no_topic_can_have(guest: Visitor, name: str) -> None:
    answer = guest.ask("POST", "/api/topics", {"name": name})
    assert (answer.status, answer.kind) == (400, "InvalidTopicName")
    if name != "\ud800" and name:
        path = f"/api/topics/{quote(name, safe='')}"
        assert guest.ask("GET", path).status == 404
        assert guest.ask("GET", f"{path}/records").status == 404


def test_the_default_topic(broker: EmbeddedBroker, visitor: Visitor) -> None:
    assert visitor.get("/api/overview")["topics"] == []
    broker.service.store.append(0, record(b"x"))
    (topic,) = visitor.get("/api/overview")["topics"]
    assert (topic["id"], topic["name"], topic["records"]) == (0, "", 1)
    assert visitor.get("/api/topics/")["id"] == 0
    assert len(visitor.records("")["records"]) == 1
    assert visitor.ask("GET", "/api/topics//records/0/value").body == b"x"
    assert visitor.ask("DELETE", "/api/topics/").status == 400


def test_one_topic(broker: EmbeddedBroker, visitor: Visitor) -> None:
    add_topic(broker, "t", records("x", 3))
    broker.service.store.commit_offset(7, 1, 25)
    broker.service.store.open_stage("t", "writer", 1)
    found = visitor.get("/api/topics/t")
    overview = visitor.get("/api/overview")["topics"][0]
    assert overview.items() <= found.items()
    assert found.keys() - overview.keys() == {"segments", "consumers", "rule"}
    assert (found["segments"], found["consumers"], found["stages"]) == (1, 1, 1)
    assert found["rule"] is None


# Records; what pages hold is tested with the store.


def test_pages(broker: EmbeddedBroker, visitor: Visitor) -> None:
    batch = b"".join(keyed(b"k%d" % (n % 3), b"%d" % n) for n in range(10))
    add_topic(broker, "t", batch)
    page = visitor.records("t", limit=4, from_="end")
    assert [row["value"]["text"] for row in page["records"]] == ["6", "7", "8", "9"]
    before = visitor.records("t", limit=4, from_=f"offset:{page['previous_offset']}")
    assert before["next_offset"] == page["first_offset"]
    found = visitor.records("t", key="k1")
    assert [row["value"]["text"] for row in found["records"]] == ["1", "4", "7"]
    found = visitor.records("t", search="8", from_="time:2020-01-01T00:00:00+01:00")
    assert [row["record"] for row in found["records"]] == [8]


def test_parameters_that_can_not_be(broker: EmbeddedBroker, visitor: Visitor) -> None:
    add_topic(broker, "t")
    for query in ("limit=0", "limit=x", "from=x", "from=time:x"):
        answer = visitor.ask("GET", f"/api/topics/t/records?{query}")
        assert (answer.status, answer.kind) == (400, "BadRequest")


def test_values(broker: EmbeddedBroker, visitor: Visitor) -> None:
    large = bytes(range(256)) * 40_000
    add_topic(broker, "t", record(b"<script>") + record(large))
    answer = visitor.ask("GET", "/api/topics/t/records/0/value")
    assert answer.status == 200 and answer.body == b"<script>"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == (
        'attachment; filename="record-0.bin"'
    )
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    answer = visitor.ask("GET", "/api/topics/t/records/13/value")
    assert answer.body == large
    for offset in ("1", "99999999", str(2**70), "x", "-1"):
        path = f"/api/topics/t/records/{offset}/value"
        assert visitor.ask("GET", path).status == 404, offset


def test_only_so_many_read_at_once(
    broker: EmbeddedBroker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_topic(broker, "t", record(b"x"))
    reading, go_on = threading.Semaphore(0), threading.Event()
    real = module.read_page

    def read_page(*args: Any) -> Any:
        reading.release()
        assert go_on.wait(PATIENCE_S)
        return real(*args)

    monkeypatch.setattr(module, "_READ_WAIT_S", 0.01)
    monkeypatch.setattr(module, "read_page", read_page)
    with ExitStack() as stack:
        waits = [
            stack.enter_context(running(lambda: visitor.records("t")))
            for _ in range(module._READS_MAX)
        ]
        for _ in waits:
            assert reading.acquire(timeout=PATIENCE_S)
        answer = visitor.ask("GET", "/api/topics/t/records")
        go_on.set()
        assert (answer.status, answer.kind) == (503, "Backpressure")
        for wait in waits:
            assert len(wait()["records"]) == 1
    assert len(visitor.records("t")["records"]) == 1


def test_who_waits_to_read_does_not_hold_up_the_end(
    broker: EmbeddedBroker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_topic(broker, "t", record(b"x"))
    reading, go_on = threading.Semaphore(0), threading.Event()

    def read_page(*args: Any) -> dict[str, Any]:
        reading.release()
        assert go_on.wait(PATIENCE_S)
        return {}

    def ask() -> Answer:
        return visitor.ask("GET", "/api/topics/t/records")

    def parse_query(fields: Any) -> Query:
        asked.release()
        return Query()

    asked = threading.Semaphore(0)
    monkeypatch.setattr(module, "_READ_WAIT_S", 100 * PATIENCE_S)
    monkeypatch.setattr(module, "read_page", read_page)
    monkeypatch.setattr(module, "parse_query", parse_query)
    with ExitStack() as stack:
        stack.callback(go_on.set)
        for _ in range(module._READS_MAX):
            stack.enter_context(running(ask))
            assert reading.acquire(timeout=PATIENCE_S)
            assert asked.acquire(timeout=PATIENCE_S)
        waiting = stack.enter_context(running(ask))
        assert asked.acquire(timeout=PATIENCE_S)
        stack.enter_context(running(broker.stop))
        # Before those who read are done.
        answer = waiting()
        assert (answer.status, answer.kind) == (503, "ClusterNotReady")
        go_on.set()


def test_only_so_many_large_answers_wait(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LARGE_MAX", 2)
    broker = start(ui=True)
    visitor = Visitor(broker)
    # More than sockets keep, so that who does not read is waited for.
    add_topic(broker, "t", record(bytes(15 * 2**20)) + record(b"small"))
    path = "/api/topics/t/records/0/value"
    with ExitStack() as stack:
        for _ in range(module._LARGE_MAX):
            connection = stack.enter_context(closing(visitor.connect()))
            visitor.send(connection, "GET", path)
            # Its head is here, so that it is counted.
            assert connection.getresponse().status == 200
        answer = visitor.ask("GET", path)
        assert (answer.status, answer.kind) == (503, "Backpressure")
        assert visitor.records("t", limit=1)["records"]
    ends_s = time.monotonic() + PATIENCE_S
    while visitor.ask("GET", path).status == 503:
        assert time.monotonic() < ends_s


# Changing.


def test_admin(broker: EmbeddedBroker, visitor: Visitor) -> None:
    assert visitor.get("/api/session")["admin"] is True
    body = {"name": "t", "max_age_s": 60, "max_bytes": None}
    made = visitor.ask("POST", "/api/topics", body).json
    assert made["retention"] == {"max_age_s": 60, "max_bytes": None}
    again = visitor.ask("POST", "/api/topics", {"name": "t"})
    assert (again.status, again.kind) == (400, "TopicAlreadyExists")
    body = {"max_age_s": None, "max_bytes": 1000}
    changed = visitor.ask("PUT", "/api/topics/t/retention", body).json
    assert changed["retention"] == {"max_age_s": None, "max_bytes": 1000}
    store = broker.service.store
    assert store.topic(made["id"]).metadata.retention.max_bytes == 1000
    for sequence in (1, 1, 2):
        store.open_stage("t", "writer", sequence)
    body = {"writer": "writer", "sequence": 1}
    assert visitor.ask("POST", "/api/stages/abort", body).json == {"dropped": 2}
    assert [stage.metadata.job.sequence for stage in store.stages()] == [2]
    assert visitor.ask("DELETE", "/api/topics/t").json == {}
    assert store.topics() == []
    assert visitor.ask("DELETE", "/api/topics/t").kind == "TopicNotFound"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/topics", b""),
        ("POST", "/api/topics", b"{"),
        ("POST", "/api/topics", b"\xff"),
        ("POST", "/api/topics", b"[" * 10_000),
        ("POST", "/api/topics", b"[]"),
        ("POST", "/api/topics", {}),
        ("POST", "/api/topics", {"name": 5}),
        ("POST", "/api/topics", {"name": "t", "max_bytes": -1}),
        ("POST", "/api/topics", {"name": "t", "max_bytes": True}),
        ("POST", "/api/topics", {"name": "t", "max_bytes": 1.5}),
        ("POST", "/api/topics", {"name": "t", "max_age_s": 2**64}),
        ("POST", "/api/stages/abort", {"writer": "w"}),
        ("POST", "/api/stages/abort", {"sequence": 1}),
        ("POST", "/api/session", {}),
    ],
)
def test_bodies_that_can_not_be(
    shared: EmbeddedBroker, guest: Visitor, method: str, path: str, body: object
) -> None:
    answer = guest.ask(method, path, body)
    assert (answer.status, answer.kind) == (400, "BadRequest")
    assert shared.service.store.topics() == []


def test_read_only_unless_told(start: StartBroker) -> None:
    broker = start(ui=True)
    add_topic(broker, "t")
    visitor = Visitor(broker)
    assert visitor.get("/api/session")["admin"] is False
    for method, path, body in (
        ("POST", "/api/topics", {"name": "new"}),
        ("PUT", "/api/topics/t/retention", {"max_bytes": 1}),
        ("DELETE", "/api/topics/t", None),
        ("POST", "/api/stages/abort", {"writer": "w", "sequence": 1}),
    ):
        answer = visitor.ask(method, path, body)
        assert (answer.status, answer.kind) == (403, "AccessDenied")
        assert "ui_admin" in answer.json["error"]["text"]
    (topic,) = broker.service.store.topics()
    assert topic.metadata.retention.max_bytes == 0


# Tokens.

PRIVATE = [
    *("/api/overview", "/api/events", "/api/history", "/api/history?topic=t"),
    *("/api/topics/t", "/api/topics/t/records", "/api/topics/t/records/0/value"),
    *("/api/topics/none", "/api/consumers", "/api/stages"),
]


def test_tokens(start: StartBroker) -> None:
    broker = start(ui=True, ui_admin=True, tokens=["secret", "other"])
    add_topic(broker, "t", record(b"x"))
    visitor = Visitor(broker)
    session = visitor.get("/api/session")
    assert session == {
        "needs_token": True,
        "signed_in": False,
        "admin": False,
        "version": __version__,
        "address": broker.address,
    }
    for path in PRIVATE:
        answer = visitor.ask("GET", path)
        assert (answer.status, answer.kind) == (401, "AuthenticationRequired"), path
    assert visitor.ask("POST", "/api/topics", {"name": "n"}).status == 401
    answer = visitor.ask("POST", "/api/session", {"token": "wrong"})
    assert (answer.status, answer.kind) == (401, "AuthenticationFailed")
    assert visitor.cookie is None

    answer = visitor.ask("POST", "/api/session", {"token": "secret"})
    assert answer.json == {**session, "signed_in": True, "admin": True}
    cookie = answer.headers["Set-Cookie"]
    name = f"lance_session_{visitor.host.rpartition(':')[2]}"
    assert cookie.startswith(f"{name}=") and "secret" not in cookie
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert "Secure" not in cookie and "Path=/" in cookie
    assert visitor.get("/api/overview")["broker"]["tokens"] is True
    assert visitor.records("t")["records"]
    assert visitor.ask("POST", "/api/topics", {"name": "n"}).status == 200

    kept = visitor.cookie
    assert visitor.ask("DELETE", "/api/session").json == session
    visitor.cookie = kept
    assert visitor.ask("GET", "/api/overview").status == 401
    visitor.cookie = f"{name}=guess"
    assert visitor.ask("GET", "/api/overview").status == 401


def test_consoles_of_one_host_have_sessions_of_their_own(start: StartBroker) -> None:
    visitors = [Visitor(start(ui=True, tokens=["secret"])) for _ in range(2)]
    jar = {}
    for visitor in visitors:
        visitor.ask("POST", "/api/session", {"token": "secret"})
        assert visitor.cookie is not None
        # As browsers have it: by host and name, whatever the port.
        jar[visitor.cookie.partition("=")[0]] = visitor.cookie
    for visitor in visitors:
        visitor.cookie = "; ".join(jar.values())
        assert visitor.get("/api/session")["signed_in"]


def test_guesses_are_slowed_down(start: StartBroker) -> None:
    visitor = Visitor(start(ui=True, tokens=["secret"]))
    statuses = [
        visitor.ask("POST", "/api/session", {"token": "x"}).status
        for _ in range(FAILURES_BURST + 1)
    ]
    assert statuses == [401] * FAILURES_BURST + [429]


def test_without_tokens_everybody_is_somebody(visitor: Visitor) -> None:
    session = visitor.get("/api/session")
    assert not session["needs_token"] and not session["signed_in"]


# Rules.


def test_topics_for_certificates_are_hidden(start: StartBroker) -> None:
    rule = {"auth": {"mtls_enabled": True, "allowed_cns": ["billing"]}}
    broker = start(ui=True, ui_admin=True, topics={"payments": rule, "events": {}})
    visitor = Visitor(broker)
    store = broker.service.store
    payments = store.find_topic("payments")
    assert payments is not None
    store.append(payments.metadata.id, record(b"secret"))
    store.commit_offset(1, payments.metadata.id, 3)
    store.open_stage("payments", "writer", 1)
    store.open_stage("events", "writer", 2)
    found = visitor.get("/api/overview")
    assert [topic["name"] for topic in found["topics"]] == ["events"]
    assert found["hidden_topics"] == 1
    (note,) = found["health"]["notes"]
    assert "1 topic has an access rule and TLS is off" in note["text"]
    for path in ("", "/records", "/records/0/value"):
        answer = visitor.ask("GET", f"/api/topics/payments{path}")
        assert (answer.status, answer.kind) == (403, "AccessDenied")
    assert visitor.ask("GET", "/api/history?topic=payments").status == 403
    assert visitor.get("/api/consumers")["consumers"] == []
    assert [s["topic"] for s in visitor.get("/api/stages")["stages"]] == ["events"]
    assert visitor.ask("DELETE", "/api/topics/payments").status == 403
    body = {"writer": "writer", "sequence": 1}
    assert visitor.ask("POST", "/api/stages/abort", body).status == 403
    assert len(store.stages()) == 2


# The rest.


def test_traffic_is_seen(broker: EmbeddedBroker, visitor: Visitor) -> None:
    assert broker._console is not None
    sampler = broker._console._sampler
    # It must not look by itself between what happens and what is asked.
    sampler.stop()
    with Client(broker.address) as client:
        topic = client.create("t")
        client.write(topic, records("x", 4), count=4)
        client.read(topic)
        sampler.sample()
        overview = visitor.get("/api/overview")
    assert overview["traffic"]["connections"] == 1
    assert overview["traffic"]["requests_per_s"] > 0
    (found,) = overview["topics"]
    assert found["records_in_per_s"] > 0 and found["bytes_out_per_s"] > 0
    points = visitor.get("/api/history?topic=t")["points"]
    assert any(point[1] > 0 for point in points)
    assert len(points) == len(visitor.get("/api/history")["points"])
    assert visitor.ask("GET", "/api/history?topic=none").status == 404
    # Looking is no traffic of the topic.
    visitor.records("t")
    assert broker.metrics.snapshot().topics[topic].records_out == 4


@pytest.mark.parametrize("path", ["/api", "/api/none", "/none", "/api/topics"])
def test_what_there_is_not(guest: Visitor, path: str) -> None:
    answer = guest.ask("GET", path)
    assert answer.status in (404, 405) and answer.kind in ("NotFound", "BadRequest")


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd"]
)
def test_only_files_of_the_page(guest: Visitor, path: str) -> None:
    assert guest.ask("GET", f"/static/{path}").status == 404


def test_the_page(guest: Visitor) -> None:
    answer = guest.ask("GET", "/")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/html")


def test_a_broker_that_stops(
    broker: EmbeddedBroker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*args: object) -> None:
        raise StoreClosed("/data: the store is closed")

    monkeypatch.setattr(broker.service, "topics", closed)
    answer = visitor.ask("GET", "/api/overview")
    assert (answer.status, answer.kind) == (503, "ClusterNotReady")


def test_a_bug_is_told_without_details(
    broker: EmbeddedBroker,
    visitor: Visitor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(broker.service, "topics", fail)
    answer = visitor.ask("GET", "/api/overview")
    assert (answer.status, answer.kind) == (500, "InternalError")
    assert b"secret" not in answer.body
    assert "ZeroDivisionError: secret" in caplog.text
    assert visitor.get("/api/session")


class Scene:
    """Visitors of a gate with one token, and the time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        gate = Gate(None, policy=Policy(token_required=True), tokens=["good"])  # type: ignore[arg-type]
        self.visitors = Visitors(gate.authenticate, lambda: self.now_s)

    def sign_in(self, token: str = "good", peer: str = "here") -> str:
        return self.visitors.sign_in(token, peer=peer)


def test_in_and_out() -> None:
    scene = Scene()
    session = scene.sign_in()
    assert scene.visitors.is_signed_in(session)
    assert "good" not in session and len(session) > 40
    assert scene.sign_in() != session
    scene.visitors.sign_out(session)
    assert not scene.visitors.is_signed_in(session)
    scene.visitors.sign_out(session)
    scene.visitors.sign_out(None)


@pytest.mark.parametrize("session", [None, "", "guess"])
def test_who_never_came(session: str | None) -> None:
    scene = Scene()
    scene.sign_in()
    assert not scene.visitors.is_signed_in(session)


def test_sessions_end() -> None:
    scene = Scene()
    session = scene.sign_in()
    scene.now_s = SESSION_S - 1.0
    assert scene.visitors.is_signed_in(session)
    scene.now_s = SESSION_S
    assert not scene.visitors.is_signed_in(session)
    assert scene.visitors._sessions == {}


def test_number_of_sessions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 2)
    scene = Scene()
    first, second, third = (scene.sign_in() for _ in range(3))
    assert [scene.visitors.is_signed_in(s) for s in (first, second, third)] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("token", ["bad", "", "\ud800", "gooḍ"])
def test_wrong_tokens(token: str) -> None:
    with pytest.raises(AuthenticationFailed):
        Scene().sign_in(token)


def test_guessing_is_slow() -> None:
    scene = Scene()
    for _ in range(FAILURES_BURST):
        with pytest.raises(AuthenticationFailed):
            scene.sign_in("bad")
    # Not even the right one: else a guess would cost nothing.
    with pytest.raises(RateLimited) as limited:
        scene.sign_in()
    wait_ms = limited.value.details["retry_after_ms"]
    assert 0 < wait_ms <= 1000 * module.FAILURE_INTERVAL_S + 1
    # Others are not held up.
    assert scene.sign_in(peer="there")
    scene.now_s += wait_ms / 1000
    assert scene.sign_in()
    for _ in range(FAILURES_BURST):
        with pytest.raises(AuthenticationFailed):
            scene.sign_in("bad")


def test_suspects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SUSPECTS_MAX", 3)
    scene = Scene()
    for number in range(10):
        with pytest.raises(AuthenticationFailed):
            scene.sign_in("bad", peer=str(number))
    assert list(scene.visitors._suspects) == ["7", "8", "9"]
