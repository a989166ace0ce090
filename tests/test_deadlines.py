"""The run ends, however it is started and whatever hangs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WAITING = {".wait", ".join", ".communicate", ".result"}
# Waits without a deadline that are right, each with its reason.
ALLOWED = {
    # These joins are of a group, whose own deadline is in its setting.
    "tests/client/lwp/test_group_member.py: member.join()",
    # Ended by the test that has its own deadline; asynchronous code has no timeout.
    "tests/net/test_web.py: ending.wait()",
    # A query that is spare waits for its turn. It ends when standard input does.
    "tests/spark/campaign/query.py: order.is_going.wait()",
    # Calls of a client that others wrote, which have no timeout: the test has.
    *(
        f"tests/integration/test_fluvio_client.py: {call}.wait()"
        for call in (
            "output",
            "producer.send_string('plain')",
            "producer.send_string(f'{number}')",
        )
    ),
    # A connection through the relay lives as long as both of its sides.
    "lance_spark/testing/relay.py: thread.join()",
}


def find_waits(path: Path) -> Iterator[str]:
    """List the calls of a file that may wait for ever."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        named = {keyword.arg for keyword in node.keywords}
        if called == "subprocess.run":
            is_endless = "timeout" not in named
        else:
            is_bare = not node.args and not named
            is_endless = is_bare and Path(called).suffix in WAITING
        if is_endless:
            yield ast.unparse(node)


def test_every_wait_has_a_deadline() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {call}"
        for place in ("tests", "lance_spark/testing", "examples", "scripts")
        for path in (ROOT / place).rglob("*.py")
        for call in find_waits(path)
    }
    assert found == ALLOWED


def test_every_test_has_a_deadline(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        marker = item.get_closest_marker("timeout")
        assert marker is not None and marker.args[0] > 0, item.nodeid


def run_pytest(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run pytest as a script would that it is a part of, where SIGINT is ignored."""
    background = ["bash", "-c", 'trap "" INT; exec "$@"', "bash"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Not a part of the run that this test belongs to.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [*background, *command, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("processes", ["0", "1"])
def test_processes_can_be_interrupted_where_sigint_is_ignored(processes: str) -> None:
    done = run_pytest(
        *("-n", processes),
        "tests/cli/test_broker.py::test_interrupt_is_a_normal_end",
        "tests/cli/test_broker.py::test_second_signal_does_not_wait",
        "tests/cli/test_produce.py::test_interrupt_of_a_process",
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


HANGING = """
import threading

import pytest

@pytest.mark.timeout(0.5)
def test_one():
    threading.Event().wait(200)

@pytest.mark.timeout(0.5)
def test_two():
    try:
        threading.Event().wait(200)
    finally:
        # The alarm was for the first wait.
        threading.Event().wait(200)

def test_three():
    pass
"""


def test_what_hangs_fails_and_what_hangs_on_ends(tmp_path: Path) -> None:
    conftest = (ROOT / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(f"{conftest}\n_LAST_S = 1.0\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_hanging.py").write_text(HANGING)
    alone = run_pytest("-v", "-k", "not two", cwd=tmp_path)
    assert "1 failed, 1 passed" in alone.stdout, alone.stdout + alone.stderr
    assert "Timeout (>0.5s)" in alone.stdout
    done = run_pytest("-v", cwd=tmp_path)
    assert done.returncode == 1
    assert "test_two" in done.stderr and "Timeout (0:00:01.5" in done.stderr


UNEVEN = """
import threading

def test_short():
    pass

def test_long():
    threading.Event().wait(3)
"""


def test_a_process_that_is_done_waits_for_the_others(tmp_path: Path) -> None:
    conftest = (ROOT / "conftest.py").read_text(encoding="utf-8")
    worker = '_LAST_S = 0.5 if "PYTEST_XDIST_WORKER" in os.environ else 60.0'
    (tmp_path / "conftest.py").write_text(f"{conftest}\n{worker}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_uneven.py").write_text(UNEVEN)
    done = run_pytest("-n", "2", cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout" not in done.stdout + done.stderr
