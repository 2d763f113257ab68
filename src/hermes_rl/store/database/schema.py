"""The database schema as migrations: forward only, each applied once, recorded in the same transaction.

Always true: a released migration never changes; a blob is written once and perhaps deleted later, never rewritten; a
group's state is kept in small rows of other tables.
"""

from collections.abc import Sequence

from hermes_rl.store.database.errors import NewerSchemaError
from hermes_rl.store.database.transactions import SqlDialect, Transaction, execute, fetch_one, take_lock

# Each index adds a page or more to every commit, so there is none by score: rollouts are searched from the newest on.
# `place` is a group's position in the queue. A rollout's id combines it with the rollout's number, see rows.py.
FIRST = """
CREATE TABLE environments (
    id {key},
    name TEXT NOT NULL,
    instance TEXT NOT NULL,
    group_size {int},
    weight {float} NOT NULL,
    minimum {float} NOT NULL,
    settings TEXT NOT NULL,
    registered_at {float} NOT NULL,
    seen_at {float} NOT NULL,
    connected {int} NOT NULL,
    running {int} NOT NULL,
    cursor_draw {int},
    UNIQUE (name, instance)
);
CREATE TABLE trainers (
    name TEXT PRIMARY KEY,
    batch_size {int} NOT NULL,
    max_staleness {int},
    needs TEXT NOT NULL,
    settings TEXT NOT NULL,
    registration {int} NOT NULL,
    registered_at {float} NOT NULL
);
CREATE TABLE versions (
    version {int} PRIMARY KEY,
    by_whom TEXT NOT NULL,
    set_at {float} NOT NULL
);
CREATE TABLE groups (
    place {key},
    id TEXT NOT NULL UNIQUE,
    content_id TEXT NOT NULL,
    environment {int} NOT NULL,
    item_id TEXT NOT NULL,
    split TEXT NOT NULL,
    draw {int} NOT NULL,
    rollouts {int} NOT NULL,
    size {int} NOT NULL,
    oldest_version {int},
    lacks TEXT NOT NULL,
    withheld TEXT,
    arrived_at {float} NOT NULL,
    bytes {int} NOT NULL,
    kept {int} NOT NULL
);
CREATE INDEX groups_draws ON groups (environment, draw);
CREATE INDEX groups_kept ON groups (place) WHERE kept = 1;
CREATE TABLE blobs (
    place {int} PRIMARY KEY,
    data {blob} NOT NULL
);
CREATE TABLE queue (
    place {int} PRIMARY KEY,
    environment {int} NOT NULL,
    size {int} NOT NULL,
    oldest_version {int},
    lacks TEXT NOT NULL,
    batch {int}
);
CREATE INDEX queue_batch ON queue (batch);
CREATE TABLE batches (
    id {key},
    request TEXT UNIQUE,
    trainer TEXT NOT NULL,
    version {int} NOT NULL,
    state TEXT NOT NULL,
    leased_at {float} NOT NULL,
    expires_at {float} NOT NULL,
    ended_at {float}
);
CREATE INDEX batches_leased ON batches (expires_at) WHERE state = 'leased';
CREATE TABLE batch_groups (
    batch {int} NOT NULL,
    place {int} NOT NULL,
    PRIMARY KEY (batch, place)
);
CREATE TABLE outcomes (
    place {int} PRIMARY KEY,
    environment {int} NOT NULL,
    size {int} NOT NULL,
    outcome TEXT NOT NULL,
    cause TEXT NOT NULL,
    batch {int},
    at {float} NOT NULL
);
CREATE INDEX outcomes_counted ON outcomes (environment, outcome, cause, size);
CREATE INDEX outcomes_at ON outcomes (at);
CREATE TABLE rollouts (
    id {int} PRIMARY KEY,
    place {int} NOT NULL,
    environment {int} NOT NULL,
    number {int} NOT NULL,
    item_id TEXT NOT NULL,
    seed TEXT NOT NULL,
    score {float},
    stop_reason TEXT,
    failure TEXT,
    cause TEXT,
    withheld TEXT,
    turns {int} NOT NULL,
    sequences {int} NOT NULL,
    tokens {int} NOT NULL,
    prompt_tokens {int},
    completion_tokens {int},
    seconds {float} NOT NULL
);
CREATE INDEX rollouts_environment ON rollouts (environment, id);
CREATE INDEX rollouts_failure ON rollouts (failure, id) WHERE failure IS NOT NULL;
CREATE TABLE unindexed (
    place {int} PRIMARY KEY
);
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    settings TEXT NOT NULL,
    started_at {float} NOT NULL,
    changed_at {float} NOT NULL
);
CREATE TABLE metrics (
    id {key},
    run TEXT NOT NULL,
    step {int} NOT NULL,
    name TEXT NOT NULL,
    value {float},
    at {float} NOT NULL
);
CREATE INDEX metrics_run ON metrics (run, id);
"""

FIRST_FOR = {
    "sqlite": "CREATE VIRTUAL TABLE texts USING fts5 (text);",
    # Blobs are compressed already: compressing them again costs ten times the insert.
    # A text index for one natural language would not find identifiers and paths.
    "postgresql": """
CREATE TABLE texts (
    rollout BIGINT PRIMARY KEY,
    text TEXT NOT NULL,
    words TSVECTOR GENERATED ALWAYS AS (to_tsvector('simple', text)) STORED
);
CREATE INDEX texts_words ON texts USING GIN (words);
ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL;
""",
}

# The unmet request of an environment, so that others leave it its share.
SECOND = "ALTER TABLE environments ADD COLUMN wanted {int} NOT NULL DEFAULT 0;"

# The agent of a rollout, in environments with several.
THIRD = "ALTER TABLE rollouts ADD COLUMN seat TEXT;"

# Each is the SQL for both databases, then additions for one of them.
MIGRATIONS: tuple[tuple[str, dict[str, str]], ...] = ((FIRST, FIRST_FOR), (SECOND, {}), (THIRD, {}))


def schema_version(dialect: SqlDialect) -> Transaction[int]:
    """The schema version of the database, 0 for an empty one; this only reads."""
    row = yield from fetch_one(dialect.count_tables, "schema_versions")
    return (yield from _newest()) if row and row[0] else 0


def migrate(dialect: SqlDialect, migrations: Sequence[tuple[str, dict[str, str]]] = MIGRATIONS) -> Transaction[int]:
    """Migrate the database to the newest version; returns the number of migrations applied."""
    yield from take_lock(dialect)
    yield from execute(
        "CREATE TABLE IF NOT EXISTS schema_versions (version BIGINT PRIMARY KEY, applied_at TEXT NOT NULL)"
    )
    present = yield from _newest()
    if present > len(migrations):
        raise NewerSchemaError(
            f"the database has schema version {present}; this hermes-rl knows {len(migrations)}: "
            "upgrade hermes-rl (`pip install -U hermes-rl`), or use another database"
        )
    for version, (shared, own) in enumerate(migrations[present:], present + 1):
        for statement in statements(shared.format(**dialect.types)) + statements(own.get(dialect.name, "")):
            yield from execute(statement)
        yield from execute("INSERT INTO schema_versions (version, applied_at) VALUES (?, CURRENT_TIMESTAMP)", version)
    return len(migrations) - present


def _newest() -> Transaction[int]:
    row = yield from fetch_one("SELECT COALESCE(MAX(version), 0) FROM schema_versions")
    return int(row[0]) if row else 0


def statements(sql: str) -> list[str]:
    return [statement for part in sql.split(";") if (statement := part.strip())]
