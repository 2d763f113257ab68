"""The results of a run for a person: reward, evaluations, curve, weights, and what to do next."""

from collections.abc import Iterator, Mapping
from typing import Any

from hermes_rl.cli.run.live import step_text

LABEL_WIDTH = 12


def results_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines for the answer of `results`; `--json` has all of it."""
    run_id = found["run_id"]
    minutes = found["running_time_minutes"]
    yield f"{run_id}  {found['status']}, {step_text(found['metrics'])}, {minutes:.1f} min"
    rows = {
        "environment": found.get("environment"),
        "reason": None if found["status"] == "finished" else found.get("reason"),
        "reward": _reward(found["history"]),
        **_evaluations(found),
        "curve": found.get("curve_path") or found.get("curve_problem"),
        "weights": found.get("weights_path") or found.get("weights_problem"),
        "checkpoints": _checkpoints(found["checkpoints"]),
        "folder": found["folder"],
    }
    for label, text in rows.items():
        if text:
            yield f"  {label:<{LABEL_WIDTH}} {text}"
    yield "next:"
    yield from (f"  {command}" for command in _next_commands(found))
    yield f"all figures: hermes-rl run results {run_id} --json"


def _reward(history: list[dict[str, Any]]) -> str | None:
    known = [(row["step"], row["reward/mean"]) for row in history if row.get("reward/mean") is not None]
    if not known:
        return None
    (first, before), (last, after) = known[0], known[-1]
    return f"{before:.3f} in step {first}" + ("" if first == last else f", {after:.3f} in step {last}")


def _evaluations(found: Mapping[str, Any]) -> dict[str, str]:
    """A row for each environment that the run evaluated."""
    before, after = (found.get(name) or {} for name in ("evaluation_before", "evaluation_after"))
    rows = {}
    for name, last in after.items():
        first = before.get(name) or last
        text = f"mean reward {_number(first['reward_mean'])} after step {first['step']}"
        if first["step"] != last["step"]:
            text += f", {_number(last['reward_mean'])} after step {last['step']}"
        rows[f"held-out {name}" if len(after) > 1 else "held-out"] = text
    return rows


def _checkpoints(checkpoints: list[dict[str, Any]]) -> str | None:
    steps = list(dict.fromkeys(str(each["step"]) for each in checkpoints))
    return f"of steps {', '.join(steps)}" if steps else None


def _next_commands(found: Mapping[str, Any]) -> list[str]:
    run_id, environment = found["run_id"], found.get("environment") or "ENVIRONMENT"
    if not found["checkpoints"] and not found.get("weights_path"):
        return [f"hermes-rl run status {run_id}", f"hermes-rl run logs {run_id}"]
    return [
        f"hermes-rl evaluate {environment.split(', ')[0]} --run {run_id}",
        f"hermes-rl engine serve {run_id}",
        f"hermes-rl export {run_id} --to merged",
    ]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
