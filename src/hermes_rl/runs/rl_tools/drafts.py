"""A session's draft on disk: what was selected and edited, and the run that was started from it.

Always true: of two callers of one session at a time, one changes the draft and the other waits.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration.draft import Draft
from hermes_rl.runs.configuration.sessions import load_draft
from hermes_rl.runs.places import drafts_home
from hermes_rl.runs.rl_tools.answers import RefusalError
from hermes_rl.store.holding import in_turn
from hermes_rl.store.records import write_document

# Whoever holds it may have to load an environment's file, which may import much.
LONGEST_WAIT = 120.0
NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def checked_session(session: str) -> str:
    if not NAMED.fullmatch(session):
        raise ConfigError(
            f"{session!r} is no name of a draft: take up to 64 letters, digits, '_' or '-', the first no mark"
        )
    return session


@contextmanager
def held(session: str) -> Iterator[None]:
    """Nobody else changes the session's draft within this block."""
    drafts_home().mkdir(parents=True, exist_ok=True)
    with in_turn(_beside(session, "lock"), LONGEST_WAIT, f"the draft {session!r}"):
        yield


def chosen_draft(session: str) -> Draft:
    """The session's draft; a refusal that says how to make one when there is none."""
    draft = load_draft(session)
    if draft is None:
        raise RefusalError(
            "no environment is selected yet",
            "rl_list_environments() to see the names, then rl_select_environment(name=NAME)",
        )
    return draft


def fingerprint(draft: Draft) -> str:
    """The same for two drafts that would start the same run."""
    return hashlib.sha256(jsontext.dumps(draft)).hexdigest()


def started_run(session: str, draft: Draft) -> str | None:
    """The run that was started from this very draft; None when there is none."""
    try:
        told = jsontext.loads(_beside(session, "started").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return str(told["run_id"]) if told.get("draft") == fingerprint(draft) else None


def note_started(session: str, draft: Draft, run_id: str) -> None:
    write_document(_beside(session, "started"), {"draft": fingerprint(draft), "run_id": run_id})


def forget_started(session: str) -> None:
    _beside(session, "started").unlink(missing_ok=True)


def forget_session(session: str) -> None:
    """Remove a draft that nobody can come back to."""
    for path in drafts_home().glob(f"{session}.*"):
        path.unlink(missing_ok=True)


def _beside(session: str, what: str) -> Path:
    return drafts_home() / f"{checked_session(session)}.{what}"
