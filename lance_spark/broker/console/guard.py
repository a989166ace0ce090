"""The door of the console: requests that its own page does not send are refused.

Browsers send requests for any page that asks them to, with the cookies of the console.
Three rules keep such pages out, and each is about something that they can't choose:

- `Host` is an address, `localhost`, or the name that the console was given. A page
  whose name was made to lead here (DNS rebinding) has its own name there.
- Requests that change something have an `Origin`, and it is the console itself.
- They have the header X-Lance-Console, which a foreign page may not send.

Bodies are read here, up to a limit, so that requests need not wait. The form of answers
and of refusals is here, too.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lance_spark import errors
from lance_spark.broker.service import to_broker_error
from lance_spark.errors import LanceError

BODY_BYTES_MAX = 64 * 1024
# Where requests find their body.
BODY = "lance.body"
_BODY_S = 10.0
CHANGING = ("POST", "PUT", "DELETE", "PATCH")
_PORT_MAX = 65535
# A name or an address, and perhaps a port.
_HOST = re.compile(r"(\[[^\s@/?#\[\]\\]+\]|[^\s:@/?#\[\]\\]+)(?::([0-9]{1,5}))?")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Lets requests through to an application, or refuses them.

    Args:
        app: the application.
        host: the host in the console's setting `ui`.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge one request."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                # The page's files change when the package does, answers at any time.
                is_answer = scope["path"].startswith("/api/")
                headers["Cache-Control"] = "no-store" if is_answer else "no-cache"
            await send(message)

        refusal = self._judge(scope)
        if refusal is None and scope["method"] in CHANGING:
            refusal = await _read_body(scope, receive)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _judge(self, scope: Scope) -> JsonAnswer | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_known(host):
            return refuse(
                403,
                "ForeignHost",
                f"The console does not answer to the name {host[:100]!r}",
                "Open it by its IP address, or start it with this name in `ui`.",
            )
        if scope["method"] not in CHANGING:
            return None
        if headers.get("origin", "") != f"{scope['scheme']}://{host}":
            text = "The request does not come from the console's own page"
            return refuse(403, "ForeignOrigin", text, "Use the console's own page.")
        if headers.get("x-lance-console") != "1":
            text = "The header X-Lance-Console is missing"
            return refuse(403, "ForeignOrigin", text, "Send X-Lance-Console: 1.")
        return None

    def _is_known(self, host: str) -> bool:
        found = _HOST.fullmatch(host.lower())
        if found is None or int(found[2] or 0) > _PORT_MAX:
            return False  # No browser sends this.
        name = found[1].strip("[]")
        return name in ("localhost", self._host) or _is_ip(name)


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _read_body(
    scope: MutableMapping[str, Any], receive: Receive
) -> JsonAnswer | None:
    """Read a body; give a refusal if it is too long or does not come in time."""
    too_large = refuse(
        413, "BodyTooLarge", f"A request may have {BODY_BYTES_MAX} bytes"
    )
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
        return too_large
    body = b""
    with anyio.move_on_after(_BODY_S), suppress(ClientDisconnect):
        async for part in Request(scope, receive).stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                return too_large
        scope[BODY] = body
        return None
    return refuse(400, "BadRequest", "The request's body did not come in time")


# What an error is in HTTP, and what to do about it. The first match counts.
_ANSWERS: tuple[tuple[type[LanceError], int, str], ...] = (
    (errors.AuthenticationRequired, 401, "Sign in with one of the broker's tokens."),
    (errors.AuthenticationFailed, 401, "Use a token of the broker's settings."),
    (errors.AccessDenied, 403, ""),
    (errors.TopicNotFound, 404, "Look at the list of topics; it may be deleted."),
    (errors.TopicDeleted, 404, "Look at the list of topics."),
    (errors.TopicAlreadyExists, 400, "Choose another name."),
    (errors.StageNotFound, 404, ""),
    (errors.PayloadTooLarge, 413, ""),
    (errors.RateLimited, 429, "Wait a few seconds, then try again."),
    (errors.Backpressure, 503, "Try again in a moment."),
    (errors.ConnectionLimit, 503, "Close other pages of the console."),
    (errors.ClusterNotReady, 503, "Wait until the broker is back."),
    (errors.OperationTimeout, 503, ""),
    (errors.StorageError, 500, "Look at the broker's log, and run lance-spark check."),
    (errors.InternalError, 500, "This is a bug: the broker's log has the details."),
    (LanceError, 400, ""),
)


class JsonAnswer(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Write the content."""
        return encode_json(content)


def encode_json(content: Any) -> bytes:
    """Write JSON on one line, in UTF-8."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # Clients may give groups and members names that are no Unicode.
    return text.encode("utf-8", "replace")


def make_refusal(request: Request, error: Exception) -> JsonAnswer:
    """Answer with an error: what it is, where, and what to do."""
    if isinstance(error, HTTPException):
        kind = "NotFound" if error.status_code == 404 else "BadRequest"
        return refuse(error.status_code, kind, error.detail)
    if isinstance(error, errors.StoreClosed):
        error = errors.ClusterNotReady("The broker is stopping")
    said = to_broker_error(error)
    # An option's error is not put in the words of the protocol: none was spoken.
    is_option = isinstance(error, errors.OptionError)
    kind = "BadRequest" if is_option else type(said).__name__
    status, remedy = next(
        (code, do) for met, code, do in _ANSWERS if isinstance(said, met)
    )
    return refuse(status, kind, said.message, remedy)


def refuse(status: int, kind: str, text: str, remedy: str = "") -> JsonAnswer:
    """Answer with an error that is put into words already."""
    return JsonAnswer({"error": {"kind": kind, "text": text, "remedy": remedy}}, status)
