from __future__ import annotations

import pytest

from lance_spark.broker.access import Policy
from lance_spark.broker.console import visitor as module
from lance_spark.broker.console.visitor import FAILURES_BURST, SESSION_S, Visitors
from lance_spark.broker.gate import Gate
from lance_spark.errors import AuthenticationFailed, RateLimited


class Scene:
    """Visitors of a gate with one token, and the time."""

    def __init__(self, **limits: int) -> None:
        self.now_s = 0.0
        gate = Gate(None, policy=Policy(token_required=True), tokens=["good"])  # type: ignore[arg-type]
        self.visitors = Visitors(gate.authenticate, clock=lambda: self.now_s, **limits)

    def sign_in(self, token: str = "good", peer: str = "here") -> str:
        return self.visitors.sign_in(token, peer=peer)


def test_in_and_out() -> None:
    scene = Scene()
    session = scene.sign_in()
    assert scene.visitors.is_signed_in(session)
    assert "good" not in session and len(session) > 40
    assert scene.sign_in() != session
    scene.visitors.sign_out(session)
    assert not scene.visitors.is_signed_in(session)
    scene.visitors.sign_out(session)
    scene.visitors.sign_out(None)


@pytest.mark.parametrize("session", [None, "", "guess"])
def test_who_never_came(session: str | None) -> None:
    scene = Scene()
    scene.sign_in()
    assert not scene.visitors.is_signed_in(session)


def test_sessions_end() -> None:
    scene = Scene()
    session = scene.sign_in()
    scene.now_s = SESSION_S - 1.0
    assert scene.visitors.is_signed_in(session)
    scene.now_s = SESSION_S
    assert not scene.visitors.is_signed_in(session)
    assert scene.visitors._sessions == {}


def test_number_of_sessions_is_bounded() -> None:
    scene = Scene(sessions_max=2)
    first, second, third = (scene.sign_in() for _ in range(3))
    assert [scene.visitors.is_signed_in(s) for s in (first, second, third)] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("token", ["bad", "", "\ud800", "gooḍ"])
def test_wrong_tokens(token: str) -> None:
    with pytest.raises(AuthenticationFailed):
        Scene().sign_in(token)


def test_guessing_is_slow() -> None:
    scene = Scene()
    for _ in range(FAILURES_BURST):
        with pytest.raises(AuthenticationFailed):
            scene.sign_in("bad")
    # Not even the right one: else a guess would cost nothing.
    with pytest.raises(RateLimited) as limited:
        scene.sign_in()
    wait_ms = limited.value.details["retry_after_ms"]
    assert 0 < wait_ms <= 1000 * module.FAILURE_INTERVAL_S + 1
    # Others are not held up.
    assert scene.sign_in(peer="there")
    scene.now_s += wait_ms / 1000
    assert scene.sign_in()
    for _ in range(FAILURES_BURST):
        with pytest.raises(AuthenticationFailed):
            scene.sign_in("bad")


def test_suspects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SUSPECTS_MAX", 3)
    scene = Scene()
    for number in range(10):
        with pytest.raises(AuthenticationFailed):
            scene.sign_in("bad", peer=str(number))
    assert list(scene.visitors._suspects) == ["7", "8", "9"]
