"""Drafts on disk, one per session.

Always true: a reader sees a complete draft, and can read it even if the environment's file has changed or is gone.
"""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import private_folder
from hermes_rl.orchestration.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.orchestration.configuration.introspect import parse_description
from hermes_rl.orchestration.run_paths import drafts_home
from hermes_rl.store.records import write_document

# Version of the file format: raised when older files can no longer be read.
FORMAT = 2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def save_draft(draft: Draft, session: str = "default") -> None:
    path = _draft_path(session)
    private_folder(path.parent)
    write_document(path, {"format": FORMAT, **asdict(draft)})


def load_draft(session: str = "default") -> Draft | None:
    """None when nothing was selected yet; ConfigError for an invalid file."""
    path = _draft_path(session)
    try:
        saved = fast_json.loads(path.read_bytes())
        if saved.pop("format") != FORMAT:
            raise ValueError("written by another version of hermes-rl")
        environments = tuple(map(_environment, saved.pop("environments")))
        return Draft(**saved, environments=environments)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a draft ({error}); select an environment again to replace it") from None


def _environment(saved: dict[str, Any]) -> ChosenEnvironment:
    description = saved.pop("description")
    return ChosenEnvironment(**saved, description=parse_description(description, description["changes"]))


def _draft_path(session: str) -> Path:
    if not _NAME.fullmatch(session):
        raise ConfigError(
            f"{session!r} is not a session name: use up to 64 letters, digits, '_', '.' or '-', starting with a letter "
            "or digit"
        )
    return drafts_home() / f"{session}.json"
