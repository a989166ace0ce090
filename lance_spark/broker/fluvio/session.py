"""What a client of Fluvio meets on both ports: frames, versions, refusals.

Answers carry the number of their request and are in its version, whatever that is: a
request is read by the version in its header, also one that was not offered. An answer
that has no place for an error is not sent: the connection is closed, and the log says
why.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from lance_spark.broker.service import to_broker_error
from lance_spark.broker.session import Session
from lance_spark.errors import (
    AuthenticationRequired,
    BrokerError,
    ConnectionLost,
    PayloadOverLimit,
    RemoteProtocolError,
    TopicAlreadyExists,
    TopicNotFound,
)
from lance_spark.model import Buffer
from lance_spark.wire import fluvio as wire

logger = logging.getLogger(__name__)

# Clients insist on a version like this one, and compare it with their own.
_PLATFORM_VERSION = "0.18.1"

# Gives the answer, or None if it is owed, stands, or was sent already.
Handler = Callable[[Any, Any], "wire.Response | None"]


class FluvioSession(Session[wire.Frame]):
    """Serves one client of Fluvio, in one role."""

    ROLE: ClassVar[wire.Role]
    HANDLERS: ClassVar[Mapping[type[wire.Request], Handler]]

    def _make_parser(self) -> wire.FrameParser:
        return wire.FrameParser(payload_bytes_max=self._payload_bytes_max)

    def _handle(self, frame: wire.Frame) -> None:
        request = wire.decode_request(frame, self.ROLE)
        if not self.is_admitted:
            raise AuthenticationRequired(
                "this broker asks for a token, which Fluvio can't carry: use TLS with "
                "a client certificate"
            )
        if isinstance(request, wire.ApiVersions):
            answer: wire.Response | None = wire.Versions(
                keys=wire.API_KEYS[self.ROLE], platform_version=_PLATFORM_VERSION
            )
        else:
            answer = self.HANDLERS[type(request)](self, request)
        if answer is not None:
            self._observe(type(request).__name__, self._began_s)
            self._answer(request, answer)

    def _answer(self, request: wire.Request, answer: wire.Response) -> None:
        self._send(self._encode(request, answer))

    @staticmethod
    def _encode(request: wire.Request, answer: wire.Response) -> list[Buffer]:
        """Write an answer as the request wants it."""
        return wire.encode_message(
            replace(
                answer,
                correlation_id=request.correlation_id,
                api_version=request.api_version,
            )
        )

    def _refuse(self, error: BrokerError, frame: wire.Frame | None) -> None:
        self._settle()
        answer: wire.Response | None = None
        if frame is not None:
            try:
                request = wire.decode_request(frame, self.ROLE)
            except RemoteProtocolError:
                # What is behind it may be no frame either.
                pass
            else:
                if isinstance(request, wire.ApiVersions):
                    answer = wire.Versions(wire.code_of(error))
                else:
                    answer = self._make_refusal(request, error)
        if answer is None:
            logger.warning("%s: closed: %s", self._stream.peer, error)
            # Whatever stands on the connection ends with it.
            raise ConnectionLost(f"{self._stream.peer}: closed")
        self._log(error, type(request).__name__)
        self._answer(request, answer)

    def _reject(self, error: RemoteProtocolError) -> None:
        if not isinstance(error, PayloadOverLimit):
            super()._reject(error)
            return
        # The client only sees that the connection ends, and may send it for ever.
        logger.warning(
            "%s: closed: %s (payload_bytes_max): send less at a time",
            self._stream.peer,
            error,
        )

    @abstractmethod
    def _make_refusal(
        self, request: wire.Request, error: BrokerError
    ) -> wire.Response | None:
        """Make the answer that says why; None if it has no place for that."""

    def _fail(
        self, error: Exception, where: str, offset: int | None = None
    ) -> wire.ErrorCode:
        """Give the code of a failure; count it, and say in the log what it was."""
        self._count("requests_refused")
        return self._code(error, where, offset)

    def _code(
        self, error: Exception, where: str, offset: int | None = None
    ) -> wire.ErrorCode:
        told = to_broker_error(error)
        self._log(told, where)
        return wire.code_of(told, offset)

    def _log(self, error: BrokerError, where: str) -> None:
        is_usual = isinstance(error, TopicNotFound | TopicAlreadyExists)
        log = logger.debug if is_usual else logger.warning
        log("%s: %s: %s", self._stream.peer, where, error)
