"""The durable store of groups on SQLite or PostgreSQL: add, lease, acknowledge, look up."""

from hermes_rl.store.database.admission import Admission
from hermes_rl.store.database.errors import (
    LeaseLostError,
    NewerSchemaError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnknownEnvironmentError,
    UnknownTrainerError,
    VersionUsedError,
)
from hermes_rl.store.database.groups import Added, Retention, StoredGroup
from hermes_rl.store.database.leases import Batch, BatchGroup
from hermes_rl.store.database.listing import Backlog, Listed, Metric, Page, Run, Status, Tally, Wanted
from hermes_rl.store.database.members import Environment, Trainer
from hermes_rl.store.database.queue import Share, capacity, room
from hermes_rl.store.database.rows import RolloutRow
from hermes_rl.store.database.store import Store, open_store

__all__ = [
    "Added",
    "Admission",
    "Backlog",
    "Batch",
    "BatchGroup",
    "Environment",
    "LeaseLostError",
    "Listed",
    "Metric",
    "NewerSchemaError",
    "Page",
    "Retention",
    "RolloutRow",
    "Run",
    "Share",
    "Status",
    "Store",
    "StoreError",
    "StoreFullError",
    "StoreUnavailableError",
    "StoredGroup",
    "Tally",
    "Trainer",
    "UnknownEnvironmentError",
    "UnknownTrainerError",
    "VersionUsedError",
    "Wanted",
    "capacity",
    "open_store",
    "room",
]
