"""The first words on a connection: who we are, and what the server can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_spark.errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectionLost,
    InvalidPayload,
    TlsRefused,
    UnknownError,
)
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import (
    Authenticate,
    AuthenticateResponse,
    ClusterStatus,
    GetClusterStatus,
    Message,
)

if TYPE_CHECKING:
    from lance_spark.client.connection import Connection


class ConnectionEnded(ConnectionLost):
    """A server took the connection and closed it before it had answered anything.

    Servers do that to a client whose checksum is not theirs (LWP §11.3).
    """


def greet(
    connection: Connection, token: str | None, deadline: Deadline
) -> ClusterStatus:
    """Authenticate if there is a token, and ask for the server's status.

    Raises:
        ConnectionEnded: the server closed before its first answer.
        AuthenticationFailed: the token is wrong.
        BrokerError: the server takes no clients now.
    """
    has_answered = False
    try:
        if token is not None:
            _authenticate(connection, token, deadline)
            has_answered = True
        return _ask_status(connection, deadline)
    except ConnectionLost as error:
        if has_answered or isinstance(error, TlsRefused):
            raise
        raise ConnectionEnded(
            f"{error} before its first answer; if it is up, check that checksum "
            f"({connection.checksum.value}) and tls are what it uses"
        ) from error


def _authenticate(connection: Connection, token: str, deadline: Deadline) -> None:
    try:
        answer = connection.request(Authenticate(token), deadline=deadline)
    except BrokerError as error:
        # A server may quote what it was sent.
        if token in str(error):
            raise type(error)(_hide(token, error.message), error.code) from None
        raise
    assert isinstance(answer, AuthenticateResponse)
    if not answer.ok:
        reason = _hide(token, answer.message) or "the server gave no reason"
        raise AuthenticationFailed(
            f"{connection.address} refused the token: {reason}; check auth_token"
        )


def _hide(token: str, text: str) -> str:
    return text.replace(token, "***")


def _ask_status(connection: Connection, deadline: Deadline) -> ClusterStatus:
    try:
        answer: Message = connection.request(GetClusterStatus(), deadline=deadline)
    except (InvalidPayload, UnknownError):
        # A server that does not know the question has nothing to offer beyond LWP.
        return ClusterStatus()
    assert isinstance(answer, ClusterStatus)
    return answer
