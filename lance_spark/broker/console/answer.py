"""Answers of the console: JSON, and what errors become."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from lance_spark import errors
from lance_spark.broker.service import to_broker_error
from lance_spark.errors import LanceError

# The first match counts.
_STATUS: tuple[tuple[type[LanceError], int], ...] = (
    (errors.AuthenticationRequired, 401),
    (errors.AuthenticationFailed, 401),
    (errors.AccessDenied, 403),
    (errors.TopicNotFound, 404),
    (errors.TopicDeleted, 404),
    (errors.StageNotFound, 404),
    (errors.PayloadTooLarge, 413),
    (errors.RateLimited, 429),
    (errors.Backpressure, 503),
    (errors.ConnectionLimit, 503),
    (errors.ClusterNotReady, 503),
    (errors.OperationTimeout, 503),
    (errors.StorageError, 500),
    (errors.InternalError, 500),
)
_REMEDIES = {
    "AuthenticationRequired": "Sign in with one of the broker's tokens.",
    "AuthenticationFailed": "Check the token; the broker's settings have it.",
    "RateLimited": "Wait a few seconds, then try again.",
    "TopicNotFound": "Look at the list of topics; it may have been deleted.",
    "TopicDeleted": "Look at the list of topics.",
    "TopicAlreadyExists": "Choose another name.",
    "StorageError": "Look at the broker's log, and run lance-spark check.",
    "InternalError": "This is a bug: the broker's log has the details.",
    "ClusterNotReady": "Wait until the broker is back.",
    "ConnectionLimit": "Close other pages of the console.",
    "Backpressure": "Try again in a moment.",
}


class JsonAnswer(Response):
    """JSON that nobody keeps."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200) -> None:
        super().__init__(content, status_code, {"Cache-Control": "no-store"})

    def render(self, content: Any) -> bytes:
        """Write the content."""
        return encode_json(content)


def encode_json(content: Any) -> bytes:
    """Write JSON on one line, in UTF-8."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # Clients may give groups and members names that are no Unicode.
    return text.encode("utf-8", "replace")


def make_refusal(error: Exception) -> JsonAnswer:
    """Answer with an error: what it is, where, and what to do."""
    if isinstance(error, errors.StoreClosed):
        error = errors.ClusterNotReady("The broker is stopping")
    said = to_broker_error(error)
    kind = type(said).__name__
    if isinstance(error, errors.OptionError):
        # Not the words of the protocol: nothing was sent over it.
        kind = "BadRequest"
    status = next((code for met, code in _STATUS if isinstance(said, met)), 400)
    return refuse(status, kind, said.message)


def refuse(status: int, kind: str, text: str, remedy: str | None = None) -> JsonAnswer:
    """Answer with an error that is put into words already."""
    remedy = _REMEDIES.get(kind, "") if remedy is None else remedy
    return JsonAnswer({"error": {"kind": kind, "text": text, "remedy": remedy}}, status)
