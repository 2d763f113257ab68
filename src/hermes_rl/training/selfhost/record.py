"""What is known of an engine that was started: the file that `stop`, `status` and `logs` go by.

Always true: a process counts as the recorded one only when it began at the recorded moment, since ids are used again.
"""

from dataclasses import asdict, dataclass

from hermes_rl import jsontext
from hermes_rl.processes import moment_of_start
from hermes_rl.store.records import write_document
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
