"""Processes of this machine by who they are, not by their number alone, since numbers are used again.

Always true: nothing here signals a process that is not the one meant.
"""

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A process: its id, and when it began in whatever words the system has for it."""

    pid: int
    began: str

    @classmethod
    def of(cls, pid: int) -> "Identity":
        return cls(pid, moment_of_start(pid) or "")

    def alive(self) -> bool:
        return bool(self.began) and moment_of_start(self.pid) == self.began

    def signal(self, number: signal.Signals, *, group: bool = False) -> bool:
        """Whether it was there to be signalled; `group` means all that it leads."""
        if not self.alive():
            return False
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)
            return True
        return False


def moment_of_start(pid: int) -> str | None:
    """When the process of that id began; None when there is none, or only its remains."""
    try:
        # The command's name, in brackets, may hold anything; state is the first field after it, the start the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
        said = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return said.stdout.strip() or None
    return None if fields[0] in "ZX" else fields[19]
