"""Identifies a process by pid and start time, since pids are reused.

Always true: a signal never reaches another process that got the same pid.
"""

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process id, and its start time in the operating system's format."""

    pid: int
    began: str

    @classmethod
    def from_pid(cls, pid: int) -> "ProcessIdentity":
        return cls(pid, process_start_time(pid) or "")

    def alive(self) -> bool:
        return bool(self.began) and process_start_time(self.pid) == self.began

    def signal(self, number: signal.Signals, *, group: bool = False) -> bool:
        """Send a signal to the process, or to its process `group`; False when it is gone."""
        if not self.alive():
            return False
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)
            return True
        return False


def process_start_time(pid: int) -> str | None:
    """The start time of a process; None when it does not exist or is a zombie."""
    try:
        # The command name, in parentheses, may hold anything. After it come the state and, as the 20th, the start.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
        ps = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return ps.stdout.strip() or None
    return None if fields[0] in "ZX" else fields[19]
