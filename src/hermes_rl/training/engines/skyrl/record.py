"""The record file of a started engine, read by `stop`, `status` and `logs`.

Always true: a process is the recorded one only if its start time matches too, since process ids are reused.
"""

from dataclasses import asdict, dataclass

from hermes_rl.core import fast_json
from hermes_rl.core.process_identity import process_start_time
from hermes_rl.store.records import write_document
from hermes_rl.training.engines.skyrl.paths import EnginePaths, engines_home


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
        return process_start_time(self.pid) == self.began

    def write(self) -> None:
        write_document(EnginePaths(self.name).record, asdict(self))


def read_record(name: str) -> EngineRecord | None:
    """None if no engine of that name was ever started here."""
    try:
        return EngineRecord(**fast_json.loads(EnginePaths(name).record.read_bytes()))
    except FileNotFoundError:
        return None


def all_records() -> list[EngineRecord]:
    found = [read_record(path.stem) for path in sorted(engines_home().glob("[!.]*.json"))]
    return [record for record in found if record is not None]
