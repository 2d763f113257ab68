"""What an earlier life left in the database and on disk, settled before a new one takes requests.

Always true: after it nothing waits, no model counts as loaded, and no checkpoint counts as being written: clients of
the earlier life learn that their requests failed, and nothing is done for those that are dead.
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

ENDED = "the engine was started anew before this was done"


def settle(database_url: str, checkpoints: Path) -> None:
    engine = create_engine(database_url)
    enable_sqlite_wal(engine)
    SQLModel.metadata.create_all(engine)
    now = datetime.now(UTC)
    with Session(engine) as session:
        session.exec(
            update(FutureDB)
            .where(col(FutureDB.status) == RequestStatus.PENDING)
            .values(status=RequestStatus.FAILED, result_data={"error": ENDED, "status": "failed"}, completed_at=now)
        )
        session.exec(update(ModelDB).values(status="unloaded"))
        session.exec(update(SessionDB).values(status="expired"))
        for torn in session.exec(select(CheckpointDB).where(CheckpointDB.status == CheckpointStatus.PENDING)):
            torn.status, torn.error_message, torn.completed_at = CheckpointStatus.FAILED, ENDED, now
            session.add(torn)
            remove(checkpoint_path(checkpoints, torn.model_id, torn.checkpoint_id, torn.checkpoint_type))
        session.commit()
    engine.dispose()
    for part in checkpoints.glob("**/*.part"):
        remove(part)


@contextmanager
def alone(checkpoints: Path) -> Iterator[None]:
    """Waits until no engine of an earlier life is left; it may take a moment to notice that its API is gone."""
    with checkpoints.with_name("engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ready_mark(checkpoints: Path) -> Path:
    """Where the engine leaves its process id once it takes requests."""
    return checkpoints.with_name("engine.ready")


def checkpoint_path(checkpoints: Path, model_id: str, checkpoint_id: str, kind: CheckpointType) -> Path:
    folder = checkpoints / model_id
    return (folder / "sampler_weights" if kind == CheckpointType.SAMPLER else folder) / f"{checkpoint_id}.tar.gz"


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A name to write under, which becomes the path's own when all is written."""
    aside = path.with_name(f"{path.name}.part")
    remove(aside)
    path.parent.mkdir(parents=True, exist_ok=True)
    yield aside
    remove(path)
    aside.rename(path)


def remove(path: Path) -> None:
    """A sampler checkpoint is a file, one to train on from a folder."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
