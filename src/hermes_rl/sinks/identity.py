"""What a run is called in wandb and trackio, the same each time it is taken up again."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.store.records import write_document

FORMAT = "hermes-rl/sinks/1"


@dataclass(frozen=True, slots=True)
class Identity:
    """`id` is None for a run that is never taken up again."""

    name: str
    id: str | None = None


def identity(path: Path, first: Identity) -> Identity:
    """The identity that a file keeps; when there is none, that of `first` with a new id, kept before it is used."""
    if path.exists():
        kept = jsontext.loads(path.read_bytes())
        if kept.get("format") != FORMAT:
            raise ConfigError(f"{path} is no {FORMAT}; remove it to begin new runs in wandb and trackio")
        return Identity(kept["name"], kept["id"])
    made = Identity(first.name, secrets.token_hex(4))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_document(path, {"format": FORMAT, "name": made.name, "id": made.id})
    return made
