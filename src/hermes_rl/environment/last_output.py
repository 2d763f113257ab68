"""What `process` and `evaluate` wrote last on this machine: `last` where a command takes a file or folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import private_folder
from hermes_rl.store.records import write_document

Kind = Literal["groups", "evaluation"]
LAST = "last"
_FILE = "last_output.json"
_MAKES = {"groups": "hermes-rl process ENVIRONMENT", "evaluation": "hermes-rl evaluate ENVIRONMENT"}


def note_output(kind: Kind, path: Path) -> None:
    """Make this the output that `last` names."""
    write_document(private_folder(rl_home()) / _FILE, {**_read(), kind: str(path.absolute())})


def last_output(kind: Kind) -> Path:
    """The output written last; ConfigError when there is none, or it is gone."""
    path = known_output(kind)
    if path is None:
        raise ConfigError(f"no {kind} to name `{LAST}` on this machine; `{_MAKES[kind]}` writes some")
    return path


def known_output(kind: Kind) -> Path | None:
    """None when there is none, or it is gone."""
    name = _read().get(kind)
    path = Path(str(name)) if name else None
    return path if path is not None and path.exists() else None


def named_path(text: str, kind: Kind) -> Path:
    """The path that the text names; `last` is the newest output of this kind, unless there is a file of that name."""
    path = Path(text)
    return last_output(kind) if text == LAST and not path.exists() else path


def _read() -> Mapping[str, Any]:
    try:
        found = fast_json.loads((rl_home() / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
