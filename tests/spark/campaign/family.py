"""The processes that a child has started, by what they do; read from /proc.

A child leads a session of its own. Its descendants make process groups as they like
and lose their parents as those die, but they stay in the session.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.integration.kit import wait_for

END_S = 30.0

_DAEMON = "pyspark.daemon"
_SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"
_SINK = (
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.python_streaming_sink_runner",
)


class Role(Enum):
    """What a Python process does for a streaming query."""

    TASK = "runs tasks; Spark runs those again that it had"
    SINK = "makes writers and commits; the query fails if it was just doing so"
    SOURCE = "plans the batches; the query fails without it"


@dataclass(frozen=True)
class Process:
    """A process that was there a moment ago."""

    pid: int
    parent: int
    session: int
    command: tuple[str, ...]
    # It was computing, not waiting for somebody.
    is_busy: bool

    def kill(self) -> bool:
        """Kill it, as `kill -9` does, and wait for its end; False if it has ended."""
        if not is_alive(self.pid):
            return False
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        wait_for(lambda: not is_alive(self.pid), f"{self} ends", END_S)
        return True


def list_session(session: int) -> list[Process]:
    """List the processes of a session that are alive."""
    found = (_read_process(int(p.name)) for p in Path("/proc").glob("[0-9]*"))
    return [each for each in found if each is not None and each.session == session]


def list_workers(session: int, role: Role) -> list[Process]:
    """List the Python processes of a session that do something."""
    processes = list_session(session)
    commands = {each.pid: each.command for each in processes}
    found = []
    for each in processes:
        # A daemon and the workers that it forks have the same command.
        is_forked = commands.get(each.parent) == each.command
        if _find_role(each.command, is_forked=is_forked) is role:
            found.append(each)
    return found


def _find_role(command: tuple[str, ...], *, is_forked: bool) -> Role | None:
    if _SOURCE in command:
        return Role.SOURCE
    if _DAEMON not in command or not is_forked:
        return None
    if command[-1] in _SINK:
        return Role.SINK
    return Role.TASK if command[-1] == "pyspark.worker" else None


def find_jvm(session: int) -> Process:
    """Find the JVM of a session."""
    found = {
        each.pid: each
        for each in list_session(session)
        if each.command and Path(each.command[0]).name == "java"
    }
    # What a JVM starts is a copy of itself for a moment.
    (jvm,) = (each for each in found.values() if each.parent not in found)
    return jvm


def kill_session(session: int) -> int:
    """Kill all processes of a session, and wait for their end; say how many."""
    killed = 0
    # One that was just starting another may have done so before its end.
    while there := list_session(session):
        for each in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        for each in there:
            wait_for(lambda p=each: not is_alive(p.pid), f"{each} ends", END_S)  # type: ignore[misc]
        killed += len(there)
    return killed


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has waited for does not."""
    return _read_stat(pid) is not None


def _read_process(pid: int) -> Process | None:
    stat = _read_stat(pid)
    if stat is None:
        return None
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return Process(
        pid=pid,
        parent=int(stat[1]),
        session=int(stat[3]),
        command=tuple(command.split("\0")[:-1]),
        is_busy=stat[0] == "R",
    )


def _read_stat(pid: int) -> list[str] | None:
    """Read what stands behind a process' name, which may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if not fields or fields[0] in "ZX" else fields
