"""The application of the console: which request is answered by what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.console.answer import make_refusal, refuse
from lance_spark.broker.console.guard import Guard
from lance_spark.broker.console.overview import Overview
from lance_spark.broker.console.request import Requests
from lance_spark.broker.console.sampler import Sampler
from lance_spark.broker.console.stream import Streams
from lance_spark.broker.service import Service
from lance_spark.errors import LanceError
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
