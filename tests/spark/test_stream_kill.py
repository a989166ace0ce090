"""Kill and restart: a query from topic to topic loses nothing and doubles nothing.

Everything is a process of its own and is killed at random moments while batches run:
the query with its JVM and its Python workers, its JVM alone, single workers, the
broker.
In the end one topic holds exactly the transform of the other.

One campaign by default; `make soak` makes campaigns for SOAK_SECONDS.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.campaign import Tally
from tests.integration.process import HAS_PROC
from tests.spark.campaign.account import check_output
from tests.spark.campaign.campaign import Campaign, Target, plan_kills
from tests.spark.campaign.hop import make_transform

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.skipif(not HAS_PROC, reason="/proc says who is a worker"),
]

# A campaign of a soak: long enough for checkpoints that Spark has cleaned up, and short
# enough for what is wrong to be found in what is left on the disk.
CAMPAIGN_SECONDS = 900.0


def run_campaign(directory: Path, seed: str, *, until_s: float, tally: Tally) -> None:
    """Kill each thing in turn, once and until a time."""
    campaign = Campaign(directory, seed, make_transform)
    try:
        campaign.run(plan_kills(campaign.rng))
        while time.monotonic() < until_s:
            campaign.run(plan_kills(campaign.rng))
        assert campaign.kills[Target.DRIVER] + campaign.kills[Target.JVM] >= 2
        assert campaign.kills[Target.BROKER] >= 3
        records = campaign.finish(check_output)
    except BaseException:
        # pytest shows this for a failure.
        print(f"seed: {seed!r}; {campaign.describe()}")  # noqa: T201
        raise
    finally:
        campaign.close()
    for target, kills in campaign.kills.items():
        tally.counts[f"kills of {target.name.lower()}"] += kills
    tally.counts["records"] += records
    tally.counts.update(dict.fromkeys(("lost", "doubled", "silent"), 0))


@pytest.mark.campaign("stream")
def test_killed_at_random_moments(tmp_path: Path, tally: Tally) -> None:
    while tally.goes_on():
        directory = tmp_path / str(tally.rounds)
        directory.mkdir()
        left_s = min(tally.seconds - tally.elapsed_s, CAMPAIGN_SECONDS)
        until_s = time.monotonic() + left_s
        seed = f"{tally.seed} {tally.rounds}"
        run_campaign(directory, seed, until_s=until_s, tally=tally)
        shutil.rmtree(directory)
