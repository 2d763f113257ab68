"""A session's draft on disk, and the run that was started from it.

Always true: concurrent changes to one session's draft are serialized by a lock.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.file_lock import wait_for_lock
from hermes_rl.core.private_files import private_folder
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.draft_store import load_draft
from hermes_rl.orchestration.rl_tools.errors import RefusalError
from hermes_rl.orchestration.run_paths import drafts_home
from hermes_rl.store.records import write_document

# The holder may have to load an environment's file, with slow imports.
LOCK_TIMEOUT = 120.0
SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def validate_session(session: str) -> str:
    if not SESSION_NAME.fullmatch(session):
        raise ConfigError(
            f"{session!r} is not a valid draft name; use up to 64 letters, digits, '_' or '-', starting with a letter "
            "or digit"
        )
    return session


@contextmanager
def locked_session(session: str) -> Iterator[None]:
    """Hold the lock on the session's draft."""
    private_folder(drafts_home())
    with wait_for_lock(_session_path(session, "lock"), LOCK_TIMEOUT, f"the draft {session!r}"):
        yield


def require_draft(session: str) -> Draft:
    """The session's draft; RefusalError when there is none."""
    draft = load_draft(session)
    if draft is None:
        raise RefusalError(
            "no environment is selected yet",
            "rl_list_environments() to see the names, then rl_select_environment(name=NAME)",
        )
    return draft


def fingerprint(draft: Draft) -> str:
    """Equal for drafts that would start the same run."""
    return hashlib.sha256(fast_json.dumps(draft)).hexdigest()


def started_run(session: str, draft: Draft) -> str | None:
    """The run that was started from this exact draft, if any."""
    try:
        document = fast_json.loads(_session_path(session, "started").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return str(document["run_id"]) if document.get("draft") == fingerprint(draft) else None


def record_started(session: str, draft: Draft, run_id: str) -> None:
    write_document(_session_path(session, "started"), {"draft": fingerprint(draft), "run_id": run_id})


def clear_started(session: str) -> None:
    _session_path(session, "started").unlink(missing_ok=True)


def delete_session(session: str) -> None:
    """Delete all files of the session's draft."""
    for path in drafts_home().glob(f"{session}.*"):
        path.unlink(missing_ok=True)


def _session_path(session: str, what: str) -> Path:
    return drafts_home() / f"{validate_session(session)}.{what}"
