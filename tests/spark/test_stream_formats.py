"""Streams from format to format that are killed: nothing is lost, and what is doubled.

All queries of a round run at once in one Spark, on one broker that speaks all
protocols; whatever is killed, all of them meet it. In the end each topic has what the
one before it has: every record at least as often, and into `lance` exactly so.

By default there is the chain through all formats, with two kills. `make soak` goes on
with queries that are killed whole: the chain, and all pairs, those of one source at a
time with twenty kills each.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.campaign import Tally
from tests.integration.process import HAS_PROC
from tests.integration.protocol import LISTENERS
from tests.spark.campaign.account import check_copies
from tests.spark.campaign.campaign import Campaign, Target, plan_kills
from tests.spark.campaign.hop import FORMATS, Hop, make_hop

KILLS = 20
# Keys and times come as far as they can.
CHAIN = ("lance", "fluvio", "tank", "rustlog", "kimberlite", "lance")
# The broker, and all processes that plan batches, with which the queries end.
CHAIN_KILLS = (Target.BROKER, Target.PLANNER)
# Twenty kills of each source take some ten minutes, on a busy machine more.
_VARIABLES = ("LANCE_SOAK_SECONDS", "LANCE_CAMPAIGN_SECONDS")
SECONDS = max(float(os.environ.get(name, "0")) for name in _VARIABLES)
DEADLINE_S = 1800 * len(FORMATS) + 1.5 * SECONDS

AddressOf = Callable[[str], str]
pytestmark = pytest.mark.skipif(not HAS_PROC, reason="/proc says who is a worker")


def plan_chain(address_of: AddressOf) -> list[Hop]:
    """Plan queries through all formats, one behind the other."""
    ends = [(name, f"{number}-{name}") for number, name in enumerate(CHAIN)]
    return [make_hop(address_of, *pair) for pair in itertools.pairwise(ends)]


def plan_star(source: str, address_of: AddressOf) -> list[Hop]:
    """Plan queries from one format to each, the last of them `lance`."""
    return [
        make_hop(address_of, (source, "in"), (name, f"out-{name}"))
        for name in reversed(FORMATS)
    ]


def run_round(campaign: Campaign, kills: Sequence[Target], tally: Tally) -> None:
    """Have queries copy while something is killed, again and again; count."""
    doubled: dict[str, int] = {}
    try:
        campaign.run(kills)
        records = campaign.finish(
            lambda client, hops: doubled.update(check_copies(client, hops))
        )
    except BaseException:
        # pytest shows this for a failure.
        print(f"seed: {tally.seed!r}; {campaign.describe()}")  # noqa: T201
        raise
    finally:
        campaign.close()
    for hop in campaign.hops:
        promise = "exactly once" if hop.is_once else "at least once"
        into = f"doubled from {hop.formats[0]} to {hop.formats[1]} ({promise})"
        tally.counts[into] += doubled[hop.name]
    tally.counts["records"] += records
    tally.counts["kills"] += campaign.kills.total()
    tally.counts["lost"] = 0


def test_a_chain_through_all_formats(
    spark: SparkSession, tmp_path: Path, tally: Tally
) -> None:
    campaign = Campaign(tmp_path, "chain", plan_chain, spark=spark, **LISTENERS)
    run_round(campaign, CHAIN_KILLS, tally)
    assert {format for hop in campaign.hops for format in hop.formats} == {*FORMATS}
    assert tally.counts["records"] and tally.counts["kills"] == len(CHAIN_KILLS)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.campaign("formats")
@pytest.mark.skipif(not SECONDS, reason="only `make soak` and `make campaign` run it")
def test_killed_from_format_to_format(tmp_path: Path, tally: Tally) -> None:
    plans = [plan_chain, *(functools.partial(plan_star, name) for name in FORMATS)]
    while tally.goes_on(len(plans)):
        directory = tmp_path / str(tally.rounds)
        directory.mkdir()
        plan = plans[(tally.rounds - 1) % len(plans)]
        seed = f"{tally.seed} {tally.rounds}"
        campaign = Campaign(directory, seed, plan, **LISTENERS)
        run_round(campaign, plan_kills(campaign.rng, KILLS), tally)
        shutil.rmtree(directory)
