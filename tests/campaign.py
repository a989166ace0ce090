"""Campaigns: random work against a model, for as long as one likes, with its counts.

A campaign is one test with the marker `campaign` that works round by round. It has a
few rounds by default; `make campaign` sets LANCE_CAMPAIGN_SECONDS, which is how long
each goes on. Its line then says what was counted.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

SECONDS = float(os.environ.get("LANCE_CAMPAIGN_SECONDS", "0"))
# Repeats a run, whose line has it.
SEED = os.environ.get("LANCE_CAMPAIGN_SEED")


class Tally:
    """The time, the chance and the counts of one campaign.

    Args:
        name: as its line has it.
        seconds: how long it goes on.
        seed: of what is random; by default of no importance.
    """

    def __init__(self, name: str, seconds: float, seed: str) -> None:
        self.name = name
        self.seed = seed
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.rounds = 0
        self.seconds = seconds
        self._began_s = time.monotonic()

    def goes_on(self, rounds_min: int = 1) -> bool:
        """Tell whether there is another round; call it once for each."""
        self.rounds += 1
        return self.rounds <= rounds_min or not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether its time is up; a small run has none, and its rounds instead."""
        return self.elapsed_s >= self.seconds

    @property
    def elapsed_s(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self._began_s

    def __str__(self) -> str:
        counts = (
            f"{n:_}".replace("_", " ") + f" {what}" for what, n in self.counts.items()
        )
        told = ", ".join([f"{self.elapsed_s:.0f} s", *counts])
        return f"campaign {self.name}: {told} (seed {self.seed!r})"


@pytest.fixture
def tally(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> Iterator[Tally]:
    """Give a campaign its tally, and print it at the end."""
    (name,) = request.node.get_closest_marker("campaign").args
    # The small run is always the same; a long one should find what others did not.
    seed = SEED or (f"{name} {time.time_ns()}" if SECONDS else name)
    counted = Tally(name, SECONDS, seed)
    yield counted
    if SECONDS:
        with capsys.disabled():
            sys.stdout.write(f"\n{counted}\n")
    else:
        sys.stdout.write(f"{counted}\n")  # pytest shows it for a failure.
