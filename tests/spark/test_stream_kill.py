"""Kill and restart: a query from topic to topic loses nothing and doubles nothing.

Everything is a process of its own and is killed at random moments while batches run:
the query with its JVM and its Python workers, its JVM alone, single workers, the
broker.
In the end one topic holds exactly the transform of the other.

One campaign by default; `make soak` makes campaigns for SOAK_SECONDS.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.integration.process import HAS_PROC
from tests.spark.campaign.campaign import Campaign, Target

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.skipif(not HAS_PROC, reason="/proc says who is a worker"),
]

SECONDS = float(os.environ.get("LANCE_SOAK_SECONDS", "0"))
# A campaign of a soak: long enough for checkpoints that Spark has cleaned up, and short
# enough for what is wrong to be found in what is left on the disk.
CAMPAIGN_SECONDS = 900.0
SEED = os.environ.get("LANCE_CAMPAIGN_SEED")


def run_campaign(directory: Path, seed: str, *, until_s: float) -> None:
    """Kill each thing in turn, once and until a time."""
    campaign = Campaign(directory, seed)
    try:
        campaign.run_round()
        while time.monotonic() < until_s:
            campaign.run_round()
        assert campaign.kills[Target.DRIVER] + campaign.kills[Target.JVM] >= 2
        assert campaign.kills[Target.BROKER] >= 3
        campaign.finish()
    except BaseException:
        # pytest shows this for a failure.
        print(f"seed: {seed!r}; {campaign.describe()}")  # noqa: T201
        raise
    finally:
        campaign.close()


def test_killed_at_random_moments(tmp_path: Path) -> None:
    ends_s = time.monotonic() + SECONDS
    for number in itertools.count():
        directory = tmp_path / str(number)
        directory.mkdir()
        seed = SEED or f"stream {time.time_ns()}"
        until_s = min(ends_s, time.monotonic() + CAMPAIGN_SECONDS)
        run_campaign(directory, seed, until_s=until_s)
        shutil.rmtree(directory)
        if time.monotonic() >= ends_s:
            break
