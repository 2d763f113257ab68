"""Drafts on disk, one a session: what was selected and edited is there tomorrow, and in another shell.

Always true: a reader sees a whole draft, the last or the one before; it can be read whatever became of the
environment's file since.
"""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration.described import description_of
from hermes_rl.runs.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.runs.places import drafts_home
from hermes_rl.store.records import write_document

# Of the file, not of hermes-rl: raised when an older one can no longer be read.
FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def save_draft(draft: Draft, session: str = "default") -> None:
    path = _place(session)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_document(path, {"format": FORMAT, **asdict(draft)})


def load_draft(session: str = "default") -> Draft | None:
    """None where nothing was selected yet; ConfigError for a file that is no draft."""
    path = _place(session)
    try:
        told = jsontext.loads(path.read_bytes())
        if told.pop("format") != FORMAT:
            raise ValueError("it is of another version of hermes-rl")
        environments = tuple(_environment(one) for one in told.pop("environments"))
        return Draft(**told, environments=environments)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} holds no draft ({error}); select an environment again, which replaces it") from None


def _environment(told: dict[str, Any]) -> ChosenEnvironment:
    description = told.pop("description")
    return ChosenEnvironment(**told, description=description_of(description, description["asked"]))


def _place(session: str) -> Path:
    if not _NAME.fullmatch(session):
        raise ConfigError(
            f"{session!r} is no name of a session: take up to 64 letters, digits, '_', '.' or '-', the first no mark"
        )
    return drafts_home() / f"{session}.json"
