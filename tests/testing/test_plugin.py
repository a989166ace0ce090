"""The plugin, as a project has it that uses it: pytest runs inside of pytest.

Such a run forgets which modules it has imported, so that all of them are imported here,
those that are imported late among them: two of a kind would not know each other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

import pandas  # noqa: F401  # Which Arrow imports when it makes Python objects.
import pytest

import lance_spark.testing
import lance_spark.testing.scratch

_LIST_LOADED = """
import json, sys
before = set(sys.modules)
import lance_spark.testing.plugin
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def run(
    pytester: pytest.Pytester, source: str, *arguments: str, conftest: str = ""
) -> pytest.RunResult:
    """Run tests where nothing is set up for them but the plugin."""
    pytester.makepyfile(source)
    if conftest:
        pytester.makeconftest(conftest)
    if "lance_spark" not in entry_points(group="pytest11").names:
        arguments = ("-p", "lance_spark.testing.plugin", *arguments)
    # A test of a user may not leave anything behind either.
    return pytester.runpytest_inprocess("-W", "error", *arguments)


def test_plugin_imports_next_to_nothing() -> None:
    # pytest itself is there wherever the plugin is loaded.
    script = f"import pytest\n{_LIST_LOADED}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = {name for name in json.loads(done.stdout) if "lance" in name}
    assert loaded == {
        "lance_spark",
        "lance_spark.testing",
        "lance_spark.testing.plugin",
    }
    assert len(json.loads(done.stdout)) < 10


def test_names_of_the_package() -> None:
    for name in lance_spark.testing.__all__:
        assert getattr(lance_spark.testing, name) is not None
    assert set(lance_spark.testing.__all__) <= set(dir(lance_spark.testing))
    with pytest.raises(AttributeError, match="no attribute 'run_brocker'"):
        _ = lance_spark.testing.run_brocker


def test_fixtures_are_listed_with_what_they_are_for(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test(): pass", "--fixtures")
    result.stdout.fnmatch_lines(
        [
            "lance_broker_settings -- *",
            "    Give the settings of `lance_broker` and*",
            "lance_broker -- *",
            "lance_broker_process -- *",
            "lance_topic -- *",
            "lance_spark_settings [[]session scope[]] -- *",
            "lance_spark_environment [[]session scope[]] -- *",
            "lance_spark_session [[]session scope[]] -- *",
        ]
    )


def test_each_test_has_a_broker_of_its_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        seen = []

        @pytest.mark.parametrize("n", ["a", "x/y z"])
        def test_mine(lance_broker, lance_topic, n):
            assert lance_topic.exists and lance_topic.rows() == []
            assert lance_topic.name in ("test-mine-a", "test-mine-x-y-z")
            assert lance_topic.options["servers"] == lance_broker.address
            assert lance_broker.address not in seen
            seen.append(lance_broker.address)
            lance_topic.fill([n])
            assert len(lance_broker.client.topics()) == 1

        def test_process(lance_broker_process):
            topic = lance_broker_process.topic("t")
            topic.fill(["a"])
            lance_broker_process.faults.kill_and_restart()
            topic.assert_holds(["a"])
        """,
    )
    result.assert_outcomes(passed=3)


def test_failures_say_what_is_wrong(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_holds(lance_topic):
            lance_topic.fill(["a", "b", "b", "x"])
            lance_topic.assert_holds(["a", "b", "c"])

        def test_rows(lance_topic):
            lance_topic.fill([{"user": 1}])

        def test_kill(lance_broker):
            lance_broker.faults.kill_and_restart()
        """,
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            ">       lance_topic.assert_holds(*",
            "E       AssertionError: topic 'test-holds' does not hold what it should: "
            "3 records expected, 4 found",
            "E         missing (1):",
            "E           value 'c'",
            "E         too much (1):",
            "E           value 'x' at record 3 (offset 18)",
            "E         doubled (1):",
            "E           value 'b': 2 times in place of 1, at record 1 (offset 6), "
            "record 2 (offset 12)",
            "*row 0 has user: a row is text, bytes, or a dict with value*",
            "*use run_broker_process or the fixture lance_broker_process*",
        ]
    )
    # Where the test is, and not where the kit looks.
    assert "topic.py:" not in result.stdout.str().partition("test_rows")[0]


def test_faults_end_with_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        def test_disk(lance_broker, lance_topic):
            lance_broker.faults.fill_disk()
            lance_broker.faults.delay(3600)
            lance_broker.faults.cut_after(1, times=1000)

        def test_kill(lance_broker_process):
            lance_broker_process.faults.kill()

        def test_failing(lance_broker):
            lance_broker.faults.fill_disk()
            pytest.fail("on purpose")
        """,
    )
    result.assert_outcomes(passed=2, failed=1)


def test_settings_of_the_broker(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.fixture
        def lance_broker_settings():
            return {"tokens": ("sesame",), "dialect": "lwp"}

        def test_token(lance_broker, lance_topic):
            assert lance_broker.options["authToken"] == "sesame"
            lance_topic.fill(["a"])
        """,
    )
    result.assert_outcomes(passed=1)


# Spark: which settings a session would have. One is not started here.

_SHOW = """
def test_settings(lance_spark_settings):
    assert lance_spark_settings == EXPECTED
"""


def test_settings_of_spark(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        """
        [pytest]
        lance_spark_settings =
            spark.sql.shuffle.partitions=7
            spark.x = a=b
        """
    )
    expected = {"spark.sql.shuffle.partitions": "7", "spark.x": "a=b"}
    result = run(pytester, _SHOW.replace("EXPECTED", repr(expected)))
    result.assert_outcomes(passed=1)


def test_settings_of_spark_by_a_fixture(pytester: pytest.Pytester) -> None:
    conftest = """
        import pytest

        @pytest.fixture(scope="session")
        def lance_spark_settings(lance_spark_settings):
            return {**lance_spark_settings, "spark.x": "1"}
        """
    source = _SHOW.replace("EXPECTED", '{"spark.x": "1"}')
    run(pytester, source, conftest=conftest).assert_outcomes(passed=1)


def test_settings_that_are_none(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nlance_spark_settings =\n    spark.x 1\n")
    result = run(pytester, _SHOW.replace("EXPECTED", "{}"))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*lance_spark_settings: 'spark.x 1' is not*"])
