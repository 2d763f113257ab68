"""The results of a run for a person: reward, evaluations, curve, weights, and what to do next."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_rl.cli.run.live import step_text
from hermes_rl.console.panel import sparkline
from hermes_rl.orchestration.held_out import Decoding

LABEL_WIDTH = 13


def results_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines for the answer of `results`; `--json` has all of it."""
    run_id = found["run_id"]
    minutes = found["running_time_minutes"]
    yield f"{run_id}  {found['status']}, {step_text(found['metrics'])}, {minutes:.1f} min"
    rows = {
        "environment": found.get("environment"),
        "reason": None if found["status"] == "finished" else found.get("reason"),
        **held_out_rows(found["held_out"]),
        "not evaluated": _not_evaluated(found),
        **_evaluations(found),
        "reward": _reward(found["history"]),
        "evaluation": _evaluation_time(found["held_out"], minutes),
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
    if first == last:
        return f"{before:.3f} in step {first}"
    drawn = sparkline([reward for _, reward in known])
    return f"{drawn}  {before:.3f} in step {first}, {after:.3f} in step {last}"


def held_out_rows(held_out: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A row for each decoding: the rate on held-out items before and after training."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    several = len({one["environment"] for one in held_out}) > 1
    for one in held_out:
        rows.setdefault(one["decoding"] + (f" {one['environment']}" if several else ""), []).append(one)
    return {label: _held_out_text(found) for label, found in rows.items()}


def _held_out_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Like `0.125 [0.04, 0.27] before, 1.000 [0.91, 1.00] after, on 40 held-out items at temperature 0`."""
    rates = ", ".join(f"{_rate(one)} {one['moment']}" for one in found)
    counts = " and ".join(dict.fromkeys(str(one["items"]) for one in found))
    return f"{rates}, on {counts} held-out items at temperature {Decoding(found[0]['decoding']).temperature:g}"


def _not_evaluated(found: Mapping[str, Any]) -> str | None:
    missing = found["held_out_missing"]
    if found["so_far"] or not missing:
        return None
    return f"{', '.join(missing)}; see hermes-rl run logs {found['run_id']} --part {missing[0]}"


def _rate(one: Mapping[str, Any]) -> str:
    if one["mean"] is None:
        return "no mean reward"
    interval = "" if one["low"] is None or one["high"] is None else f" [{one['low']:.2f}, {one['high']:.2f}]"
    return f"{one['mean']:.3f}{interval}"


def _evaluation_time(held_out: Sequence[Mapping[str, Any]], run_minutes: float) -> str | None:
    """Greedy and sampled evaluations run at the same time, so the longest of each moment counts."""
    longest: dict[str, float] = {}
    for one in held_out:
        longest[one["moment"]] = max(longest.get(one["moment"], 0.0), one["seconds"] or 0.0)
    minutes = sum(longest.values()) / 60
    return f"{minutes:.1f} min of {run_minutes:.1f} ({minutes / run_minutes:.0%})" if minutes and run_minutes else None


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
