"""The status of a run as one JSON object.

Always true: phase and processes are looked up on every call; only metrics may be repeated, and are marked then.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hermes_rl.core.secrets import redact_value
from hermes_rl.orchestration.replicas.state_file import FleetPaths, read_fleet_state
from hermes_rl.orchestration.run_file import RunFile
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import ComponentStatus
from hermes_rl.orchestration.status.derive import (
    ComponentFacts,
    DerivedStatus,
    LivePhase,
    StatusFacts,
    derive_status,
    part_status,
)
from hermes_rl.orchestration.status.inspect import find_run_file, gather_facts
from hermes_rl.orchestration.status.metrics import (
    ReadMetrics,
    RunMetrics,
    environment_metrics,
    latest_metrics,
    read_run_metrics,
)
from hermes_rl.orchestration.status.redaction import known_secrets
from hermes_rl.orchestration.status.stage import component_stage
from hermes_rl.orchestration.status.status_cache import (
    THROTTLE_SECONDS,
    describe_changes,
    notable,
    read_last_status,
    remaining_wait,
    write_last_status,
)
from hermes_rl.sinks.metrics_file import read_metrics
from hermes_rl.training.config import TrainerSettings

MIN_STALL_SECONDS = 600.0
# A step that takes this many times the median counts as a stall.
STALL_FACTOR = 5.0
# When the environments were silent for this share of the stall, the trainer is waiting for them.
SILENT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """A run's progress over time. Times are in Unix seconds; `environments` are the states of those that train."""

    phase: LivePhase
    now: float
    running_since: float
    last_step_at: float | None = None
    step_seconds: float | None = None
    environments_seen_at: float = 0.0
    environments: Mapping[str, str] | None = None
    trainer: str = "running"


@dataclass(frozen=True, slots=True)
class Stall:
    kind: str
    since: float
    why: str
    look_at: str
    """The component whose log to read."""


def detect_stall(pace: Pace) -> Stall | None:
    if pace.phase is not LivePhase.RUNNING:
        return None
    last = max(pace.running_since, pace.last_step_at or 0.0)
    states = pace.environments or {}
    if states and not any(state in {"running", "starting"} for state in states.values()):
        listed = ", ".join(f"{part} {state}" for part, state in states.items())
        why = f"no environment is running, so no training data arrives: {listed}"
        return Stall("no_environment", last, why, next(iter(states)))
    silent, limit = pace.now - last, max(MIN_STALL_SECONDS, STALL_FACTOR * (pace.step_seconds or 0.0))
    if silent <= limit:
        return None
    usual = f"; a step takes {pace.step_seconds:.0f} s" if pace.step_seconds else ""
    why = f"no new step for {silent / 60:.0f} minutes{usual}"
    waits = pace.trainer == "running" and pace.now - pace.environments_seen_at > SILENT_SHARE * silent
    return Stall("no_step", last, why, next(iter(states), "trainer") if waits else "trainer")


SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class InspectedRun:
    paths: RunPaths
    facts: StatusFacts
    derived: DerivedStatus
    run_file: RunFile | None

    @property
    def parts(self) -> list[str]:
        """In start order; from the run file while there is no state yet."""
        started = list(self.facts.state.parts) if self.facts.state else []
        return started or expected_parts(self.run_file)

    def secrets(self) -> list[str]:
        return known_secrets(self.run_file.keys if self.run_file else ())

    @property
    def total_steps(self) -> int | None:
        if self.run_file is None:
            return None
        configured = self.run_file.tinker.get("total_steps")
        return configured if isinstance(configured, int) else int(TrainerSettings.model_fields["total_steps"].default)


def inspect_run(run_id: str, *, now: float | None = None) -> InspectedRun:
    facts = gather_facts(run_id, now=now)
    paths = RunPaths(run_id)
    return InspectedRun(paths, facts, derive_status(facts), find_run_file(paths))


def status(
    run_id: str, *, use_cache: bool = False, now: float | None = None, read: ReadMetrics = read_metrics
) -> dict[str, Any]:
    """ConfigError with similar ids for an unknown run.

    With `use_cache` the metrics of the last full answer are repeated for half an hour, unless something has happened.
    `read` may skip older steps, for frequent callers.
    """
    run = inspect_run(run_id, now=now)
    metrics = read_run_metrics(run.paths, run.run_file, read)
    processes = process_fields(run, stepped=metrics.step > 0)
    stall = _find_stall(run, metrics, processes)
    answer: dict[str, Any] = {
        "run_id": run_id,
        "status": str(run.derived.phase),
        "ended": run.derived.phase.ended,
        "reason": run.derived.reason,
        **name_fields(run),
        "running_time_minutes": round(run.derived.running_seconds / 60, 2),
        "processes": processes,
        "stalled": None if stall is None else _stall_fields(stall, run),
        "logs": {part: str(run.paths.log(part)) for part in [*run.parts, SUPERVISOR]},
    }
    if run.derived.phase is LivePhase.FAILED:
        answer["error"] = run.derived.reason
    if run.derived.silent is not None:
        answer["supervisor_silent_seconds"] = round(run.derived.silent, 1)
    answer |= _cached_metrics(run, metrics, answer, stall) if use_cache else metric_fields(run, metrics)
    answer.setdefault("next_check_in_seconds", 0)
    answer.setdefault("from_record", False)
    redacted: dict[str, Any] = redact_value(answer, run.secrets())
    return redacted


def name_fields(run: InspectedRun) -> dict[str, Any]:
    file = run.run_file
    names = [entry.name for entry in file.environments] if file else []
    return {
        "name": file.name if file else run.facts.run_id,
        "environment": ", ".join(names) or None,
        "preset": file.preset if file else None,
        "wandb_name": (file.tinker.get("wandb_name") if file else None) or run.facts.run_id,
    }


def expected_parts(run_file: RunFile | None) -> list[str]:
    if run_file is None:
        return []
    engine = [] if run_file.engine is None else ["engine"]
    return [*engine, "api", "trainer", *(run_file.part_of(entry) for entry in run_file.environments)]


def process_fields(run: InspectedRun, *, stepped: bool = True) -> dict[str, dict[str, Any]]:
    """`stepped`: the trainer took a step; before that, the stage of an environment says what the first waits for."""
    parts = run.facts.state.parts if run.facts.state else {}
    return {
        name: _component_fields(
            run,
            name,
            parts.get(name, ComponentStatus()),
            run.facts.parts.get(name, ComponentFacts()),
            staged={"starting"} if stepped or not name.startswith("env") else {"starting", "running"},
        )
        for name in run.parts
    }


def metric_fields(run: InspectedRun, metrics: RunMetrics) -> dict[str, Any]:
    environments = [
        {
            "name": entry.name,
            "id": entry.id,
            "weight": entry.weight,
            "evaluation_only": entry.evaluation_only,
            "part": run.run_file.part_of(entry),
            "metrics": environment_metrics(metrics, entry.name),
        }
        for entry in run.run_file.environments
    ] if run.run_file else []  # fmt: skip
    now = None if run.derived.phase.ended else run.facts.now
    numbers: dict[str, Any] = {"metrics": latest_metrics(metrics, run.total_steps, now), "environments": environments}
    if metrics.problems:
        numbers["metrics_problem"] = "; ".join(metrics.problems)
    return numbers


def _cached_metrics(
    run: InspectedRun, metrics: RunMetrics, answer: dict[str, Any], stall: Stall | None
) -> dict[str, Any]:
    """The metrics of the last full answer while it is recent and nothing happened, else current ones."""
    now = run.facts.now
    seen = notable(answer["status"], stall.kind if stall else None, run.derived.silent is not None, answer["processes"])
    last = read_last_status(run.paths)
    wait = remaining_wait(last, seen, now)
    if last is not None and wait > 0 and not run.derived.phase.ended:
        return {
            **last.numbers,
            "from_record": True,
            "metrics_age_seconds": round(now - last.at),
            "next_check_in_seconds": round(wait),
            "message": f"no change since the last check; the metrics are {(now - last.at) / 60:.0f} minutes old. "
            "A crash, a stall or the end of the run is reported immediately",
        }
    numbers = redact_value(metric_fields(run, metrics), run.secrets())
    write_last_status(run.paths, seen, numbers, now)
    next_check = 0 if run.derived.phase.ended else round(THROTTLE_SECONDS)
    return {**numbers, "news": describe_changes(last, seen), "next_check_in_seconds": next_check}


def _component_fields(
    run: InspectedRun, name: str, part: ComponentStatus, facts: ComponentFacts, *, staged: Collection[str]
) -> dict[str, Any]:
    """The stage is looked up in these states."""
    replicas = _replica_fields(run.run_file, name)
    shown = part_status(part, facts)
    return {
        "status": shown,
        "stage": component_stage(run.paths.log(name)) if shown in staged else None,
        "pid": part.process.pid if part.process and facts.process else None,
        "url": part.url if facts.process else None,
        "restarts": part.restarts,
        "log": str(run.paths.log(name)),
        "problem": part.problem,
        **({} if replicas is None else {"replicas": replicas}),
    }


def _replica_fields(run_file: RunFile | None, part: str) -> dict[str, Any] | None:
    """The state of a component's replicas; None when it has none."""
    if run_file is None or run_file.replicas is None:
        return None
    names = [run_file.fleet_of(entry) for entry in run_file.environments if run_file.part_of(entry) == part]
    fleet = read_fleet_state(FleetPaths(names[0])) if names else None
    if fleet is None:
        return None
    keys = ("name", "on", "wanted", "running", "replicas", "shards", "problem")
    return {key: fleet[key] for key in keys}


def _find_stall(run: InspectedRun, metrics: RunMetrics, processes: dict[str, dict[str, Any]]) -> Stall | None:
    state = run.facts.state
    entries = run.run_file.environments if run.run_file else ()
    training = [run.run_file.part_of(entry) for entry in entries if run.run_file and not entry.evaluation_only]
    times = metrics.times
    pace = Pace(
        phase=run.derived.phase,
        now=run.facts.now,
        running_since=state.changed_at if state else run.facts.now,
        last_step_at=times[-1] if times else None,
        step_seconds=metrics.step_seconds,
        environments_seen_at=metrics.environments_seen_at,
        environments={part: processes[part]["status"] for part in training if part in processes},
        trainer=processes["trainer"]["status"] if "trainer" in processes else "waiting",
    )
    return detect_stall(pace)


def _stall_fields(stall: Stall, run: InspectedRun) -> dict[str, Any]:
    return {
        "kind": stall.kind,
        "since": stall.since,
        "minutes": round((run.facts.now - stall.since) / 60, 1),
        "why": stall.why,
        "look_at": str(run.paths.log(stall.look_at)),
    }
