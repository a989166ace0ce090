"""The testing kit's broker in a process of its own, and how much that takes."""

from __future__ import annotations

import os
from pathlib import Path

from lance_spark.testing import process

# Where it is not, memory and threads of another process can't be told.
HAS_PROC = Path("/proc/self/status").exists()


class BrokerProcess(process.BrokerProcess):
    """A broker whose memory and threads can be looked at."""

    @property
    def rss_bytes(self) -> int:
        """How much memory it has in use."""
        return read_status(self.pid, "VmRSS") * 1024

    @property
    def peak_bytes(self) -> int:
        """The most memory that it had in use since the last `reset_peak`."""
        return read_status(self.pid, "VmHWM") * 1024

    def reset_peak(self) -> None:
        """Start to look for the most memory anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="utf-8")

    @property
    def page_faults(self) -> int:
        """How many pages of memory it has got so far."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return int(stat.rpartition(")")[2].split()[7])

    @property
    def threads(self) -> int:
        """How many threads it has."""
        return read_status(self.pid, "Threads")


def read_status(pid: int, field: str) -> int:
    """Read a number of /proc/PID/status."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    for line in status.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise AssertionError(f"no {field} of process {pid}")


def count_files(pid: int) -> int:
    """Count the open files of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))
