"""Results: what a run has come to, or has come to so far: numbers, curve, checkpoints, weights and how to use them.

Always true: every value is one that JSON has; a path that is given as weights has been looked into.
"""

import math
from collections.abc import Sequence
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.watching.curve import draw_curve
from hermes_rl.runs.watching.hiding import hidden
from hermes_rl.runs.watching.measured import Evaluation, Measured, number, read_measured
from hermes_rl.runs.watching.standing import LivePhase
from hermes_rl.runs.watching.status import Watched, fresh_numbers, named, watched
from hermes_rl.runs.watching.weights import weights_problem

ROWS = 40
HISTORY = (
    "reward/mean",
    "reward/std",
    "train/loss",
    "train/learning_rate",
    "entropy",
    "kl/sample_train_k3",
    "logprobs/diff",
)


def results(run_id: str) -> dict[str, Any]:
    """ConfigError for a run that is not known. Of a run that goes on it tells how far it is."""
    run = watched(run_id)
    measured = read_measured(run.places, run.run_file)
    numbers = fresh_numbers(run, measured)
    evaluations = measured.evaluations()
    answer: dict[str, Any] = {
        "run_id": run_id,
        "status": str(run.standing.phase),
        "so_far": run.standing.phase is not LivePhase.FINISHED,
        "reason": run.standing.reason,
        **named(run),
        **numbers,
        "running_time_minutes": round(run.standing.running_seconds / 60, 2),
        "final_metrics": plain(measured.steps[-1]) if measured.steps else {},
        "history": history(measured),
        "evaluations": [plain(one.plain()) for one in sampled(evaluations)],
        "evaluation_before": _end(evaluations, 0),
        "evaluation_after": _end(evaluations, -1),
        **_curve(run, measured),
        **_weights(run),
        "checkpoints": checkpoints(run.places),
        "config_path": str(run.places.file),
        "folder": str(run.places.folder),
    }
    shown: dict[str, Any] = hidden(answer, run.secrets())
    return shown


def history(measured: Measured) -> list[dict[str, Any]]:
    """Some rows of the whole run, the first and the last among them."""
    own = [key for key in (measured.steps[-1] if measured.steps else {}) if key.startswith("reward/environment/")]
    return [
        {
            "step": row["step"],
            "time": number(row.get("time")),
            **{key: number(row.get(key)) for key in (*HISTORY, *own)},
        }
        for row in sampled(measured.steps)
    ]


def sampled(rows: Sequence[Any], most: int = ROWS) -> list[Any]:
    if len(rows) <= most:
        return list(rows)
    return [rows[round(at * (len(rows) - 1) / (most - 1))] for at in range(most)]


def plain(value: Any) -> Any:
    """The same with None for a number that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def checkpoints(places: RunPlaces) -> list[dict[str, Any]]:
    """Those that the engine still has, from the run's lineage."""
    try:
        data = (places.folder / "lineage.jsonl").read_bytes()
        lines = [jsontext.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    except (OSError, ValueError):
        return []
    known = [line for line in lines if isinstance(line, dict)]
    deleted = {line["deleted"] for line in known if "deleted" in line}
    kept = ("step", "version", "at", "final", "state", "sampler")
    return [
        {name: line.get(name) for name in kept}
        for line in known
        if "step" in line and (line.get("final") or line["step"] not in deleted)
    ]


def _end(evaluations: Sequence[Evaluation], at: int) -> dict[str, Any] | None:
    """The first or the last evaluation of each environment."""
    found: dict[str, Any] = {}
    for one in evaluations if at else reversed(evaluations):
        found[one.environment] = {
            "step": one.step,
            "reward_mean": one.reward_mean,
            "percent_correct": one.percent_correct,
        }
    return found or None


def _curve(run: Watched, measured: Measured) -> dict[str, Any]:
    try:
        return {"curve_path": str(draw_curve(run, measured))}
    except ConfigError as error:
        return {"curve_path": None, "curve_problem": str(error)}


def _weights(run: Watched) -> dict[str, Any]:
    run_id, folder = run.facts.run_id, run.places.weights
    export = f"hermes-rl export {run_id} --to peft -o {run_id}-peft"
    problem = weights_problem(folder)
    if problem is not None:
        why = problem if folder.exists() else "they are put there when the run is finished"
        return {
            "weights_path": None,
            "weights_problem": f"{why}; the newest checkpoint is had by `{export}`",
            "commands": {"export": export},
        }
    base = (run.run_file.tinker.get("base_model") if run.run_file else None) or "BASE_MODEL"
    load = f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({str(base)!r}), {str(folder)!r})"
    commands = {
        "load": load,
        "merge": f"hermes-rl export {run_id} --to merged -o {run_id}-merged",
        "gguf": f"hermes-rl export {run_id} --to gguf -o {run_id}-gguf",
        "export": export,
    }
    return {"weights_path": str(folder), "weights_problem": None, "commands": commands}
