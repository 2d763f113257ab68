"""What the viewer is told of training runs: it stands beside them and does not know how they are kept."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.watching.hiding import hidden, known_secrets
from hermes_rl.runs.watching.listing import list_runs
from hermes_rl.runs.watching.live import run_file_of
from hermes_rl.runs.watching.status import status
from hermes_rl.sinks.following import Followed
from hermes_rl.viewer.sources.source import Runs


def viewed_runs() -> Runs:
    followed = Followed()
    return Runs(
        listed=list_runs,
        folder=lambda run_id: RunPlaces(run_id).folder,
        status=partial(status, read=followed.rows),
        config=_config,
        steps=followed.steps,
    )


def _config(run_id: str) -> Mapping[str, Any] | None:
    """Everything the run was started with, but for its keys."""
    file = run_file_of(RunPlaces(run_id))
    if file is None:
        return None
    shown: Mapping[str, Any] = hidden(file.model_dump(mode="json"), known_secrets(file.keys))
    return shown
