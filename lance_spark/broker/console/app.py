"""The console's application: which request is answered by what, and who asks.

Requests are plain functions that Starlette runs in threads, apart from the live stream.
Each begins with the visitor as a `Principal`, and everything it answers comes from
`Service` by that.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from lance_spark.broker.access import Principal
from lance_spark.broker.budget import TokenBucket
from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.console.guard import (
    BODY,
    Guard,
    JsonAnswer,
    make_refusal,
    refuse,
)
from lance_spark.broker.console.overview import Overview, describe_stages
from lance_spark.broker.console.records import parse_query, read_page, read_value
from lance_spark.broker.console.sampler import INTERVAL_S, Sampler
from lance_spark.broker.console.stream import Streams
from lance_spark.broker.service import Service
from lance_spark.errors import (
    AccessDenied,
    AuthenticationFailed,
    Backpressure,
    ClusterNotReady,
    LanceError,
    OptionError,
    RateLimited,
)
from lance_spark.model import Retention
from lance_spark.net.address import Address

PAGE = Path(__file__).parent / "page"


def make_app(
    service: Service,
    config: BrokerConfig,
    *,
    sampler: Sampler,
    host: str,
    broker_address: Address,
) -> tuple[ASGIApp, Streams]:
    """Make the application, and the streams that have to end before it can.

    Args:
        service: the broker.
        config: its settings.
        sampler: its rates.
        host: the host that the console was told to listen on.
        broker_address: where the broker's clients connect to.
    """
    overview = Overview(service, config, sampler, broker_address)
    streams = Streams(overview, lambda: sampler.ticks)
    requests = Requests(service, config, sampler, overview, streams=streams)
    app = Starlette(
        routes=_make_routes(requests),
        exception_handlers={
            HTTPException: _refuse_http,
            LanceError: _refuse,
            Exception: _refuse,
        },
    )
    # A slash at the end is the name of the default topic, not a slip.
    app.router.redirect_slashes = False
    return Guard(app, host), streams


def _make_routes(requests: Requests) -> list[BaseRoute]:
    topic = "/api/topics/{name}"
    table: list[tuple[str, str, Callable[[Request], Any]]] = [
        ("GET", "/", _get_page),
        ("GET", "/api/session", requests.session),
        ("POST", "/api/session", requests.sign_in),
        ("DELETE", "/api/session", requests.sign_out),
        ("GET", "/api/overview", requests.overview),
        ("GET", "/api/events", requests.events),
        ("GET", "/api/history", requests.history),
        ("GET", "/api/consumers", requests.consumers),
        ("GET", "/api/stages", requests.stages),
        ("POST", "/api/stages/abort", requests.abort_stages),
        ("POST", "/api/topics", requests.create_topic),
        ("GET", topic, requests.topic),
        ("DELETE", topic, requests.delete_topic),
        ("PUT", f"{topic}/retention", requests.set_retention),
        ("GET", f"{topic}/records", requests.records),
        ("GET", f"{topic}/records/{{offset:int}}/value", requests.value),
    ]
    # The default topic has the empty name, which a parameter can't have.
    table += [
        (method, path.replace("{name}", ""), answer)
        for method, path, answer in table
        if "{name}" in path
    ]
    routes: list[BaseRoute] = [
        Route(path, answer, methods=[method]) for method, path, answer in table
    ]
    return [*routes, Mount("/static", StaticFiles(directory=PAGE, check_dir=False))]


def _get_page(request: Request) -> Response:
    index = PAGE / "index.html"
    if not index.is_file():
        raise HTTPException(404, "The page is not installed")
    return FileResponse(index)


def _refuse(request: Request, error: Exception) -> Response:
    return make_refusal(error)


def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "NotFound" if error.status_code == 404 else "BadRequest"
    return refuse(error.status_code, kind, error.detail)


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
        self._visitors = Visitors(service.gate.authenticate)
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
        needs_token = self._service.gate.policy.token_required
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
        """Give the visitor as the principal that the gate judges."""
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
        # The same visitor each time, or None after signing out.
        return await self._streams.open(
            lambda: client if self._find_client(request) == client else None
        )

    def history(self, request: Request) -> Response:
        """Give rates over time, of a topic or of all together."""
        client = self._find_client(request)
        self._service.gate.admit(client, None)
        name = request.query_params.get("topic")
        topic = None
        if name is not None:
            topic = self._overview.find(client, name).metadata.id
        points = self._sampler.history(topic)
        return JsonAnswer({"interval_s": INTERVAL_S, "points": points})

    def consumers(self, request: Request) -> Response:
        """Describe consumers and groups."""
        return JsonAnswer(self._overview.describe_consumers(self._find_client(request)))

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
            # A request that waits must not hold up the end of the broker.
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
        self._service.gate.admit(client, None)
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


# A browser has one set of cookies for all ports of a host, so each has its own name.
COOKIE = "lance_session_{port}"
SESSIONS_MAX = 1000
SESSION_S = 12 * 3600
# Wrong tokens from one address: so many at once, then one in so many seconds.
FAILURES_BURST = 5
FAILURE_INTERVAL_S = 5.0
# Addresses that are remembered for that.
_SUSPECTS_MAX = 1000

Authenticate = Callable[[Principal, str], Principal]


class Visitors:
    """Those who have signed in; any thread may ask.

    Args:
        authenticate: checks a token; see `Gate.authenticate`.
        clock: monotonic seconds.
        sessions_max: how many may be signed in; the one that came first goes.
    """

    def __init__(
        self,
        authenticate: Authenticate,
        *,
        clock: Callable[[], float] = time.monotonic,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        self._authenticate = authenticate
        self._clock = clock
        self._sessions_max = sessions_max
        self._lock = threading.Lock()
        # When each session ends, by its id. They are of one length, so the first one
        # is the oldest.
        self._sessions: OrderedDict[str, float] = OrderedDict()
        self._suspects: OrderedDict[str, TokenBucket] = OrderedDict()

    def sign_in(self, token: str, *, peer: str) -> str:
        """Begin a session; give its id, which can't be guessed.

        Args:
            token: what the visitor has presented.
            peer: the address that it comes from.

        Raises:
            AuthenticationFailed: the token is wrong.
            RateLimited: too many were, from this address.
        """
        self._check_suspect(peer)
        try:
            # Text that is no Unicode can't be a token, nor be compared with one.
            token.encode()
            self._authenticate(Principal(), token)
        except UnicodeEncodeError:
            raise AuthenticationFailed("Authentication failed") from None
        with self._lock:
            # A visitor with a valid token does not guess.
            self._suspects.pop(peer, None)
            session = secrets.token_urlsafe(32)
            self._sessions[session] = self._clock() + SESSION_S
            while len(self._sessions) > self._sessions_max:
                self._sessions.popitem(last=False)
        return session

    def _check_suspect(self, peer: str) -> None:
        # Each try takes a token of the bucket, before it is known to be wrong: tries
        # that come at the same time must not all pass.
        with self._lock:
            bucket = self._suspects.get(peer)
            if bucket is None:
                rate = 1 / FAILURE_INTERVAL_S
                bucket = TokenBucket(rate, FAILURES_BURST, self._clock)
                self._suspects[peer] = bucket
            self._suspects.move_to_end(peer)
            if len(self._suspects) > _SUSPECTS_MAX:
                self._suspects.popitem(last=False)
            wait_s = bucket.take()
        if wait_s > 0:
            raise RateLimited(
                "Too many wrong tokens",
                details={"retry_after_ms": int(wait_s * 1000) + 1},
            )

    def sign_out(self, session: str | None) -> None:
        """End a session, if it is one."""
        with self._lock:
            self._sessions.pop(session or "", None)

    def is_signed_in(self, session: str | None) -> bool:
        """Tell whether a session goes on."""
        with self._lock:
            ends_s = self._sessions.get(session or "")
            if ends_s is None:
                return False
            if ends_s <= self._clock():
                del self._sessions[session or ""]
                return False
            return True
