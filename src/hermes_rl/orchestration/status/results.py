"""The results of a run, final or so far: metrics, curve, checkpoints, weights and how to use them.

Always true: every value is valid JSON; weights are reported only after their files were checked.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import redact_value
from hermes_rl.orchestration.held_out import held_out_results
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.status.curve import draw_curve
from hermes_rl.orchestration.status.derive import LivePhase
from hermes_rl.orchestration.status.metrics import RunEvaluation, RunMetrics, finite_number, read_run_metrics
from hermes_rl.orchestration.status.status import InspectedRun, inspect_run, metric_fields, name_fields

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
MAX_HEADER_BYTES = 100 * 2**20


def weights_problem(folder: Path) -> str | None:
    """Why a PEFT adapter would not load, else None. Reads only headers, so large weights take no longer."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        if not isinstance(config, dict) or "peft_type" not in config:
            return f"{folder / CONFIG} does not describe an adapter"
        return _tensors_problem(folder / TENSORS)
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError) as error:
        return f"{folder} cannot be read: {error}"


def _tensors_problem(path: Path) -> str | None:
    """A safetensors file begins with the length of its header; the header says where each tensor ends."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            return f"{path} is not a safetensors file"
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    if not ends:
        return f"{path} contains no tensors"
    missing = 8 + length + max(ends) - path.stat().st_size
    return f"{path} is truncated: {missing} bytes are missing" if missing > 0 else None


MAX_ROWS = 40
HISTORY_KEYS = (
    "reward/mean",
    "reward/std",
    "train/loss",
    "train/learning_rate",
    "entropy",
    "kl/sample_train_k3",
    "logprobs/diff",
)


def results(run_id: str) -> dict[str, Any]:
    """ConfigError for an unknown run. For a run that has not finished, the results so far."""
    run = inspect_run(run_id)
    metrics = read_run_metrics(run.paths, run.run_file)
    evaluations = metrics.evaluations()
    evaluated, missing = held_out_results(run.paths, run.run_file)
    answer: dict[str, Any] = {
        "run_id": run_id,
        "status": str(run.derived.phase),
        "so_far": run.derived.phase is not LivePhase.FINISHED,
        "reason": run.derived.reason,
        **name_fields(run),
        **metric_fields(run, metrics),
        "running_time_minutes": round(run.derived.running_seconds / 60, 2),
        "final_metrics": json_safe(metrics.steps[-1]) if metrics.steps else {},
        "history": history(metrics),
        "held_out": [json_safe(asdict(one)) for one in evaluated],
        "held_out_missing": missing,
        "evaluations": [json_safe(asdict(evaluation)) for evaluation in evenly_spaced(evaluations)],
        "evaluation_before": _evaluations_at_end(evaluations, 0),
        "evaluation_after": _evaluations_at_end(evaluations, -1),
        **_curve_fields(run, metrics),
        **_weights_fields(run),
        "checkpoints": checkpoints(run.paths),
        "config_path": str(run.paths.file),
        "folder": str(run.paths.folder),
    }
    redacted: dict[str, Any] = redact_value(answer, run.secrets())
    return redacted


def history(metrics: RunMetrics) -> list[dict[str, Any]]:
    """Rows sampled over the whole run, including the first and the last."""
    environment_keys = [
        key for key in (metrics.steps[-1] if metrics.steps else {}) if key.startswith("reward/environment/")
    ]
    return [
        {
            "step": row["step"],
            "time": finite_number(row.get("time")),
            **{key: finite_number(row.get(key)) for key in (*HISTORY_KEYS, *environment_keys)},
        }
        for row in evenly_spaced(metrics.steps)
    ]


def evenly_spaced(rows: Sequence[Any], max_rows: int = MAX_ROWS) -> list[Any]:
    if len(rows) <= max_rows:
        return list(rows)
    return [rows[round(at * (len(rows) - 1) / (max_rows - 1))] for at in range(max_rows)]


def json_safe(value: Any) -> Any:
    """The value with non-finite numbers replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): json_safe(inner) for key, inner in value.items()}
    return [json_safe(inner) for inner in value] if isinstance(value, list | tuple) else value


def checkpoints(paths: RunPaths) -> list[dict[str, Any]]:
    """The checkpoints that the engine still has, from the run's lineage."""
    try:
        data = (paths.folder / "lineage.jsonl").read_bytes()
        lines = [fast_json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    except (OSError, ValueError):
        return []
    known = [line for line in lines if isinstance(line, dict)]
    deleted = {line["deleted"] for line in known if "deleted" in line}
    keys = ("step", "version", "at", "final", "state", "sampler")
    return [
        {key: line.get(key) for key in keys}
        for line in known
        if "step" in line and (line.get("final") or line["step"] not in deleted)
    ]


def _evaluations_at_end(evaluations: Sequence[RunEvaluation], at: int) -> dict[str, Any] | None:
    """The first or the last evaluation of each environment."""
    found: dict[str, Any] = {}
    for evaluation in evaluations if at else reversed(evaluations):
        found[evaluation.environment] = {
            "step": evaluation.step,
            "reward_mean": evaluation.reward_mean,
            "percent_correct": evaluation.percent_correct,
        }
    return found or None


def _curve_fields(run: InspectedRun, metrics: RunMetrics) -> dict[str, Any]:
    try:
        return {"curve_path": str(draw_curve(run, metrics))}
    except ConfigError as error:
        return {"curve_path": None, "curve_problem": str(error)}


def _weights_fields(run: InspectedRun) -> dict[str, Any]:
    run_id, folder = run.facts.run_id, run.paths.weights
    export = f"hermes-rl export {run_id} --to peft -o {run_id}-peft"
    problem = weights_problem(folder)
    if problem is not None:
        why = problem if folder.exists() else "the weights are exported when the run finishes"
        return {
            "weights_path": None,
            "weights_problem": f"{why}; export the newest checkpoint with `{export}`",
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
