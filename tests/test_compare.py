"""`make compare`: ratios of two revisions, measured in turns."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compare import Ratio, unpack

ROOT = Path(__file__).parent.parent


def test_a_ratio_is_too_low_only_beyond_its_spread() -> None:
    steady = Ratio.of([0.95, 0.951, 0.949, 0.95, 0.952, 0.95, 0.948])
    assert steady.is_below(0.97)
    assert not steady.is_below(0.948)
    noisy = Ratio.of([0.95, 1.2, 0.7, 0.96, 1.1, 0.8, 0.94])
    assert noisy.middle == 0.95
    assert not noisy.is_below(0.97)


def test_an_unknown_revision_is_refused() -> None:
    with (
        pytest.raises(SystemExit, match="BASE=no-such-revision: "),
        unpack("no-such-revision"),
    ):
        pass


@pytest.mark.slow
def test_it_measures_the_last_commit_and_the_checkout() -> None:
    command = [sys.executable, "-m", "benchmarks.compare", "HEAD", "--rounds", "1"]
    # No revision is a thousand times as fast as another.
    command += ["--turns", "1", "--min", "1000", "--parts", "columnar"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1, done.stderr
    head, *lines = [line for line in done.stdout.splitlines() if "other" not in line]
    assert head.split() == ["figure", "new/s", "new/base", "by", "processor", "time"]
    assert [line.split(",")[0] for line in lines] == ["encode", "decode"] * 3
    assert all(line.endswith("TOO LOW") for line in lines)
