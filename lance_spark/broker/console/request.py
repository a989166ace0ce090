"""The requests of the console: who asks, what for, and what is answered.

Requests are plain functions that Starlette runs in threads, apart from the live stream.
Each begins with the visitor as a `Principal`, and everything it says comes from
`Service` by that.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from lance_spark.broker.access import Principal
from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.console.answer import JsonAnswer, refuse
from lance_spark.broker.console.consumers import ConsumerList
from lance_spark.broker.console.guard import BODY
from lance_spark.broker.console.overview import Overview
from lance_spark.broker.console.query import parse_query
from lance_spark.broker.console.records import read_page, read_value
from lance_spark.broker.console.sampler import INTERVAL_S, Sampler
from lance_spark.broker.console.stages import describe_stages
from lance_spark.broker.console.stream import Streams
from lance_spark.broker.console.visitor import COOKIE, SESSION_S, Visitors
from lance_spark.broker.service import Service
from lance_spark.errors import (
    AccessDenied,
    Backpressure,
    ClusterNotReady,
    OptionError,
)
from lance_spark.model import Retention

# How many pages of records are read at once, and how long others wait for that. Each
# takes some ten megabytes and a core for a moment.
_READS_MAX = 2
_READ_WAIT_S = 10.0
_READ_TICK_S = 0.25
# How many large answers may wait for who reads them; each is in memory until then.
_LARGE_BYTES = 1024 * 1024
_LARGE_MAX = 8
_NUMBER_END = 2**64


class Requests:
    """What can be asked of a console; each method answers one kind of request."""

    def __init__(
        self,
        service: Service,
        config: BrokerConfig,
        sampler: Sampler,
        overview: Overview,
        *,
        streams: Streams,
    ) -> None:
        self._service = service
        self._config = config
        self._sampler = sampler
        self._overview = overview
        self._streams = streams
        self._consumers = ConsumerList(service, overview, sampler)
        self._visitors = Visitors(service.authenticate)
        self._reads = threading.BoundedSemaphore(_READS_MAX)
        self._large = threading.BoundedSemaphore(_LARGE_MAX)

    # Signing in.

    def session(self, request: Request) -> Response:
        """Tell a visitor what to do first, and what is allowed."""
        return self._describe_session(_read_session(request))

    def sign_in(self, request: Request) -> Response:
        """Take a token, and give a cookie."""
        token = _read_text(_read_object(request), "token")
        peer = request.client.host if request.client else ""
        session = self._visitors.sign_in(token, peer=peer)
        answer = self._describe_session(session)
        answer.set_cookie(
            _name_cookie(request),
            session,
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=self._config.tls_enabled,
        )
        return answer

    def sign_out(self, request: Request) -> Response:
        """Forget a visitor."""
        self._visitors.sign_out(_read_session(request))
        answer = self._describe_session(None)
        answer.delete_cookie(_name_cookie(request))
        return answer

    def _describe_session(self, session: str | None) -> Response:
        needs_token = self._service.policy.token_required
        signed_in = needs_token and self._visitors.is_signed_in(session)
        return JsonAnswer(
            {
                "needs_token": needs_token,
                "signed_in": signed_in,
                "admin": self._config.ui_admin and (signed_in or not needs_token),
                **self._overview.facts,
            }
        )

    def _find_client(self, request: Request) -> Principal:
        """Say who asks, as the gate wants to know it."""
        certificate = getattr(request.state, "certificate", None)
        signed_in = self._visitors.is_signed_in(_read_session(request))
        if certificate is None:
            return Principal(authenticated=signed_in)
        return Principal(certificate.common_name, certificate.chain, signed_in)

    # Looking.

    def overview(self, request: Request) -> Response:
        """Describe the broker."""
        return JsonAnswer(self._overview.describe(self._find_client(request)))

    async def events(self, request: Request) -> Response:
        """Describe the broker again and again."""
        client = self._find_client(request)
        # The same visitor each time, or nobody after signing out.
        return await self._streams.open(
            lambda: client if self._find_client(request) == client else None
        )

    def history(self, request: Request) -> Response:
        """Give rates over time, of a topic or of all together."""
        client = self._find_client(request)
        self._service.check_client(client)
        name = request.query_params.get("topic")
        topic = None
        if name is not None:
            topic = self._overview.find(client, name).metadata.id
        points = self._sampler.history(topic)
        return JsonAnswer({"interval_s": INTERVAL_S, "points": points})

    def consumers(self, request: Request) -> Response:
        """Describe consumers and groups."""
        return JsonAnswer(self._consumers.describe(self._find_client(request)))

    def stages(self, request: Request) -> Response:
        """Describe open stages."""
        stages = self._service.stages(self._find_client(request))
        return JsonAnswer(describe_stages(stages, self._config.stage_ttl_s))

    def topic(self, request: Request) -> Response:
        """Describe a topic."""
        client, name = self._find_client(request), _read_name(request)
        return JsonAnswer(self._overview.describe_topic(client, name))

    def records(self, request: Request) -> Response:
        """Give a page of records."""
        client, name = self._find_client(request), _read_name(request)
        query = parse_query(request.query_params)
        topic = self._overview.find(client, name).metadata.id
        with self._reading():
            page = read_page(lambda: self._service.view(client, topic), query)
        return self._hold(JsonAnswer({"topic": name, **page}))

    def value(self, request: Request) -> Response:
        """Give the whole value of a record."""
        client, name = self._find_client(request), _read_name(request)
        offset = request.path_params["offset"]
        topic = self._overview.find(client, name).metadata.id
        with self._reading():
            value = read_value(lambda: self._service.view(client, topic), offset)
        if value is None:
            return refuse(404, "NotFound", f"No record with a value is at {offset}", "")
        headers = {
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="record-{offset}.bin"',
        }
        answer = Response(bytes(value), 200, headers, "application/octet-stream")
        return self._hold(answer)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        ends_s = time.monotonic() + _READ_WAIT_S
        while not self._reads.acquire(timeout=min(_READ_WAIT_S, _READ_TICK_S)):
            # Who waits must not hold up the broker's end.
            if self._streams.is_ending:
                raise ClusterNotReady("The broker is stopping")
            if time.monotonic() >= ends_s:
                raise Backpressure("The console reads as much as it may already")
        try:
            yield
        finally:
            self._reads.release()

    def _hold(self, answer: Response) -> Response:
        """Count a large answer until it is sent."""
        if len(answer.body) > _LARGE_BYTES:
            if not self._large.acquire(blocking=False):
                raise Backpressure("The console sends as much as it may already")
            answer.background = BackgroundTask(self._large.release)
        return answer

    # Changing.

    def create_topic(self, request: Request) -> Response:
        """Create a topic."""
        client = self._find_admin(request)
        fields = _read_object(request)
        name, retention = _read_text(fields, "name"), _read_retention(fields)
        self._service.create_topic(client, name, retention)
        return JsonAnswer(self._overview.describe_topic(client, name))

    def delete_topic(self, request: Request) -> Response:
        """Delete a topic."""
        client = self._find_admin(request)
        topic = self._overview.find(client, _read_name(request))
        self._service.delete_topic(client, topic.metadata.id)
        return JsonAnswer({})

    def set_retention(self, request: Request) -> Response:
        """Change the retention of a topic."""
        client, name = self._find_admin(request), _read_name(request)
        retention = _read_retention(_read_object(request))
        topic = self._overview.find(client, name)
        self._service.set_retention(client, topic.metadata.id, retention)
        return JsonAnswer(self._overview.describe_topic(client, name))

    def abort_stages(self, request: Request) -> Response:
        """Drop the stages of a job."""
        client = self._find_admin(request)
        fields = _read_object(request)
        writer, sequence = _read_text(fields, "writer"), _read_sequence(fields)
        dropped = self._service.abort_stages(client, writer, sequence)
        return JsonAnswer({"dropped": dropped})

    def _find_admin(self, request: Request) -> Principal:
        client = self._find_client(request)
        self._service.check_client(client)
        if not self._config.ui_admin:
            raise AccessDenied(
                "The console shows things and changes none: start it with ui_admin"
            )
        return client


def _name_cookie(request: Request) -> str:
    return COOKIE.format(port=request.url.port or "")


def _read_session(request: Request) -> str | None:
    return request.cookies.get(_name_cookie(request))


def _read_name(request: Request) -> str:
    name: str = request.path_params.get("name", "")
    return name


def _read_object(request: Request) -> dict[str, Any]:
    try:
        found = json.loads(request.scope.get(BODY, b""))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OptionError("the request's body is not a JSON object")
    return found


def _read_text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise OptionError(f"{name}: has to be given, as a text")
    return value


def _read_number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    # In Python a bool is an int; in JSON it is not.
    if type(value) is not int or not 0 <= value < _NUMBER_END:
        raise OptionError(f"{name}: has to be given, as a whole number from 0")
    return value


def _read_sequence(fields: dict[str, Any]) -> int:
    """Read the number of a job, which is a text where it is shown."""
    value = fields.get("sequence")
    if isinstance(value, str) and re.fullmatch("[0-9]{1,20}", value):
        fields = {"sequence": int(value)}
    return _read_number(fields, "sequence")


def _read_retention(fields: dict[str, Any]) -> Retention:
    """Read a retention; null and 0 are no limit."""
    age_s, size = (
        0 if fields.get(name) is None else _read_number(fields, name)
        for name in ("max_age_s", "max_bytes")
    )
    return Retention(age_s, size)
