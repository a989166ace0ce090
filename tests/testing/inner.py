"""Runs tests of users inside of our own, with the session that those have already."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path

import pytest

# There is one session in a process, and another JVM would take a third of a minute.
CONFTEST = """
import pytest
from pyspark.sql import SparkSession

@pytest.fixture(scope="session")
def lance_spark_session():
    return SparkSession.getActiveSession()
"""


@dataclass
class Outcome:
    """What came of a run: the outcome of each test, and what failures say."""

    outcomes: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a test, or of what went wrong around it."""
        name = report.nodeid.rpartition("::")[2]
        if report.when == "call" or report.failed:
            self.outcomes[name] = report.outcome
        if report.failed:
            self.failures.append(report.longreprtext)


def run_tests(directory: Path, *files: Path) -> Outcome:
    """Run test files by themselves, apart from the plugin.

    Not by pytester: that forgets the modules which a run has imported, and Spark
    imports more of them whenever it does something new.

    Args:
        directory: the root of the run, whose `conftest.py` is written.
        files: the tests.
    """
    (directory / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    arguments = ["-q", "-p", "no:cacheprovider", "-c", str(directory / "pytest.ini")]
    arguments += ["--rootdir", str(directory), "--confcutdir", str(directory)]
    if "lance_spark" not in entry_points(group="pytest11").names:
        arguments += ["-p", "lance_spark.testing.plugin"]
    arguments += ["--basetemp", str(directory / "temporary")]
    outcome, path = Outcome(), list(sys.path)
    pytest.main([*arguments, *map(str, files)], plugins=[outcome])
    # Nobody else is to import what is there.
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(directory)):
            del sys.modules[name]
    return outcome
