"""The name and id of a run in wandb and trackio, stable across restarts."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import private_folder
from hermes_rl.store.records import write_document

FORMAT = "hermes-rl/sinks/1"


@dataclass(frozen=True, slots=True)
class RunIds:
    """`id` is None for a run that cannot be resumed."""

    name: str
    id: str | None = None


def load_run_ids(path: Path, name: str) -> RunIds:
    """Load the ids stored at `path`; create and store them under `name` if there are none."""
    if path.exists():
        stored = fast_json.loads(path.read_bytes())
        if stored.get("format") != FORMAT:
            raise ConfigError(f"{path} is not a {FORMAT} file; remove it to start new runs in wandb and trackio")
        return RunIds(stored["name"], stored["id"])
    created = RunIds(name, secrets.token_hex(4))
    private_folder(path.parent)
    write_document(path, {"format": FORMAT, "name": created.name, "id": created.id})
    return created
