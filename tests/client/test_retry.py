"""The rules for one call, without any network."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from lance_spark.client.retry import HOPS_MAX, Backoff, Decision, Retry, parse_leader
from lance_spark.errors import (
    ConnectionLost,
    LanceError,
    LeaderUnknown,
    NotLeader,
    OperationTimeout,
    RateLimited,
    RemoteProtocolError,
    Timeout,
    TopicNotFound,
)
from lance_spark.net.address import Address

A, B, C = (Address(host, 1992) for host in "abc")


class Call:
    """One call, with the time that is left for it."""

    def __init__(self, *, timeout_s: float = 10.0, **rules: Any) -> None:
        self.left_s = timeout_s
        self.retry = Retry(backoff=Backoff(0.1, 30.0, lambda: 0.0), **rules)

    def decide(
        self, error: LanceError, *, asked: Address | None = None, **more: Any
    ) -> Decision:
        return self.retry.decide(error, asked=asked, left_s=self.left_s, **more)


def redirect(leader: Any) -> NotLeader:
    return NotLeader("not leader", details={"leader_addr": leader})


@pytest.mark.parametrize(
    "error",
    [ConnectionLost("x"), Timeout("x"), LeaderUnknown("x"), OperationTimeout("x")],
)
def test_what_may_pass_is_tried_again(error: LanceError) -> None:
    retry = Call()
    steps = [retry.decide(error, asked=A) for _ in range(3)]
    avoids = isinstance(error, LeaderUnknown)
    assert steps == [Decision(n, avoids=avoids) for n in (0.2, 0.4, 0.8)]


@pytest.mark.parametrize("error", [TopicNotFound("x"), RemoteProtocolError("x")])
def test_what_will_not_pass_is_raised(error: LanceError) -> None:
    with pytest.raises(type(error)) as caught:
        Call().decide(error, asked=A)
    assert caught.value is error


def test_a_request_that_may_have_arrived_is_not_repeated() -> None:
    retry = Call(resend=False)
    assert retry.decide(ConnectionLost("x"), asked=None) == Decision(0.2)
    with pytest.raises(ConnectionLost):
        retry.decide(ConnectionLost("x"), asked=A)


def test_a_redirect_is_followed_at_once_even_without_resending() -> None:
    retry = Call(resend=False)
    assert retry.decide(redirect("b:1992"), asked=A) == Decision(0.0, B)
    assert retry.decide(redirect("c:1992"), asked=B) == Decision(0.0, C)


def test_a_circle_of_redirects_waits() -> None:
    retry = Call()
    assert retry.decide(redirect("b:1992"), asked=A) == Decision(0.0, B)
    assert retry.decide(redirect("a:1992"), asked=B) == Decision(0.2, avoids=True)
    # After the delay the cluster may know better.
    assert retry.decide(redirect("b:1992"), asked=A) == Decision(0.0, B)


def test_a_server_that_names_itself_waits() -> None:
    assert Call().decide(redirect("a:1992"), asked=A) == Decision(0.2, avoids=True)


def test_a_chain_of_redirects_has_an_end() -> None:
    retry = Call()
    nodes = [Address(f"node{number}", 1) for number in range(HOPS_MAX + 2)]
    steps = [
        retry.decide(redirect(str(leader)), asked=asked)
        for asked, leader in pairwise(nodes)
    ]
    assert [step.leader for step in steps] == [*nodes[1 : HOPS_MAX + 1], None]


def test_a_circle_is_final_without_resending() -> None:
    retry = Call(resend=False)
    retry.decide(redirect("b:1992"), asked=A)
    with pytest.raises(NotLeader):
        retry.decide(redirect("a:1992"), asked=B)


@pytest.mark.parametrize("leader", [None, 7, "", "nonsense", "a:b:c"])
def test_a_redirect_to_nowhere_waits(leader: Any) -> None:
    assert parse_leader(redirect(leader)) is None
    assert Call().decide(redirect(leader), asked=A) == Decision(0.2, avoids=True)


@pytest.mark.parametrize(
    ("details", "delay_s"),
    [
        ({"retry_after_ms": 1500}, 1.5),
        ({"retry_after_ms": 0}, 0.2),
        ({"retry_after_ms": 2.5}, 0.0025),
        ({"retry_after_ms": -1}, 0.2),
        ({"retry_after_ms": "soon"}, 0.2),
        ({"retry_after_ms": True}, 0.2),
        ({}, 0.2),
    ],
)
def test_a_rate_limit_says_when(details: dict[str, Any], delay_s: float) -> None:
    error = RateLimited("slower", details=details)
    assert Call().decide(error, asked=A) == Decision(delay_s)


def test_giving_up_when_the_next_try_would_be_too_late() -> None:
    retry = Call(timeout_s=1.0)
    lost = ConnectionLost("refused")
    for _ in range(2):
        retry.left_s -= retry.decide(lost).delay_s
    with pytest.raises(ConnectionLost) as caught:
        retry.decide(lost)
    assert str(caught.value) == "refused (gave up after 3 tries)"


def test_the_first_failure_is_raised_as_it_is() -> None:
    lost = ConnectionLost("refused")
    with pytest.raises(ConnectionLost) as caught:
        Call(timeout_s=0.1).decide(lost)
    assert caught.value is lost


def test_a_refusal_is_raised_as_it_is() -> None:
    retry = Call(timeout_s=0.5)
    error = RateLimited("slower", details={"retry_after_ms": 60_000})
    retry.decide(ConnectionLost("x"))
    with pytest.raises(RateLimited) as caught:
        retry.decide(error, asked=A)
    assert caught.value is error
