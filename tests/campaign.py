"""Campaigns: random work against a model, for as long as one likes, with its counts.

A campaign is one test with the marker `campaign` that works round by round. It has a
few rounds by default; `make campaign` sets LANCE_CAMPAIGN_SECONDS, which is how long
each goes on. Its line then says what was counted. `make fuzz` and `make soak` do the
same for those that have their markers.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

_VARIABLES = {"fuzz": "LANCE_FUZZ_SECONDS", "soak": "LANCE_SOAK_SECONDS"}
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let campaigns be chosen by name."""
    parser.addoption("--campaign", default="", help="names of campaigns, and no others")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out the campaigns that nobody asked for, where somebody asked."""
    names = config.getoption("--campaign").split()
    if not names:
        return
    left_out = [item for item in items if _name(item) not in names]
    items[:] = [item for item in items if _name(item) in names]
    config.hook.pytest_deselected(items=left_out)


def _name(item: pytest.Item) -> str:
    marker = item.get_closest_marker("campaign")
    return "" if marker is None else str(marker.args[0])


@pytest.fixture
def tally(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> Iterator[Tally]:
    """Give a campaign its tally, and print it at the end."""
    name = _name(request.node)
    given = ["LANCE_CAMPAIGN_SECONDS"]
    given += [v for m, v in _VARIABLES.items() if request.node.get_closest_marker(m)]
    seconds = max(float(os.environ.get(variable, "0")) for variable in given)
    # The small run is always the same; a long one should find what others did not.
    seed = SEED or (f"{name} {time.time_ns()}" if seconds else name)
    counted = Tally(name, seconds, seed)
    yield counted
    if seconds:
        with capsys.disabled():
            sys.stdout.write(f"\n{counted}\n")
    else:
        sys.stdout.write(f"{counted}\n")  # pytest shows it for a failure.
