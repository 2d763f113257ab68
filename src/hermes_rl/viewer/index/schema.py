"""The index file: its tables, its path, and how it is opened.

Always true: it derives from the source alone, so it may be deleted at any time; an index of another version is rebuilt;
only the user can read it.
"""

import hashlib
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import FOLDER_MODE, create_private, private_folder

VERSION = 5
READ_CACHE_KB = 4_096
WRITE_CACHE_KB = 32_768
BUSY_SECONDS = 5.0
UNUSED_DAYS = 30

# A rollout's number combines its group's number and its position, see summaries.py. The word index stores neither text
# nor word positions, which makes it a third of the size; snippets come from the record itself.
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE groups (
    n INTEGER PRIMARY KEY,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    id TEXT NOT NULL,
    item_id TEXT,
    title TEXT NOT NULL,
    draw INTEGER,
    split TEXT,
    created_at TEXT,
    withheld TEXT,
    rollouts INTEGER NOT NULL,
    scored INTEGER NOT NULL,
    mean REAL,
    spread REAL
);
CREATE INDEX groups_mean ON groups (mean, n);
CREATE INDEX groups_spread ON groups (spread, n);
CREATE TABLE rollouts (
    n INTEGER PRIMARY KEY,
    position INTEGER NOT NULL,
    number INTEGER NOT NULL,
    score REAL,
    failure TEXT,
    stop_reason TEXT,
    withheld TEXT,
    turns INTEGER,
    tool_calls INTEGER NOT NULL,
    tool_errors INTEGER NOT NULL,
    completion_tokens INTEGER,
    seconds REAL,
    version_low INTEGER,
    version_high INTEGER,
    tools TEXT NOT NULL,
    offset INTEGER,
    length INTEGER,
    seat TEXT,
    branch_of INTEGER,
    branch_turn INTEGER
);
CREATE INDEX rollouts_score ON rollouts (score, n);
CREATE INDEX rollouts_stop_reason ON rollouts (stop_reason, n);
CREATE INDEX rollouts_failure ON rollouts (failure, n) WHERE failure IS NOT NULL;
CREATE TABLE tools (
    tool TEXT NOT NULL,
    n INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    PRIMARY KEY (tool, n)
) WITHOUT ROWID;
CREATE TABLE broken (n INTEGER PRIMARY KEY, why TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (
    text, content = '', columnsize = 0, detail = none, tokenize = "unicode61 remove_diacritics 2"
);
"""


def indexes_home() -> Path:
    return rl_home() / "view"


def index_path(name: str) -> Path:
    """The index file of a source; its name may hold any characters."""
    return indexes_home() / f"{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.db"


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the index for writing, empty if there was none of this version. The caller holds its lock, see lock.py."""
    make_indexes_home(path.parent)
    connection = _connect(path)
    try:
        [(version,)] = connection.execute("PRAGMA user_version").fetchall()
    except sqlite3.DatabaseError:
        version = -1
    if version != VERSION:
        connection.close()
        delete_files(path)
        connection = _connect(path)
        create_tables(connection)
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection | None:
    """Open the index for reading; None while there is none of this version."""
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
    except sqlite3.Error:
        return None
    try:
        [(version,)] = connection.execute("PRAGMA user_version").fetchall()
        if version == VERSION:
            connection.execute(f"PRAGMA cache_size = -{READ_CACHE_KB}").fetchall()
            return connection
    except sqlite3.Error:
        pass
    connection.close()
    return None


def open_in_memory(content: bytes | None = None) -> sqlite3.Connection:
    """An index in memory; `content` is the `serialize()` of another."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    if content is None:
        create_tables(connection)
    else:
        connection.deserialize(content)
    return connection


def create_tables(connection: sqlite3.Connection) -> None:
    connection.executescript(f"BEGIN;{TABLES}PRAGMA user_version = {VERSION};COMMIT;")


def delete_files(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def delete_unused(days: float = UNUSED_DAYS) -> None:
    """Delete indexes that were neither written nor read for `days`."""
    oldest = time.time() - days * 86_400
    with suppress(OSError):
        for path in indexes_home().glob("*.db"):
            with suppress(OSError):
                if max(path.stat().st_mtime, path.stat().st_atime) < oldest:
                    delete_files(path)
                    path.with_suffix(".lock").unlink(missing_ok=True)


def make_indexes_home(folder: Path) -> None:
    private_folder(folder)
    with suppress(OSError):
        # Made by an older version.
        folder.chmod(FOLDER_MODE)


def _connect(path: Path) -> sqlite3.Connection:
    create_private(path)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    for pragma in (
        "journal_mode = WAL",
        # A power cut may lose commits; they are redone, since the index is checked against the source.
        "synchronous = NORMAL",
        f"cache_size = -{WRITE_CACHE_KB}",
        "wal_autocheckpoint = 4000",
        "journal_size_limit = 67108864",
    ):
        with suppress(sqlite3.DatabaseError):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection
