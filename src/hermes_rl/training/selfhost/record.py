"""What is known of an engine that was started: the file that `stop`, `status` and `logs` go by.

Always true: a process counts as the recorded one only when it began at the recorded moment, since ids are used again.
"""

import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes_rl import jsontext
from hermes_rl.store import write_document
from hermes_rl.training.selfhost.places import EnginePlaces, engines_home


@dataclass(frozen=True, slots=True)
class EngineRecord:
    name: str
    pid: int
    began: str
    port: int
    model: str
    log: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def alive(self) -> bool:
        return moment_of_start(self.pid) == self.began

    def write(self) -> None:
        write_document(EnginePlaces(self.name).record, asdict(self))


def read_record(name: str) -> EngineRecord | None:
    """None when no engine of that name was ever started here."""
    try:
        return EngineRecord(**jsontext.loads(EnginePlaces(name).record.read_bytes()))
    except FileNotFoundError:
        return None


def all_records() -> list[EngineRecord]:
    found = [read_record(path.stem) for path in sorted(engines_home().glob("[!.]*.json"))]
    return [record for record in found if record is not None]


def moment_of_start(pid: int) -> str | None:
    """When the process of that id began, in whatever words the system has for it; None when there is none."""
    try:
        # The command's name, in brackets, may hold anything; state is the first field after it, the start the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        said = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return said.stdout.strip() or None
    return None if fields[0] in "ZX" else fields[19]
