"""A run's first steps, compared with the forecast that was saved for its environment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.evaluation.forecast_check import Checked, check, first_steps
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.status.inspect import find_run_file
from hermes_rl.orchestration.status.metrics import read_run_metrics


@dataclass(frozen=True, slots=True)
class CheckedForecast:
    """`steps` is how many steps of the run were compared, `planned` how many the forecast is about."""

    figures: tuple[Checked, ...]
    steps: int
    planned: int


def forecast_file(environment: str) -> Path:
    return rl_home() / "forecasts" / f"{environment}.json"


def check_forecast(document: dict[str, Any], paths: RunPaths) -> CheckedForecast:
    """ConfigError for a run without a step."""
    metrics = read_run_metrics(paths, find_run_file(paths))
    planned = int(document["plan"]["steps"])
    rows = [row for environment in metrics.environments.values() for row in environment]
    figures = check(document, first_steps(metrics.steps, rows, planned))
    return CheckedForecast(tuple(figures), min(len(metrics.steps), planned), planned)


def check_earlier_forecast(paths: RunPaths) -> CheckedForecast | None:
    """By the forecast of the run's only environment, if it was saved before the run began; else None."""
    run_file = find_run_file(paths)
    if run_file is None or len(run_file.environments) != 1:
        return None
    saved = forecast_file(run_file.environments[0].name)
    try:
        if saved.stat().st_mtime > paths.file.stat().st_mtime:
            return None
        return check_forecast(fast_json.loads(saved.read_bytes()), paths)
    # A line of a status report is no reason to fail: an older forecast may have other figures.
    except (OSError, ConfigError, ValueError, KeyError, TypeError):
        return None
