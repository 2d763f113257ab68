"""Status: the whole truth about a run at this moment, as one JSON object.

Always true: phase and processes are looked up at every call; only numbers may come from a record, and then say so.
"""

from dataclasses import dataclass
from typing import Any

from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.replicas.standing import FleetPlaces, read_standing
from hermes_rl.runs.run_file import RunFile
from hermes_rl.runs.states import PartStanding
from hermes_rl.runs.watching.courtesy import SECONDS, keep_told, news, notable, read_told, wait_left
from hermes_rl.runs.watching.hiding import hidden, known_secrets
from hermes_rl.runs.watching.live import gather, run_file_of
from hermes_rl.runs.watching.measured import Measured, Read, environment_metrics, metrics_of, read_measured
from hermes_rl.runs.watching.stalling import Pace, Stall, stall_of
from hermes_rl.runs.watching.standing import Facts, LivePhase, PartFacts, Standing, part_status, standing_of
from hermes_rl.sinks.reading import read_metrics
from hermes_rl.training.settings import TrainerSettings

SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class Watched:
    """A run as it was found: its facts, its file, and what follows from them."""

    places: RunPlaces
    facts: Facts
    standing: Standing
    run_file: RunFile | None

    @property
    def parts(self) -> list[str]:
        """In the order in which they start; as the run's file has them while no supervisor has said a word."""
        said = list(self.facts.state.parts) if self.facts.state else []
        return said or expected_parts(self.run_file)

    def secrets(self) -> list[str]:
        return known_secrets(self.run_file.keys if self.run_file else ())

    @property
    def total_steps(self) -> int | None:
        if self.run_file is None:
            return None
        asked = self.run_file.tinker.get("total_steps")
        return asked if isinstance(asked, int) else int(TrainerSettings.model_fields["total_steps"].default)


def watched(run_id: str, *, now: float | None = None) -> Watched:
    facts = gather(run_id, now=now)
    places = RunPlaces(run_id)
    return Watched(places, facts, standing_of(facts), run_file_of(places))


def status(
    run_id: str, *, courtesy: bool = False, now: float | None = None, read: Read = read_metrics
) -> dict[str, Any]:
    """ConfigError for a run that is not known, with those that are like it.

    With `courtesy` the numbers are those of the last full answer for half an hour, unless something has happened.
    `read` may leave out steps that are not of the newest, as who asks often does.
    """
    run = watched(run_id, now=now)
    measured = read_measured(run.places, run.run_file, read)
    processes = processes_of(run)
    stall = _stall(run, measured, processes)
    answer: dict[str, Any] = {
        "run_id": run_id,
        "status": str(run.standing.phase),
        "ended": run.standing.phase.ended,
        "reason": run.standing.reason,
        **named(run),
        "running_time_minutes": round(run.standing.running_seconds / 60, 2),
        "processes": processes,
        "stalled": None if stall is None else _told_stall(stall, run),
        "logs": {part: str(run.places.log(part)) for part in [*run.parts, SUPERVISOR]},
    }
    if run.standing.phase is LivePhase.FAILED:
        answer["error"] = run.standing.reason
    if run.standing.silent is not None:
        answer["supervisor_silent_seconds"] = round(run.standing.silent, 1)
    answer |= _numbers(run, measured, answer, stall) if courtesy else fresh_numbers(run, measured)
    answer.setdefault("next_check_in_seconds", 0)
    answer.setdefault("from_record", False)
    shown: dict[str, Any] = hidden(answer, run.secrets())
    return shown


def named(run: Watched) -> dict[str, Any]:
    """What the run was started as."""
    file = run.run_file
    names = [one.name for one in file.environments] if file else []
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
    return [*engine, "api", "trainer", *(run_file.part_of(one) for one in run_file.environments)]


def processes_of(run: Watched) -> dict[str, dict[str, Any]]:
    said = run.facts.state.parts if run.facts.state else {}
    return {
        name: _process(run, name, said.get(name, PartStanding()), run.facts.parts.get(name, PartFacts()))
        for name in run.parts
    }


def fresh_numbers(run: Watched, measured: Measured) -> dict[str, Any]:
    environments = [
        {
            "name": one.name,
            "id": one.id,
            "weight": one.weight,
            "evaluation_only": one.evaluation_only,
            "part": run.run_file.part_of(one),
            "metrics": environment_metrics(measured, one.name),
        }
        for one in run.run_file.environments
    ] if run.run_file else []  # fmt: skip
    numbers: dict[str, Any] = {"metrics": metrics_of(measured, run.total_steps), "environments": environments}
    if measured.problems:
        numbers["metrics_problem"] = "; ".join(measured.problems)
    return numbers


def _numbers(run: Watched, measured: Measured, answer: dict[str, Any], stall: Stall | None) -> dict[str, Any]:
    """The numbers with courtesy: of the record while it holds, else fresh ones, which become the record."""
    now = run.facts.now
    seen = notable(
        answer["status"], stall.kind if stall else None, run.standing.silent is not None, answer["processes"]
    )
    told = read_told(run.places)
    left = wait_left(told, seen, now)
    if told is not None and left > 0 and not run.standing.phase.ended:
        return {
            **told.numbers,
            "from_record": True,
            "metrics_age_seconds": round(now - told.at),
            "next_check_in_seconds": round(left),
            "message": f"nothing has happened since the last check; the numbers are of {(now - told.at) / 60:.0f} "
            "minutes ago, and a crash, a stall or the end is told at once",
        }
    numbers = hidden(fresh_numbers(run, measured), run.secrets())
    keep_told(run.places, seen, numbers, now)
    wait = 0 if run.standing.phase.ended else round(SECONDS)
    return {**numbers, "news": news(told, seen), "next_check_in_seconds": wait}


def _process(run: Watched, name: str, part: PartStanding, facts: PartFacts) -> dict[str, Any]:
    said = part_status(part, facts)
    replicas = _replicas(run.run_file, name)
    return {
        "status": said,
        "pid": part.process.pid if part.process and facts.process else None,
        "url": part.url if facts.process else None,
        "restarts": part.restarts,
        "log": str(run.places.log(name)),
        "problem": part.problem,
        **({} if replicas is None else {"replicas": replicas}),
    }


def _replicas(run_file: RunFile | None, part: str) -> dict[str, Any] | None:
    """How the replicas of a part stand, of one that has any."""
    if run_file is None or run_file.replicas is None:
        return None
    names = [run_file.fleet_of(one) for one in run_file.environments if run_file.part_of(one) == part]
    told = read_standing(FleetPlaces(names[0])) if names else None
    if told is None:
        return None
    keep = ("name", "on", "wanted", "running", "replicas", "shards", "problem")
    return {key: told[key] for key in keep}


def _stall(run: Watched, measured: Measured, processes: dict[str, dict[str, Any]]) -> Stall | None:
    state = run.facts.state
    training = (
        [run.run_file.part_of(one) for one in run.run_file.environments if not one.evaluation_only]
        if run.run_file
        else []
    )
    times = measured.times
    pace = Pace(
        phase=run.standing.phase,
        now=run.facts.now,
        running_since=state.changed_at if state else run.facts.now,
        last_step_at=times[-1] if times else None,
        step_seconds=measured.step_seconds,
        heard_at=measured.heard_at,
        environments={part: processes[part]["status"] for part in training if part in processes},
        trainer=processes["trainer"]["status"] if "trainer" in processes else "waiting",
    )
    return stall_of(pace)


def _told_stall(stall: Stall, run: Watched) -> dict[str, Any]:
    return {
        "kind": stall.kind,
        "since": stall.since,
        "minutes": round((run.facts.now - stall.since) / 60, 1),
        "why": stall.why,
        "look_at": str(run.places.log(stall.look_at)),
    }
