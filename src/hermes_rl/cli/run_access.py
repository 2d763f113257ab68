"""Training runs as a data source of the viewer, which does not import orchestration."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.status.inspect import find_run_file
from hermes_rl.orchestration.status.redaction import known_secrets, redact_value
from hermes_rl.orchestration.status.run_list import list_runs
from hermes_rl.orchestration.status.status import status
from hermes_rl.sinks.tail import MetricsTail
from hermes_rl.viewer.sources.source import RunAccess


def viewed_runs() -> RunAccess:
    followed = MetricsTail()
    return RunAccess(
        listed=list_runs,
        folder=lambda run_id: RunPaths(run_id).folder,
        status=partial(status, read=followed.rows),
        config=_config,
        steps=followed.steps,
    )


def _config(run_id: str) -> Mapping[str, Any] | None:
    """The configuration of a run, without its keys."""
    file = find_run_file(RunPaths(run_id))
    if file is None:
        return None
    shown: Mapping[str, Any] = redact_value(file.model_dump(mode="json"), known_secrets(file.keys))
    return shown
