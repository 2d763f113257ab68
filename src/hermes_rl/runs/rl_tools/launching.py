"""From a session's draft to a run that is started, once for each draft, or only rehearsed."""

from typing import Any

from hermes_rl.runs.configuration.draft import Draft
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.rl_tools.answers import RefusalError
from hermes_rl.runs.rl_tools.desk import Desk
from hermes_rl.runs.rl_tools.drafts import chosen_draft, held, note_started, started_run
from hermes_rl.runs.rl_tools.starting import LackingError, startable
from hermes_rl.runs.run_file import RunFile
from hermes_rl.sinks.wandb_run import PROJECT


def started(session: Desk, again: bool) -> dict[str, Any]:
    with held(session.session):
        draft = chosen_draft(session.session)
        before = started_run(session.session, draft)
        if before is not None and not again and RunPlaces(before).folder.exists():
            return _already_there(session, before)
        run_file = _run_file(draft)
        run_id = session.runs.start(run_file)
        note_started(session.session, draft, run_id)
    places = RunPlaces(run_id)
    return {
        "message": f"the run {run_id} is starting",
        "run_id": run_id,
        "status": "starting",
        **_described(run_file),
        "config_path": str(places.file),
        "logs": _logs(run_file, places),
        "next": f"rl_check_status(run_id={run_id!r}) in a minute, and then after next_check_in_seconds",
    }


def rehearsed(session: Desk) -> dict[str, Any]:
    run_file = _run_file(chosen_draft(session.session))
    return {
        "message": "everything is in order; nothing was started",
        "dry_run": True,
        **_described(run_file),
        "run": run_file.model_dump(mode="json", exclude={"run_id", "created_at"}),
        "next": "rl_start_training()",
    }


def _already_there(session: Desk, run_id: str) -> dict[str, Any]:
    told = session.runs.status(run_id)
    return {
        "message": f"the run {run_id} was already started from this draft, unchanged since; no other was started",
        "run_id": run_id,
        "status": told["status"],
        "already_started": True,
        "next": f"rl_check_status(run_id={run_id!r}); to start another run of the same draft "
        "rl_start_training(again=true), of another configuration rl_edit_config first",
    }


def _run_file(draft: Draft) -> RunFile:
    try:
        return startable(draft)
    except LackingError as error:
        raise RefusalError(
            str(error),
            "ask the user to run the line in error, then rl_start_training(); or, without any key, "
            "rl_edit_config(field='preset', value='self-hosted')",
        ) from None


def _described(run_file: RunFile) -> dict[str, Any]:
    first = run_file.environments[0]
    return {
        "environment": first.name,
        "environments": [
            {"name": one.name, "id": one.id, "weight": one.weight, "evaluation_only": one.evaluation_only}
            for one in run_file.environments
        ],
        "preset": run_file.preset,
        "config": first.env,
        "wandb_project": PROJECT if run_file.tinker.get("use_wandb") else None,
        "wandb_run_name": run_file.tinker.get("wandb_name"),
    }


def _logs(run_file: RunFile, places: RunPlaces) -> dict[str, str]:
    engine = [] if run_file.engine is None else ["engine"]
    parts = [*engine, "api", "trainer", *(run_file.part_of(one) for one in run_file.environments)]
    return {part: str(places.log(part)) for part in parts}
