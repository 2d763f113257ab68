"""The learning curve of a run: reward per step and evaluations, as a PNG in the run's folder.

Always true: it is drawn on request and only when there is new data; the file is replaced atomically.
"""

import uuid
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import write_private
from hermes_rl.orchestration.status.chart import Series, render_chart
from hermes_rl.orchestration.status.metrics import RunMetrics, finite_number, read_run_metrics
from hermes_rl.orchestration.status.status import InspectedRun, inspect_run

ENVIRONMENT_PREFIX = "reward/environment/"


def curve_png(run_id: str) -> Path:
    """Draw the curve and return its path; ConfigError when it cannot be written."""
    run = inspect_run(run_id)
    return draw_curve(run, read_run_metrics(run.paths, run.run_file))


def draw_curve(run: InspectedRun, metrics: RunMetrics) -> Path:
    path = run.paths.curve
    # The subtitle shows the phase.
    changed = run.facts.state.changed_at if run.facts.state else run.facts.now
    newest = max([changed, metrics.environments_seen_at, *metrics.times[-1:]])
    if path.is_file() and path.stat().st_mtime > newest:
        return path
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        write_private(temporary, render_curve(run, metrics))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"cannot write the curve to {path}: {error.strerror}; free some disk space") from None
    return path


def render_curve(run: InspectedRun, metrics: RunMetrics) -> bytes:
    file = run.run_file
    names = ", ".join(entry.name for entry in file.environments) if file else "run"
    total = f" of {run.total_steps}" if run.total_steps else ""
    return render_chart(
        [*_reward_series(metrics), *_evaluation_series(metrics)],
        title=f"{names} - {run.facts.run_id}",
        subtitle=f"preset {file.preset if file else 'unknown'}, {run.derived.phase} at step {metrics.step}{total}",
        x_label="step",
        y_label="mean reward",
    )


def _reward_series(metrics: RunMetrics) -> list[Series]:
    names = sorted({key for row in metrics.steps for key in row if key.startswith(ENVIRONMENT_PREFIX)})
    labels = {"reward": "reward/mean"} | {name.removeprefix(ENVIRONMENT_PREFIX): name for name in names}
    return [
        Series(
            label,
            tuple(
                (float(row["step"]), value)
                for row in metrics.steps
                if (value := finite_number(row.get(key))) is not None
            ),
        )
        for label, key in labels.items()
    ]


def _evaluation_series(metrics: RunMetrics) -> list[Series]:
    found: dict[str, list[tuple[float, float]]] = {}
    for evaluation in metrics.evaluations():
        value = evaluation.reward_mean if evaluation.reward_mean is not None else evaluation.percent_correct
        if value is not None:
            found.setdefault(evaluation.environment, []).append((float(evaluation.step), value))
    alone = len(metrics.environments) == 1
    return [
        Series("evaluation" if alone else f"{name} evaluation", tuple(points), marks=True)
        for name, points in found.items()
    ]
