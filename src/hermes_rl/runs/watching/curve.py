"""The learning curve of a run: its reward step by step, and what evaluations found, as a PNG in its folder.

Always true: it is drawn when asked for, and only when there is something new to draw; who looks sees a whole picture.
"""

import uuid
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.runs.watching.measured import Measured, number, read_measured
from hermes_rl.runs.watching.plot import Series, chart
from hermes_rl.runs.watching.status import Watched, watched

OF_ENVIRONMENT = "reward/environment/"


def curve_png(run_id: str) -> Path:
    """Where the picture is; ConfigError where it cannot be written."""
    run = watched(run_id)
    return draw_curve(run, read_measured(run.places, run.run_file))


def draw_curve(run: Watched, measured: Measured) -> Path:
    path = run.places.curve
    # The picture names the phase too.
    changed = run.facts.state.changed_at if run.facts.state else run.facts.now
    newest = max([changed, measured.heard_at, *measured.times[-1:]])
    if path.is_file() and path.stat().st_mtime > newest:
        return path
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        aside.write_bytes(picture(run, measured))
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise ConfigError(f"the curve cannot be written to {path}: {error.strerror}; make room there") from None
    return path


def picture(run: Watched, measured: Measured) -> bytes:
    file = run.run_file
    names = ", ".join(one.name for one in file.environments) if file else "run"
    total = f" of {run.total_steps}" if run.total_steps else ""
    return chart(
        [*_rewards(measured), *_evaluations(measured)],
        title=f"{names} - {run.facts.run_id}",
        subtitle=f"preset {file.preset if file else 'unknown'}, {run.standing.phase} at step {measured.step}{total}",
        x_label="step",
        y_label="mean reward",
    )


def _rewards(measured: Measured) -> list[Series]:
    names = sorted({key for row in measured.steps for key in row if key.startswith(OF_ENVIRONMENT)})
    wanted = {"reward": "reward/mean"} | {name.removeprefix(OF_ENVIRONMENT): name for name in names}
    return [
        Series(
            shown,
            tuple((float(row["step"]), value) for row in measured.steps if (value := number(row.get(key))) is not None),
        )
        for shown, key in wanted.items()
    ]


def _evaluations(measured: Measured) -> list[Series]:
    found: dict[str, list[tuple[float, float]]] = {}
    for one in measured.evaluations():
        value = one.reward_mean if one.reward_mean is not None else one.percent_correct
        if value is not None:
            found.setdefault(one.environment, []).append((float(one.step), value))
    alone = len(measured.environments) == 1
    return [
        Series("evaluation" if alone else f"{name} evaluation", tuple(points), marks=True)
        for name, points in found.items()
    ]
