"""Fluvio: how a connection speaks it, with the controller (SC) and with SPUs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lance_spark.client.connection import Connection
from lance_spark.client.counted import show
from lance_spark.client.dialect import ConnectionEnded
from lance_spark.client.inbox import Pending
from lance_spark.errors import (
    AccessDenied,
    ConnectionLost,
    LeaderUnknown,
    OptionError,
    RemoteProtocolError,
    TlsRefused,
    Unsupported,
)
from lance_spark.model import Buffer, Partition
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.wire import fluvio as wire

# Servers want a version like this of a client, and some look whether it is old.
_CLIENT_VERSION = "0.18.0"
_CLIENT_ID = "lance-spark"
_NUMBERS_MAX = 2**31
# What the answer to the greeting has at most: a list of requests.
_GREETING_BYTES_MAX = 64 * 1024


class FluvioDialect:
    """Fluvio; answers have the ids of their requests and may overtake each other.

    Each request is sent in the newest version that both sides know.

    Args:
        role: what the server is.
        response_bytes_max: the largest answer to take.
    """

    requests_max: int | None = None
    capabilities: frozenset[str] = frozenset()
    keepalive = None

    def __init__(self, role: wire.Role, response_bytes_max: int) -> None:
        self._role = role
        self._response_bytes_max = response_bytes_max
        self._parser = wire.FrameParser(
            payload_bytes_max=min(_GREETING_BYTES_MAX, response_bytes_max),
            payload_bytes_first=response_bytes_max,
        )
        # What the server knows, by key; nothing is known of it before it is greeted.
        self._known: Mapping[int, wire.ApiKey] | None = None
        self._address: Address | None = None

    def make_parser(self) -> wire.FrameParser:
        """Give the parser of what the server sends."""
        return self._parser

    def greet(self, connection: Connection, deadline: Deadline) -> None:
        """Ask what the server knows, which shows what it is."""
        request = wire.ApiVersions(
            _CLIENT_VERSION, platform.system().lower(), platform.machine()
        )
        try:
            answer = connection.request(request, deadline=deadline)
        except TlsRefused:
            raise
        except ConnectionLost as error:
            raise ConnectionEnded(
                f"{error} before its first answer; if it is up, check that it speaks "
                "Fluvio, lets clients in without a token, and that tls is what it uses"
            ) from error
        except AccessDenied as error:
            raise AccessDenied(
                f"{connection.address} does not let this client in: if it asks for a "
                "token, which Fluvio can't carry, use TLS with a client certificate "
                "(tls_cert)"
            ) from error
        self._address = connection.address
        self._known = {key.key: key for key in answer.keys}
        is_spu = wire.Produce.KEY in self._known
        if is_spu and self._role is wire.Role.SC:
            raise OptionError(
                f"{connection.address} is an SPU of a cluster and not the controller "
                "(SC): give the address of the controller, which knows the SPUs; its "
                "port is 9003 by default"
            )
        if not is_spu and self._role is wire.Role.SPU:
            # Not by the settings: it is the SC that has named it.
            raise LeaderUnknown(
                f"{connection.address} is no SPU, but the controller (SC) says so: "
                "check which addresses the SPUs of the cluster advertise"
            )
        self._parser.allow(self._response_bytes_max)

    def name_of(self, request: wire.Message) -> str:
        """Name a request in error texts."""
        return type(request).__name__

    def encode(self, request: Any, number: int) -> Sequence[Buffer]:
        """Write a request with its number as its id."""
        return wire.encode_message(
            replace(
                request,
                correlation_id=number % _NUMBERS_MAX,
                api_version=self._choose_version(request),
                client_id=_CLIENT_ID,
            )
        )

    def _choose_version(self, request: wire.Request) -> int:
        if self._known is None:
            return request.VERSION
        known = self._known.get(request.key)
        if known is None:
            raise self._refuse(request, "it does not know this request")
        # Where the versions do not meet, servers read what they did not offer.
        version = min(request.VERSION, known.version_max)
        if self._role is wire.Role.SC and version < wire.SC_VERSION_MIN:
            reason = f"it is too old and knows version {version} of it"
            raise self._refuse(request, reason)
        return version

    def _refuse(self, request: wire.Request, reason: str) -> Unsupported:
        text = f"the request {self.name_of(request)}"
        return Unsupported(text, None, str(self._address), reason)

    def encode_batch(self, batch: Any, target: Any, number: int) -> Sequence[Buffer]:
        """Refuse: batches are requests here."""
        raise NotImplementedError

    def number_of(
        self, frame: wire.Frame, waiting: Mapping[int, Pending]
    ) -> int | None:
        """Read the id of the request."""
        number = wire.number_of(frame)
        # Only the last 31 bits of a number are sent.
        return next((n for n in waiting if n % _NUMBERS_MAX == number), number)

    def decode(self, frame: wire.Frame, request: Any) -> wire.Message:
        """Read the answer to a request for one topic, and raise its errors."""
        version = self._choose_version(request)
        answer = wire.decode_response(frame, replace(request, api_version=version))
        if isinstance(answer, wire.Versions):
            _check(answer.error, "the server")
        elif isinstance(answer, wire.Listing):
            if answer.kind != request.kind:
                raise RemoteProtocolError(f"the answer is not about {request.kind}s")
        elif isinstance(answer, wire.Status):
            _check(answer.error, f"topic {request.name!r}", answer.text or "")
            if answer.name != request.name:
                raise RemoteProtocolError(f"the answer is not about {request.name!r}")
        elif isinstance(answer, wire.Produced):
            found = [(topic.name, topic.outcomes) for topic in answer.topics]
            [asked] = request.topics
            _check_parts(asked.name, [one.partition for one in asked.writes], found)
        elif isinstance(answer, wire.FetchAnswer):
            _check(answer.error, "the server")
            parts = [(topic.name, topic.partitions) for topic in answer.topics]
            [asked] = request.topics
            _check_parts(asked.name, [one.partition for one in asked.partitions], parts)
        elif isinstance(answer, wire.Offsets):
            offsets = [(topic.name, topic.partitions) for topic in answer.topics]
            [asked] = request.topics
            _check_parts(asked.name, asked.partitions, offsets)
        return answer

    def decode_push(self, frame: wire.Frame) -> None:
        """Drop it: nothing is subscribed to."""


def _check(error: wire.ErrorCode, where: str, message: str = "") -> None:
    if error.code != wire.OK:
        raise wire.make_error(error, where, message)


def _check_parts(
    topic: str,
    numbers: Iterable[int],
    found: Sequence[tuple[str, Sequence[Any]]],
) -> None:
    """Check that an answer is about some partitions of a topic, and has no errors."""
    wanted = sorted(numbers)
    if len(found) != 1 or found[0][0] != topic:
        raise RemoteProtocolError(f"the answer is not about {topic!r}")
    parts = found[0][1]
    if sorted(part.partition for part in parts) != wanted:
        where = ", ".join(map(str, wanted))
        raise RemoteProtocolError(
            f"the answer is not about the partitions {where} of {topic!r}"
        )
    for part in parts:
        _check(part.error, show(Partition(topic, part.partition)))
