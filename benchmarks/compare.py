"""Compare this checkout with another revision, in turns, on one machine.

python -m benchmarks.compare main                      all figures but Spark's
python -m benchmarks.compare main --parts spark        only Spark's
python -m benchmarks.compare v0.6.0 --rounds 15        narrower spreads

The other revision is unpacked and compiled in a temporary directory; the checkout is
not touched. In each round both trees have a process and brokers of their own. Each
figure is taken of them in turns (A B B A ...), so that both meet the same moments of a
busy machine, and a round gives one ratio per figure: the median of its turns. New
processes for every round even out what depends on the layout of memory.

A figure has two ratios, by the time that passed and by processor time. Both have to
pass, but where other programs keep the machine busy only the second one is judged.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks._child import Child
from benchmarks._figures import PARTS
from benchmarks.report import format_rate

_CHECKOUT = Path(__file__).resolve().parent.parent
_MEASURING_CODE = (Path(__file__).parent / "_figures.py").read_text(encoding="utf-8")
# Which tree is measured, turn by turn.
_TURNS = ("base", "new", "new", "base")
_RESAMPLES = 2000


@dataclass(frozen=True)
class Ratio:
    """New to base: the median of all rounds, and where it is with 99 % confidence."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Ratio:
        """Take the ratio of each round; the spread is that of resampled medians."""
        chance = random.Random(13)
        medians = sorted(
            median(chance.choices(rounds, k=len(rounds))) for _ in range(_RESAMPLES)
        )
        tail = _RESAMPLES // 200
        return cls(median(rounds), medians[tail], medians[-tail - 1])

    def is_below(self, least: float) -> bool:
        """Tell whether it is too low even at the upper end of its spread."""
        return self.high < least

    def __str__(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"


def start_tree(directory: Path, parts: Sequence[str]) -> Child:
    """Start a process that takes figures of one tree."""
    return Child(
        ["-c", _MEASURING_CODE, *parts],
        directory=directory,  # `-c` looks for modules here first.
        environment={"PYTHONPATH": str(directory)},
    )


@contextmanager
def unpack(revision: str) -> Iterator[Path]:
    """Unpack a revision into a temporary directory and compile what it compiles."""
    archive = subprocess.run(
        ["git", "-C", str(_CHECKOUT), "archive", "--format=tar", revision],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        raise SystemExit(f"BASE={revision}: {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="lance-base-") as name:
        directory = Path(name)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(directory, filter="data")
        build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(build, cwd=directory, check=True, capture_output=True)
        yield directory


class Comparison:
    """What was measured of both trees, round by round."""

    def __init__(self) -> None:
        self._rates: dict[str, list[float]] = defaultdict(list)
        self._wall: dict[str, list[float]] = defaultdict(list)
        self._cpu: dict[str, list[float]] = defaultdict(list)

    def add_round(
        self, trees: dict[str, Child], figures: list[str], turns: int
    ) -> None:
        """Take all figures of both trees, in turns."""
        for figure in figures:
            took: dict[str, list[list[float]]] = {"base": [], "new": []}
            for _ in range(turns):
                for name in _TURNS:
                    took[name].append(trees[name].ask(figure))
            pairs = list(zip(took["new"], took["base"], strict=True))
            self._rates[figure] += [new[0] for new in took["new"]]
            self._wall[figure].append(median(new[0] / base[0] for new, base in pairs))
            self._cpu[figure].append(median(new[1] / base[1] for new, base in pairs))

    def report(self, least: float, *, is_busy: bool) -> bool:
        """Print a line per figure; tell whether all of them pass."""
        if is_busy:
            print("other programs use this machine: only processor time is judged")
        print(f"{'figure':26} {'new/s':>7}  {'new/base':23}  by processor time")
        passes = True
        for figure, rates in self._rates.items():
            wall, cpu = Ratio.of(self._wall[figure]), Ratio.of(self._cpu[figure])
            is_low = cpu.is_below(least) or (not is_busy and wall.is_below(least))
            passes = passes and not is_low
            rate, mark = format_rate(median(rates)), "  TOO LOW" if is_low else ""
            print(f"{figure:26} {rate:>7}  {wall!s:23}  {cpu}{mark}")
        return passes


def compare(base: Path, parts: Sequence[str], *, rounds: int, turns: int) -> Comparison:
    """Measure both trees in new processes for each round."""
    comparison = Comparison()
    directories = {"base": base, "new": _CHECKOUT}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        # The second to start finds its files in the page cache: take turns there, too.
        names = ["base", "new"] if number % 2 else ["new", "base"]
        with ExitStack() as stack:
            trees = {}
            for name in names:
                child = start_tree(directories[name], parts)
                trees[name] = stack.enter_context(child)
                figures = child.read()
            comparison.add_round(trees, figures, turns)
    return comparison


def main() -> int:
    """Do what the command line says; fail if a figure is too low."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("base", metavar="REVISION", help="what to compare with")
    default = ["broker", "columnar"]
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=default)
    parser.add_argument("--rounds", type=int, default=9, help="with new processes")
    parser.add_argument("--turns", type=int, default=2, help="A B B A, per round")
    parser.add_argument("--min", type=float, default=0.97, help="the least that passes")
    options = parser.parse_args()
    is_busy = os.getloadavg()[0] > (os.cpu_count() or 1) / 2
    with unpack(options.base) as base:
        found = compare(base, options.parts, rounds=options.rounds, turns=options.turns)
    return not found.report(options.min, is_busy=is_busy)


if __name__ == "__main__":
    sys.exit(main())
