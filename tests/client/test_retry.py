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
    TopicDeleted,
    TopicNotFound,
    UnknownError,
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
    avoids = A if isinstance(error, LeaderUnknown) else None
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
    assert retry.decide(redirect("a:1992"), asked=B) == Decision(0.2, avoids=B)
    # After the delay the cluster may know better.
    assert retry.decide(redirect("b:1992"), asked=A) == Decision(0.0, B)


def test_a_server_that_names_itself_waits() -> None:
    assert Call().decide(redirect("a:1992"), asked=A) == Decision(0.2, avoids=A)


def test_a_leader_that_can_not_be_reached_is_not_asked_for_at_once() -> None:
    # The dialer fell back to the first server, which names the same leader again.
    call = Call()
    assert call.decide(redirect("b:1992"), asked=A) == Decision(0.0, B)
    assert call.decide(redirect("b:1992"), asked=A) == Decision(0.2, avoids=A)


def test_garbled_answers_are_worth_a_new_connection_where_the_caller_says_so() -> None:
    garbled = RemoteProtocolError("header CRC mismatch")
    assert Call(mends_garbled=True).decide(garbled, asked=A) == Decision(0.2)
    # A server that could never be understood is another matter.
    with pytest.raises(RemoteProtocolError):
        Call(mends_garbled=True).decide(garbled)


@pytest.mark.parametrize("error", [TopicNotFound("gone"), TopicDeleted("gone")])
def test_a_lost_topic_is_looked_up_once(error: LanceError) -> None:
    call = Call(can_look_up=True)
    assert call.decide(error, asked=A) == Decision(0.2, looks_up=True)
    with pytest.raises(type(error)):
        call.decide(error, asked=A)
    call.retry.note_progress()
    assert call.decide(error, asked=A) == Decision(0.2, looks_up=True)


def test_the_caller_may_know_that_another_try_makes_sense() -> None:
    error = UnknownError("one of them is bad")
    assert Call().decide(error, asked=A, passes=True) == Decision(0.2)


def test_progress_starts_the_delays_again() -> None:
    call, lost = Call(), ConnectionLost("cut")
    delays = [call.decide(lost, asked=A).delay_s for _ in range(2)]
    assert call.retry.has_failed
    call.retry.note_progress()
    assert not call.retry.has_failed
    delays.append(call.decide(lost, asked=A).delay_s)
    assert delays == [0.2, 0.4, 0.2]


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
    assert Call().decide(redirect(leader), asked=A) == Decision(0.2, avoids=A)


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


def test_the_last_try_has_hardly_any_time() -> None:
    """What the one before it has met tells more, if both were tries to connect."""
    for asked, text in ((None, "refused"), (A, "too late")):
        retry = Call(timeout_s=0.5)
        retry.left_s -= retry.decide(ConnectionLost("refused"), asked=asked).delay_s
        with pytest.raises(LanceError) as caught:
            retry.decide(Timeout("too late"))
        assert str(caught.value) == f"{text} (gave up after 2 tries)"


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


# The delays of LWP §17.6.


def delays(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_delay_s() for _ in range(count)]


def test_it_doubles_up_to_the_limit() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 0.0)
    assert delays(backoff, 6) == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_jitter_is_a_tenth_at_most() -> None:
    numbers = iter([0.0, 0.5, 0.999])
    backoff = Backoff(1.0, 2.0, lambda: next(numbers))
    assert delays(backoff, 3) == pytest.approx([2.0, 2.1, 2.1998])


def test_reset() -> None:
    backoff = Backoff(0.1, 30.0, lambda: 0.0)
    first = delays(backoff, 3)
    backoff.reset()
    assert delays(backoff, 3) == first


def test_it_never_overflows() -> None:
    backoff = Backoff(0.1, 30.0, lambda: 0.0)
    assert delays(backoff, 5000)[-1] == 30.0


def test_a_base_at_the_limit() -> None:
    assert delays(Backoff(5.0, 5.0, lambda: 0.0), 2) == [5.0, 5.0]
