"""The gate; tests/integration/test_network.py has it with frames of LWP."""

from __future__ import annotations

import pytest

from lance_spark.testing.flow import CLEAR, Fate, Flow, Gate


def pass_through(flow: Flow, *pieces: bytes) -> tuple[list[bytes], bool]:
    gate = Gate(flow)
    return [gate.take(piece) for piece in pieces], gate.is_cut


def test_clear() -> None:
    assert Fate() == CLEAR
    assert pass_through(Flow(), b"abc", b"", b"d") == ([b"abc", b"", b"d"], False)


@pytest.mark.parametrize(
    ("flow", "passed", "is_cut"),
    [
        (Flow(cut_at=0), [b"", b""], True),
        (Flow(cut_at=2), [b"ab", b""], True),
        (Flow(cut_at=3), [b"abc", b""], True),
        (Flow(cut_at=4), [b"abc", b"d"], True),
        (Flow(cut_at=7), [b"abc", b"def"], False),
        (Flow(swallow_at=0), [b"", b""], False),
        (Flow(swallow_at=4), [b"abc", b"d"], False),
        (Flow(swallow_at=1, cut_at=4), [b"a", b""], True),
    ],
)
def test_bytes(flow: Flow, passed: list[bytes], is_cut: bool) -> None:
    assert pass_through(flow, b"abc", b"def") == (passed, is_cut)


def test_frames_are_counted_only_where_that_matters() -> None:
    assert not Flow(cut_at=1, swallow_at=2).counts_frames
    assert Flow(cut_frame=0).counts_frames
    assert Flow(swallow_frame=0).counts_frames
