"""Stages: what is asked, and that lost answers are asked for again."""

from __future__ import annotations

import pytest

from lance_spark.errors import LocalProtocolError, StageMismatchError, Unsupported
from lance_spark.wire.lwp import (
    LIST_LIMITS,
    AbortStages,
    CommitStages,
    CommitStatus,
    ErrorResponse,
    OpenStage,
    StageContent,
    StageOpened,
    StagesAborted,
    StagesCommitted,
    TopicSpan,
)
from tests.client.scripted import EVERYTHING, FakeTime, Network, Peer, serving

STAGE = 0x80000001
COMMITTED = StagesCommitted(CommitStatus.COMMITTED, (TopicSpan(1, "events", 0, 300),))


def test_open_commit_abort(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet(*EVERYTHING)
        assert peer.request() == OpenStage("events", "writer", 4)
        peer.answer(StageOpened(STAGE))
        stages = (StageContent(STAGE, 3, 300),)
        assert peer.request() == CommitStages("writer", 4, ("old",), stages)
        peer.answer(COMMITTED)
        assert peer.request() == AbortStages("writer", 5)
        peer.answer(StagesAborted(2))
        peer.wait_for_end()

    network.serve(script)
    client = network.client()
    assert client.open_stage("events", "writer", 4) == STAGE
    stages = [StageContent(STAGE, 3, 300)]
    assert client.commit_stages("writer", 4, stages, overwrite=["old"]) == COMMITTED
    assert client.abort_stages("writer", 5) == 2


def test_lost_answers_are_asked_for_again(
    network: Network, fake_time: FakeTime
) -> None:
    def losing(peer: Peer) -> None:
        peer.greet(*EVERYTHING)
        peer.request()

    table = {
        OpenStage: StageOpened(STAGE),
        CommitStages: COMMITTED,
        AbortStages: StagesAborted(0),
    }
    client = network.client(runtime=fake_time.runtime(network))
    for call in (
        lambda: client.open_stage("events", "writer", 4),
        lambda: client.commit_stages("writer", 4, []),
        lambda: client.abort_stages("writer", 4),
    ):
        network.serve(losing, serving(table, *EVERYTHING))
        client.disconnect()
        call()
    assert fake_time.pauses == [0.2] * 3


def test_a_refused_commit(network: Network) -> None:
    refusal = ErrorResponse(0x72, "2 batches, not 3")
    network.serve(serving({CommitStages: refusal}, *EVERYTHING))
    with pytest.raises(StageMismatchError, match="2 batches"):
        network.client().commit_stages("writer", 4, [StageContent(STAGE, 3, 300)])


def test_a_plain_server_has_no_stages(network: Network) -> None:
    network.serve(serving())
    client = network.client()
    for call in (
        lambda: client.open_stage("events", "writer", 4),
        lambda: client.commit_stages("writer", 4, []),
        lambda: client.abort_stages("writer", 4),
    ):
        with pytest.raises(Unsupported, match="writing exactly once") as caught:
            call()
        assert caught.value.capability == "staged-commit"


def test_a_commit_of_too_many_stages(network: Network) -> None:
    """It is not sent, and the text says which request it is about."""
    network.serve(serving({}, *EVERYTHING))
    most = LIST_LIMITS["CommitStages.stages"]
    stages = [StageContent(STAGE, 1, 1)] * (most + 1)
    text = f"commit stages: list of {most + 1} items is too long: at most {most}"
    with pytest.raises(LocalProtocolError, match=f"^{text}$"):
        network.client().commit_stages("writer", 4, stages)
