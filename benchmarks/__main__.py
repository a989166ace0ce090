"""Run benchmarks, print their tables, put them into docs/performance.md and draw them.

python -m benchmarks                  all of them
python -m benchmarks columnar         one of them
python -m benchmarks --quick          fewer repetitions; the docs are left alone
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time
from collections.abc import Callable

import benchmarks
from benchmarks._turns import touch_memory
from benchmarks.plot import draw_pictures
from benchmarks.report import DOCS, Report, write_tables


def find_benchmarks() -> dict[str, Callable[[Report], None]]:
    """Find the modules of this package that have a `run`."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    modules = {
        name: importlib.import_module(f"benchmarks.{name}")
        for name in names
        if not name.startswith("_")
    }
    return {name: m.run for name, m in modules.items() if hasattr(m, "run")}


def main() -> None:
    """Do what the command line says."""
    there = find_benchmarks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(there))
    parser.add_argument("--quick", action="store_true", help="print rough figures only")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in there]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(there)}")
    if not options.quick:
        touch_memory()
    for name in options.names or there:
        start_s = time.monotonic()
        report = Report(quick=options.quick)
        there[name](report)
        print(f"{report.text}\n")
        took_s = time.monotonic() - start_s
        print(f"{name} took {took_s:.0f} s", file=sys.stderr)
        if not options.quick:
            write_tables(DOCS, name, report.text)
    if not options.quick:
        draw_pictures()


if __name__ == "__main__":
    main()
