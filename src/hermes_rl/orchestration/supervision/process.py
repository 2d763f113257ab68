"""The supervisor's process: sets up its log and supervises the run."""

import logging
from logging.handlers import RotatingFileHandler

from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision.supervisor import supervise

LOG_BYTES, LOG_FILES = 2**20, 3


def main(run_id: str) -> None:
    path = RunPaths(run_id).log("supervisor")
    # Supervise even when the log cannot be written.
    logging.raiseExceptions = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, delay=True)
    except OSError:
        handler = logging.NullHandler()
    logging.basicConfig(
        format="%(asctime)s %(process)d %(levelname)s %(message)s", level=logging.INFO, handlers=[handler]
    )
    logging.getLogger(__name__).info("supervising %s", run_id)
    supervise(run_id)
