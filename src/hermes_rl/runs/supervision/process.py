"""The supervisor's process: where its own words go."""

import logging
from logging.handlers import RotatingFileHandler

from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.supervision.supervisor import supervise

LOG_BYTES, LOG_FILES = 2**20, 3


def main(run_id: str) -> None:
    path = RunPlaces(run_id).log("supervisor")
    # A log that cannot be written is no reason not to supervise.
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
