"""Clients without permission: every command is tried, none gets through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import Consumer, LanceClient, Producer, StageWriter
from lance_spark.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    ConnectionLost,
    LanceError,
    StageNotFound,
    TopicNotFound,
    Undelivered,
)
from lance_spark.wire import lwp
from lance_spark.wire.lwp import Message
from tests.integration.certificate import Certificates
from tests.integration.examples import EXAMPLES, GROUP, WRITER
from tests.integration.kit import Raw, make_client, read_values, record

RECORD = record(b"hello")
TOKEN = "open sesame"


def test_every_request_has_an_example() -> None:
    """A new command can't be forgotten here."""
    assert set(EXAMPLES) == set(lwp.REQUESTS.values())


# Tokens.


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedBroker]:
    """A broker that wants a token."""
    with EmbeddedBroker(fsync="none", tokens=("another", TOKEN)) as running:
        with (
            make_client(running.address, auth_token=TOKEN) as client,
            Producer(client, "secret", create_topic=True) as producer,
        ):
            producer.send(b"treasure")
        yield running


@pytest.fixture
def owner(guarded: EmbeddedBroker) -> Iterator[LanceClient]:
    with make_client(guarded.address, auth_token=TOKEN) as client:
        yield client
        assert read_values(client, "secret") == [b"treasure"]
        assert [info.name for info in client.topics()] == ["secret"]


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_no_command_without_a_token(
    guarded: EmbeddedBroker, owner: LanceClient, kind: type[Message]
) -> None:
    message = EXAMPLES[kind]("secret", owner.topic_id("secret"))
    with Raw(guarded.address) as raw:
        answer = raw.ask(message)
        if kind is lwp.Authenticate:
            assert isinstance(answer, lwp.AuthenticateResponse) and not answer.ok
            return
        assert isinstance(answer, lwp.ErrorResponse), answer
        assert answer.code == lwp.code_of(AuthenticationRequired)
        # A wrong token changes nothing.
        assert not raw.ask(lwp.Authenticate("wrong")).ok  # type: ignore[attr-defined]
        again = raw.ask(message)
        assert isinstance(again, lwp.ErrorResponse)
        assert again.code == lwp.code_of(AuthenticationRequired)


def test_every_command_number_needs_a_token(guarded: EmbeddedBroker) -> None:
    """Also those that share a message, and those that there are not."""
    with Raw(guarded.address) as raw:
        for command in {*range(0x100), *lwp.REQUESTS} - {lwp.Command.AUTHENTICATE}:
            kind = lwp.REQUESTS.get(command)
            payload = EXAMPLES[kind]("secret", 1).encode_payload() if kind else [b"x"]
            raw.send(*lwp.encode_control(command, payload))
            answer = raw.answer()
            assert isinstance(answer, lwp.ErrorResponse), hex(command)


def test_no_ingest_without_a_token(guarded: EmbeddedBroker, owner: LanceClient) -> None:
    with Raw(guarded.address) as raw:
        raw.ingest(RECORD, topic_id=owner.topic_id("secret"))
        answer = raw.answer()
        assert isinstance(answer, lwp.ErrorResponse)
        assert answer.code == lwp.code_of(AuthenticationRequired)
        # A keepalive is the one thing that needs none.
        raw.send(lwp.encode_keepalive())
        assert str(raw.frame()) == "keepalive"


def test_guessing_ends(guarded: EmbeddedBroker) -> None:
    with Raw(guarded.address) as raw:
        for _ in range(3):
            assert not raw.ask(lwp.Authenticate("guess")).ok  # type: ignore[attr-defined]
        assert raw.is_ended()


def test_clients_are_told(guarded: EmbeddedBroker) -> None:
    with (
        make_client(guarded.address) as client,
        pytest.raises(AuthenticationRequired),
    ):
        client.topics()
    with make_client(guarded.address, auth_token="wrong") as client:
        with pytest.raises(AuthenticationFailed) as caught:
            client.topics()
        assert "wrong" not in f"{caught.value}{client!r}{client.config!r}"


# Certificates. `secret` is alice's; `partner` belongs to another authority's clients;
# `tied` ties bob to itself and to `open`.


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[EmbeddedBroker]:
    """A broker that knows its clients by certificate."""
    foreign = certificates.path("foreign.pem")
    topics = {
        "secret": {"auth": {"mtls_enabled": True, "allowed_cns": ["alice"]}},
        "open": {},
        "partner": {
            "auth": {
                "mtls_enabled": True,
                "client_ca_path": foreign,
                "allowed_cns": ["alice"],
            }
        },
    }
    settings: dict[str, Any] = {
        "fsync": "none",
        "topics": topics,
        **certificates.server,
    }
    with EmbeddedBroker(**settings) as running:
        options = certificates.client("alice")
        with (
            make_client(running.address, **options) as client,
            Producer(client, "secret") as producer,
        ):
            producer.send(b"treasure")
        yield running


@pytest.fixture
def alice(secured: EmbeddedBroker, certificates: Certificates) -> Iterator[LanceClient]:
    """The owner, who finds everything as it was."""
    with make_client(secured.address, **certificates.client("alice")) as client:
        yield client
        assert read_values(client, "secret") == [b"treasure"]


def denial(name: str, topic: int) -> str:
    return f"Access denied: client '{name}' not authorized for topic {topic}"


# These are about no topic; what they show is tested below.
HARMLESS = {lwp.ListTopics, lwp.GetClusterStatus, lwp.Authenticate}


@pytest.fixture
def group(alice: LanceClient) -> Iterator[lwp.GroupJoined]:
    """A group of alice's, which she is still in at the end."""
    joined = alice.join_group(GROUP, ["secret"])
    try:
        yield joined
        assert joined.member in members(alice)
        beat = alice.heartbeat(GROUP, joined.member, joined.generation)
        assert [topic.name for topic in beat.assignment] == ["secret"]
    finally:
        for member in members(alice):
            alice.leave_group(GROUP, member)


@pytest.fixture
def stage(alice: LanceClient) -> Iterator[int]:
    """A stage of alice's, which she still has at the end."""
    stage_id = alice.open_stage("secret", WRITER, 1)
    yield stage_id
    assert alice.abort_stages(WRITER, 1) == 1


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("who", [None, "bob"], ids=["nobody", "bob"])
def test_no_command_on_another_ones_topic(
    secured: EmbeddedBroker,
    certificates: Certificates,
    alice: LanceClient,
    group: lwp.GroupJoined,
    stage: int,
    who: str | None,
    kind: type[Message],
) -> None:
    topic = alice.topic_id("secret")
    message = EXAMPLES[kind]("secret", topic)
    if kind is lwp.GroupHeartbeat:
        message = lwp.GroupHeartbeat(GROUP, group.member, group.generation)
    if kind is lwp.LeaveGroup:
        message = lwp.LeaveGroup(GROUP, group.member)
    with Raw(secured.address, tls=certificates.raw(who)) as raw:
        answer = raw.ask(message)
        if kind in HARMLESS:
            assert not isinstance(answer, lwp.ErrorResponse)
            assert "secret" not in repr(answer)
            return
        assert isinstance(answer, lwp.ErrorResponse), answer
        assert answer.code == lwp.code_of(AccessDenied), answer
        # What the client has named is told, never the topic behind a writer or member.
        unnamed = {
            lwp.CommitStages: f"writer '{WRITER}'",
            lwp.AbortStages: f"writer '{WRITER}'",
            lwp.GroupHeartbeat: f"member '{group.member}' of group '{GROUP}'",
            lwp.LeaveGroup: f"member '{group.member}' of group '{GROUP}'",
        }
        text = denial(who or "anonymous", topic)
        expected = text.replace(f"topic {topic}", unnamed.get(kind, f"topic {topic}"))
        assert answer.message == expected


def members(client: LanceClient) -> dict[str, list[str]]:
    groups = client.status().details["groups"]
    return {m["member"]: m["topics"] for g in groups for m in g["members"]}


def test_member_can_not_be_taken_over(
    secured: EmbeddedBroker, certificates: Certificates, group: lwp.GroupJoined
) -> None:
    """Joining under another one's name would take its topics from it."""
    with (
        make_client(secured.address, **certificates.client("bob")) as bob,
        pytest.raises(AccessDenied),
    ):
        bob.join_group(GROUP, ["open"], member=group.member)


@pytest.mark.parametrize("who", [None, "bob"], ids=["nobody", "bob"])
def test_no_ingest_to_another_ones_topic_or_stage(
    secured: EmbeddedBroker,
    certificates: Certificates,
    alice: LanceClient,
    stage: int,
    who: str | None,
) -> None:
    topic = alice.topic_id("secret")
    with Raw(secured.address, tls=certificates.raw(who)) as raw:
        for target in (topic, stage):
            raw.ingest(RECORD, topic_id=target)
            answer = raw.answer()
            assert isinstance(answer, lwp.ErrorResponse), answer
            if target == topic:
                assert answer.code == lwp.code_of(AccessDenied)
                assert answer.message == denial(who or "anonymous", topic)
            else:
                # As if there were none: a denial would tell what it is for.
                assert answer.code == lwp.code_of(StageNotFound)
                assert answer.message == f"stage {stage} is not open"


def test_stage_of_another_one_can_not_be_committed(
    secured: EmbeddedBroker, certificates: Certificates, alice: LanceClient
) -> None:
    """Neither under its own name nor under another one, nor once it is committed."""
    writer = StageWriter(alice, "staged", WRITER, 3)
    writer.send(b"x")
    content = writer.finish(30)
    secret = StageWriter(alice, "secret", WRITER, 3)
    hidden = secret.finish(30)
    with make_client(secured.address, **certificates.client("bob")) as bob:
        for job in ((WRITER, 3), ("bob's", 1)):
            for stages in ([content, hidden], [hidden]):
                with pytest.raises(LanceError):
                    bob.commit_stages(*job, stages)
        assert "staged" not in {info.name for info in alice.topics()}
        alice.commit_stages(WRITER, 3, [content, hidden])
        with pytest.raises(AccessDenied):
            bob.commit_stages(WRITER, 3, [content, hidden])
    assert read_values(alice, "staged") == [b"x"]
    alice.delete_topic("staged")


def test_lists_show_what_may_be_seen(
    secured: EmbeddedBroker, certificates: Certificates, alice: LanceClient
) -> None:
    def see(who: str | None) -> set[str]:
        with make_client(secured.address, **certificates.client(who)) as client:
            return {info.name for info in client.topics()}

    assert see("alice") == {"secret", "open"}
    assert see("bob") == see(None) == {"open"}
    # Mallory is called alice, too, by an authority that counts for one topic only.
    assert see("mallory") == {"partner", "open"}


def test_client_of_another_authority(
    secured: EmbeddedBroker, certificates: Certificates, alice: LanceClient
) -> None:
    topic = alice.topic_id("secret")
    with make_client(secured.address, **certificates.client("mallory")) as mallory:
        with Producer(mallory, "partner") as producer:
            producer.send(b"hello")
        assert read_values(mallory, "partner") == [b"hello"]
        with pytest.raises(AccessDenied, match="client 'alice' not authorized"):
            mallory.fetch(topic, 0, 100)


def test_clients_are_denied_by_their_tools(
    secured: EmbeddedBroker, certificates: Certificates, alice: LanceClient
) -> None:
    """What a program sees that uses the client and not frames."""
    topic = alice.topic_id("secret")
    with make_client(secured.address, **certificates.client("bob")) as bob:
        with pytest.raises(TopicNotFound):
            bob.topic("secret")
        with pytest.raises(AccessDenied):
            Consumer(bob, topic).poll()
        with pytest.raises(Undelivered) as caught, Producer(bob, topic) as producer:
            producer.send(b"mine")
        assert isinstance(caught.value.cause, AccessDenied)
        with pytest.raises(AccessDenied):
            StageWriter(bob, "secret", "bob's", 2)


# Certificates that a server asks everybody for.


@pytest.fixture(scope="module")
def strict(certificates: Certificates) -> Iterator[EmbeddedBroker]:
    settings = {**certificates.server, "tls_require_client_cert": True}
    with EmbeddedBroker(fsync="none", **settings) as running:
        yield running


@pytest.mark.parametrize("who", [None, "mallory"], ids=["none", "foreign"])
def test_certificate_is_required(
    strict: EmbeddedBroker, certificates: Certificates, who: str | None
) -> None:
    with (
        make_client(strict.address, **certificates.client(who)) as client,
        pytest.raises(ConnectionLost),
    ):
        client.connect()
    with make_client(strict.address, **certificates.client("bob")) as client:
        assert client.connect().ping() > 0


def test_no_way_around_tls(strict: EmbeddedBroker) -> None:
    """A client without TLS is not served, and one does not fall back to none."""
    with Raw(strict.address) as raw:
        raw.try_send(*lwp.encode_message(lwp.ListTopics()))
        # Whatever comes is no frame, if anything comes at all.
        with pytest.raises((LanceError, AssertionError)):
            raw.answer()


def test_no_fallback_to_plain_text() -> None:
    with EmbeddedBroker(fsync="none") as plain:
        with (
            make_client(plain.address, tls=True, connect_timeout_s=5) as client,
            pytest.raises(LanceError),
        ):
            client.connect()
        assert "GetClusterStatus" not in plain.metrics.snapshot().requests


def test_server_of_another_authority(
    strict: EmbeddedBroker, certificates: Certificates
) -> None:
    options = {
        **certificates.client("alice"),
        "tls_ca": certificates.path("foreign.pem"),
    }
    with (
        make_client(strict.address, **options) as client,
        pytest.raises(ConnectionLost, match="certificate"),
    ):
        client.connect()


def test_certificate_of_another_host(
    strict: EmbeddedBroker, certificates: Certificates
) -> None:
    tls = {**certificates.client("alice"), "tls_server_name": "elsewhere.example"}
    with (
        make_client(strict.address, **tls) as client,
        pytest.raises(ConnectionLost, match="certificate"),
    ):
        client.connect()
