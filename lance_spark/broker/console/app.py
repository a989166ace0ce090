"""The console's application: what answers which request, and which visitor asks.

Starlette runs requests in threads, apart from the live stream. Each request has its
visitor as a `Principal`, and everything that it answers comes from `Service` by that.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from lance_spark import errors
from lance_spark.broker.access import Principal
from lance_spark.broker.budget import TokenBucket
from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.console.guard import (
    BODY,
    CHANGING,
    Guard,
    JsonAnswer,
    make_refusal,
    refuse,
)
from lance_spark.broker.console.overview import Overview
from lance_spark.broker.console.records import parse_query, read_page, read_value
from lance_spark.broker.console.sampler import INTERVAL_S, Sampler
from lance_spark.broker.console.stream import Streams
from lance_spark.broker.server import ConnectedClient
from lance_spark.broker.service import Service
from lance_spark.model import Retention
from lance_spark.net.address import Address

# The files of the page.
PAGE = Path(__file__).parent / "page"


# How many pages of records are read at once, and how long others wait for that. Each
# takes some ten megabytes and a core for a moment.
_READS_MAX = 2
_READ_WAIT_S = 10.0
_READ_TICK_S = 0.25
# How many large answers may be on their way; each is in memory until it is sent.
_LARGE_BYTES = 1024 * 1024
_LARGE_MAX = 8
_NUMBER_END = 2**64

# Answers a visitor: with what becomes JSON, or with a whole response.
Work = Callable[[Principal, Request], Any]


class Requests:
    """What can be asked of a console.

    Args:
        service: the broker.
        config: its settings.
        sampler: its rates.
        addresses: where the broker's clients connect to, by protocol, LWP first.
        clients: lists those that are connected.

    Attributes:
        streams: have to end before the application can.
    """

    def __init__(
        self,
        service: Service,
        config: BrokerConfig,
        sampler: Sampler,
        addresses: Mapping[str, Address],
        clients: Callable[[], Sequence[ConnectedClient]] = tuple,
    ) -> None:
        self._service = service
        self._config = config
        self._sampler = sampler
        self._overview = Overview(service, config, sampler, addresses, clients)
        self.streams = Streams(self._overview, sampler)
        self._visitors = Visitors(service.gate.authenticate)
        self._reads = threading.BoundedSemaphore(_READS_MAX)
        self._large = threading.BoundedSemaphore(_LARGE_MAX)

    def make_app(self, host: str) -> ASGIApp:
        """Say which request is answered by what; `host` is that of the setting `ui`."""
        overview = self._overview
        # A name may be empty, which is the default topic's, or have the slash of a
        # partition. The routes that end in a name take what no other one takes.
        topic = "/api/topics/{name:path}"
        table: list[tuple[str, str, Work]] = [
            ("GET", "/api/overview", lambda client, _: overview.describe(client)),
            ("GET", "/api/history", self._get_history),
            ("GET", "/api/consumers", lambda c, _: overview.describe_consumers(c)),
            ("GET", "/api/clients", lambda c, _: overview.describe_clients(c)),
            ("GET", "/api/stages", lambda c, _: overview.describe_stages(c)),
            ("POST", "/api/stages/abort", self._abort_stages),
            ("POST", "/api/topics", self._create_topic),
            ("PUT", f"{topic}/retention", self._set_retention),
            ("GET", f"{topic}/records", self._get_records),
            ("GET", f"{topic}/records/{{offset:int}}/value", self._get_value),
            ("GET", topic, lambda c, r: overview.describe_topic(c, _read_name(r))),
            ("DELETE", topic, self._delete_topic),
        ]
        files = StaticFiles(directory=PAGE, html=True, check_dir=False)
        app = Starlette(
            routes=[
                Route("/api/session", self._get_session, methods=["GET"]),
                Route("/api/session", self._sign_in, methods=["POST"]),
                Route("/api/session", self._sign_out, methods=["DELETE"]),
                Route("/api/events", self._open_events),
                *(
                    Route(path, partial(self._answer, work), methods=[method])
                    for method, path, work in table
                ),
                Mount("/static", files),
                Mount("/", files),
            ],
            exception_handlers=dict.fromkeys(
                (HTTPException, errors.LanceError, Exception), make_refusal
            ),
        )
        # A slash at the end is the name of the default topic, not a slip.
        app.router.redirect_slashes = False
        return Guard(app, host)

    def _answer(self, work: Work, request: Request) -> Response:
        client = self._find_client(request)
        if request.method in CHANGING:
            self._service.gate.admit(client, None)
            if not self._config.ui_admin:
                raise errors.AccessDenied(
                    "The console shows things and changes none: start it with ui_admin"
                )
        found = work(client, request)
        answer = found if isinstance(found, Response) else JsonAnswer(found)
        # A large answer is counted until it is sent.
        if len(answer.body) > _LARGE_BYTES:
            if not self._large.acquire(blocking=False):
                raise errors.Backpressure("The console sends as much as it may already")
            answer.background = BackgroundTask(self._large.release)
        return answer

    # Signing in.

    def _get_session(self, request: Request) -> Response:
        return self._describe_session(_read_session(request))

    def _sign_in(self, request: Request) -> Response:
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

    def _sign_out(self, request: Request) -> Response:
        self._visitors.sign_out(_read_session(request))
        answer = self._describe_session(None)
        answer.delete_cookie(_name_cookie(request))
        return answer

    def _describe_session(self, session: str | None) -> Response:
        """Tell a visitor what to do first, and what is allowed."""
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

    async def _open_events(self, request: Request) -> Response:
        client = self._find_client(request)
        # The same visitor each time, or None after signing out.
        return await self.streams.open(
            lambda: client if self._find_client(request) == client else None
        )

    def _get_history(self, client: Principal, request: Request) -> Any:
        """Give rates over time, of a topic or of all together."""
        self._service.gate.admit(client, None)
        name = request.query_params.get("topic")
        topic = None if name is None else self._overview.find(client, name).metadata.id
        return {"interval_s": INTERVAL_S, "points": self._sampler.history(topic)}

    def _get_records(self, client: Principal, request: Request) -> Any:
        query, name = parse_query(request.query_params), _read_name(request)
        topic = self._overview.find(client, name).metadata.id
        with self._reading():
            page = read_page(lambda: self._service.view(client, topic), query)
        return {"topic": name, **page}

    def _get_value(self, client: Principal, request: Request) -> Any:
        offset = request.path_params["offset"]
        topic = self._overview.find(client, _read_name(request)).metadata.id
        with self._reading():
            value = read_value(lambda: self._service.view(client, topic), offset)
        if value is None:
            return refuse(404, "NotFound", f"No record with a value is at {offset}")
        headers = {"Content-Disposition": f'attachment; filename="record-{offset}.bin"'}
        return Response(bytes(value), 200, headers, "application/octet-stream")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        ends_s = time.monotonic() + _READ_WAIT_S
        while not self._reads.acquire(timeout=min(_READ_WAIT_S, _READ_TICK_S)):
            # A request that waits must not hold up the end of the broker.
            if self.streams.is_ending:
                raise errors.ClusterNotReady("The broker is stopping")
            if time.monotonic() >= ends_s:
                raise errors.Backpressure("The console reads as much as it may already")
        try:
            yield
        finally:
            self._reads.release()

    # Changing.

    def _create_topic(self, client: Principal, request: Request) -> Any:
        fields = _read_object(request)
        name, retention = _read_text(fields, "name"), _read_retention(fields)
        self._service.create_topic(client, name, retention)
        return self._overview.describe_topic(client, name)

    def _delete_topic(self, client: Principal, request: Request) -> Any:
        """Delete a topic, which is all of its partitions."""
        name = _read_name(request)
        if self._service.store.partitions(name) > 1:
            logs = self._service.partitions(client, name)
            log = next(iter(logs.values())).metadata
            self._service.delete_topic(client, log.id, log.partitions or 1)
        else:
            topic = self._overview.find(client, name)
            self._service.delete_topic(client, topic.metadata.id)
        return {}

    def _set_retention(self, client: Principal, request: Request) -> Any:
        retention, name = _read_retention(_read_object(request)), _read_name(request)
        topic = self._overview.find(client, name)
        self._service.set_retention(client, topic.metadata.id, retention)
        return self._overview.describe_topic(client, name)

    def _abort_stages(self, client: Principal, request: Request) -> Any:
        fields = _read_object(request)
        job = _read_text(fields, "writer"), _read_number(fields, "sequence")
        return {"dropped": self._service.abort_stages(client, *job)}


def _name_cookie(request: Request) -> str:
    return COOKIE.format(port=request.url.port or "")


def _read_session(request: Request) -> str | None:
    return request.cookies.get(_name_cookie(request))


def _read_name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def _read_object(request: Request) -> dict[str, Any]:
    try:
        found = json.loads(request.scope.get(BODY, b""))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise errors.OptionError("the request's body is not a JSON object")
    return found


def _read_text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise errors.OptionError(f"{name}: has to be given, as a text")
    return value


def _read_number(fields: dict[str, Any], name: str) -> int:
    """Read a whole number, also from a text: JavaScript's are exact up to 2^53."""
    value = fields.get(name)
    if isinstance(value, str) and re.fullmatch("[0-9]{1,20}", value):
        value = int(value)
    # In Python a bool is an int; in JSON it is not.
    if type(value) is not int or not 0 <= value < _NUMBER_END:
        raise errors.OptionError(f"{name}: has to be given, as a whole number from 0")
    return value


def _read_retention(fields: dict[str, Any]) -> Retention:
    """Read a retention; null and 0 are no limit."""
    given = {n for n in ("max_age_s", "max_bytes") if fields.get(n) is not None}
    return Retention(**{name: _read_number(fields, name) for name in given})


# A browser has one set of cookies for all ports of a host, so each has its own name.
COOKIE = "lance_session_{port}"
# How many may be signed in; the session that came first goes.
SESSIONS_MAX = 1000
SESSION_S = 12 * 3600
# Wrong tokens from one address: so many at once, then one in so many seconds.
FAILURES_BURST = 5
FAILURE_INTERVAL_S = 5.0
# Addresses that are remembered for that.
_SUSPECTS_MAX = 1000


class Visitors:
    """The visitors that have signed in; any thread may ask.

    Args:
        authenticate: checks a token; see `Gate.authenticate`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        authenticate: Callable[[Principal, str], Principal],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authenticate = authenticate
        self._clock = clock
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
            self._authenticate(Principal(), token)
        except UnicodeEncodeError:
            # Text that is no Unicode can't be a token, nor be compared with one.
            raise errors.AuthenticationFailed("Authentication failed") from None
        with self._lock:
            # A visitor with a valid token does not guess.
            self._suspects.pop(peer, None)
            session = secrets.token_urlsafe(32)
            self._sessions[session] = self._clock() + SESSION_S
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        return session

    def _check_suspect(self, peer: str) -> None:
        # Each try takes a token of the bucket, before it is known to be wrong: tries
        # that come at the same time must not all pass.
        with self._lock:
            fresh = TokenBucket(1 / FAILURE_INTERVAL_S, FAILURES_BURST, self._clock)
            bucket = self._suspects.setdefault(peer, fresh)
            self._suspects.move_to_end(peer)
            if len(self._suspects) > _SUSPECTS_MAX:
                self._suspects.popitem(last=False)
            wait_s = bucket.take()
        if wait_s > 0:
            details = {"retry_after_ms": int(wait_s * 1000) + 1}
            raise errors.RateLimited("Too many wrong tokens", details=details)

    def sign_out(self, session: str | None) -> None:
        """End a session, if it is one."""
        with self._lock:
            self._sessions.pop(session or "", None)

    def is_signed_in(self, session: str | None) -> bool:
        """Tell whether a session goes on."""
        with self._lock:
            if self._sessions.get(session or "", 0.0) > self._clock():
                return True
            self._sessions.pop(session or "", None)
            return False
