"""Recovery at startup: clean up what a previous engine process left in the database and on disk.

Always true: afterwards no request is pending, no model counts as loaded and no checkpoint as being written. Clients of
the previous process see their requests fail.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from skyrl.tinker.db_models import (
    CheckpointDB,
    CheckpointStatus,
    FutureDB,
    ModelDB,
    RequestStatus,
    SessionDB,
    enable_sqlite_wal,
)
from skyrl.tinker.types import CheckpointType
from sqlmodel import Session, SQLModel, col, create_engine, select, update

INTERRUPTED = "the engine was restarted before this request finished"


def recover(database_url: str, checkpoints: Path) -> None:
    engine = create_engine(database_url)
    enable_sqlite_wal(engine)
    SQLModel.metadata.create_all(engine)
    now = datetime.now(UTC)
    with Session(engine) as session:
        session.exec(
            update(FutureDB)
            .where(col(FutureDB.status) == RequestStatus.PENDING)
            .values(
                status=RequestStatus.FAILED, result_data={"error": INTERRUPTED, "status": "failed"}, completed_at=now
            )
        )
        session.exec(update(ModelDB).values(status="unloaded"))
        session.exec(update(SessionDB).values(status="expired"))
        for torn in session.exec(select(CheckpointDB).where(CheckpointDB.status == CheckpointStatus.PENDING)):
            torn.status, torn.error_message, torn.completed_at = CheckpointStatus.FAILED, INTERRUPTED, now
            session.add(torn)
            remove(checkpoint_path(checkpoints, torn.model_id, torn.checkpoint_id, torn.checkpoint_type))
        session.commit()
    engine.dispose()
    for part in checkpoints.glob("**/*.part"):
        remove(part)


@contextmanager
def engine_lock(checkpoints: Path) -> Iterator[None]:
    """Wait for a previous engine to exit; it takes a moment to notice that its API is gone."""
    with checkpoints.with_name("engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ready_file(checkpoints: Path) -> Path:
    """The file the engine writes its process id to once it takes requests."""
    return checkpoints.with_name("engine.ready")


def checkpoint_path(checkpoints: Path, model_id: str, checkpoint_id: str, kind: CheckpointType) -> Path:
    folder = checkpoints / model_id
    return (folder / "sampler_weights" if kind == CheckpointType.SAMPLER else folder) / f"{checkpoint_id}.tar.gz"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path that is renamed to `path` when the block succeeds."""
    temporary = path.with_name(f"{path.name}.part")
    remove(temporary)
    path.parent.mkdir(parents=True, exist_ok=True)
    yield temporary
    remove(path)
    temporary.rename(path)


def remove(path: Path) -> None:
    """Remove a checkpoint: a file for a sampler, a folder for training state."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
