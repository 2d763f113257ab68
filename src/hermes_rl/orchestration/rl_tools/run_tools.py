"""The tools that start, check and stop runs, and the one that tests an environment before training."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration.build import MissingRequirementError, prepare_run_file
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.errors import RefusalError
from hermes_rl.orchestration.rl_tools.session_draft import locked_session, record_started, require_draft, started_run
from hermes_rl.orchestration.run_file import RunFile
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.sinks.wandb_sink import PROJECT
from hermes_rl.tools.tool import tool


def start_draft(session: CallerContext, again: bool) -> dict[str, Any]:
    """Start a run of the session's draft, once per draft unless `again`."""
    with locked_session(session.session):
        draft = require_draft(session.session)
        before = started_run(session.session, draft)
        if before is not None and not again and RunPaths(before).folder.exists():
            return _already_started(session, before)
        run_file = _run_file(draft)
        run_id = session.runs.start(run_file)
        record_started(session.session, draft, run_id)
    paths = RunPaths(run_id)
    return {
        "message": f"run {run_id} is starting",
        "run_id": run_id,
        "status": "starting",
        **_run_fields(run_file),
        "config_path": str(paths.file),
        "logs": _log_paths(run_file, paths),
        "next": f"rl_check_status(run_id={run_id!r}) in a minute, and then after next_check_in_seconds",
    }


def check_draft(session: CallerContext) -> dict[str, Any]:
    run_file = _run_file(require_draft(session.session))
    return {
        "message": "all checks passed; nothing was started",
        "dry_run": True,
        **_run_fields(run_file),
        "run": run_file.model_dump(mode="json", exclude={"run_id", "created_at"}),
        "next": "rl_start_training()",
    }


def _already_started(session: CallerContext, run_id: str) -> dict[str, Any]:
    status = session.runs.status(run_id)
    return {
        "message": f"run {run_id} was already started from this unchanged draft; no other run was started",
        "run_id": run_id,
        "status": status["status"],
        "already_started": True,
        "next": f"rl_check_status(run_id={run_id!r}); to start another run of the same draft, "
        "rl_start_training(again=true); for another configuration, rl_edit_config first",
    }


def _run_file(draft: Draft) -> RunFile:
    try:
        return prepare_run_file(draft, stored=True)
    except MissingRequirementError as error:
        raise RefusalError(
            str(error),
            "ask the user to run the command in error, then rl_start_training(); or, without any key, "
            "rl_edit_config(field='preset', value='self-hosted')",
        ) from None


def _run_fields(run_file: RunFile) -> dict[str, Any]:
    first = run_file.environments[0]
    return {
        "environment": first.name,
        "environments": [
            {"name": entry.name, "id": entry.id, "weight": entry.weight, "evaluation_only": entry.evaluation_only}
            for entry in run_file.environments
        ],
        "preset": run_file.preset,
        "config": first.env,
        "wandb_project": PROJECT if run_file.tinker.get("use_wandb") else None,
        "wandb_run_name": run_file.tinker.get("wandb_name"),
    }


def _log_paths(run_file: RunFile, paths: RunPaths) -> dict[str, str]:
    engine = [] if run_file.engine is None else ["engine"]
    parts = [*engine, "api", "trainer", *(run_file.part_of(entry) for entry in run_file.environments)]
    return {part: str(paths.log(part)) for part in parts}


MAX_SUGGESTED_RUNS = 10
# The environment fields that a run sets for its trainer.
TRAINING_FIELDS = frozenset({"total_steps", "tokenizer_name", "inference_weight", "wandb_name"})


@tool(sandboxed=False)
async def rl_start_training(
    session: CallerContext, dry_run: bool = False, again: bool = False, resume: str | None = None
) -> dict[str, Any]:
    """Start a training run of the draft, and return its run_id immediately; the run continues when you leave.

    Call it after rl_select_environment and rl_edit_config. Calling it twice with an unchanged draft returns the same
    run. Next: rl_check_status(run_id) from time to time until the run is finished, stopped or failed.

    Args:
        dry_run: Only check everything and show what would be started.
        again: Start another run of a draft from which a run was already started.
        resume: The run_id of a stopped, failed or interrupted run to continue, instead of starting the draft.
    """
    if resume is not None:
        return await _resume(session, resume)
    await session.progress(0, 3, "checking the configuration")
    if dry_run:
        return await asyncio.to_thread(check_draft, session)
    await session.progress(1, 3, "starting")
    answer = await asyncio.to_thread(start_draft, session, again)
    await session.progress(3, 3, str(answer["message"]))
    return answer


@tool(sandboxed=False)
async def rl_check_status(session: CallerContext, run_id: str) -> dict[str, Any]:
    """Show the status of a run: phase, processes, running time, step, rewards and logs.

    A run takes minutes to days: check again after next_check_in_seconds. An earlier check may repeat the last metrics,
    but always reports a crash, a stall or the end immediately. When status is finished, call rl_get_results; when it is
    failed, read error and the logs, and continue with rl_start_training(resume=run_id).

    Args:
        run_id: From rl_start_training or rl_list_runs.
    """

    def check() -> dict[str, Any]:
        status = session.runs.status(run_id, use_cache=True)
        return {**status, "next": _next_call(status)}

    return await _with_known_run(session, run_id, check)


@tool(sandboxed=False)
async def rl_stop_training(session: CallerContext, run_id: str) -> dict[str, Any]:
    """Stop a run: environment, trainer and API stop in this order, and the trained weights are kept.

    It returns immediately while the processes are still stopping; rl_check_status shows when the run is stopped.
    Stopping a run that has ended changes nothing. rl_start_training(resume=run_id) continues it later.

    Args:
        run_id: From rl_start_training or rl_list_runs.
    """

    def stop() -> dict[str, Any]:
        before = session.runs.status(run_id)
        if before["ended"]:
            return {
                "message": f"run {run_id} has already ended: it is {before['status']}",
                "run_id": run_id,
                "status": before["status"],
                "next": f"rl_get_results(run_id={run_id!r})",
            }
        session.runs.stop(run_id)
        return {
            "message": f"run {run_id} is being stopped",
            "run_id": run_id,
            "status": "stopping",
            "next": f"rl_check_status(run_id={run_id!r}) shows when it is stopped",
        }

    return await _with_known_run(session, run_id, stop)


@tool(sandboxed=False)
async def rl_get_results(session: CallerContext, run_id: str) -> dict[str, Any]:
    """Get a run's results: final metrics, their history, the reward curve as a PNG, and the path of the weights.

    For a run that is still running, the results so far. weights_path is a folder with a LoRA adapter that PEFT and vLLM
    can load; it exists once the run is finished.

    Args:
        run_id: From rl_start_training or rl_list_runs.
    """
    return await _with_known_run(session, run_id, lambda: session.runs.results(run_id))


@tool(sandboxed=False)
async def rl_list_runs(session: CallerContext) -> dict[str, Any]:
    """List all runs, newest first, with run_id, environment and status, including runs that others started.

    Next: rl_check_status(run_id), rl_get_results(run_id) or rl_stop_training(run_id) with one of them.
    """
    runs = await asyncio.to_thread(session.runs.list_runs)
    return {"runs": runs, "count": len(runs)}


@tool(sandboxed=False)
async def rl_test_inference(
    session: CallerContext,
    num_steps: Annotated[int, Field(ge=1, le=1000)] = 3,
    group_size: Annotated[int, Field(ge=1, le=1024)] = 16,
    models: list[Any] | None = None,
) -> dict[str, Any]:
    """Test the selected environment on real models without training: does it load, prompt, parse and score correctly.

    Call it after rl_select_environment and before a long run. It takes minutes, runs num_steps × group_size rollouts
    per model, and returns a verdict for each check. No training engine is needed.

    Args:
        num_steps: Items per model.
        group_size: Completions per item.
        models: The models to test. A string is an OpenRouter model, such as "qwen/qwen3-8b", and needs
            OPENROUTER_API_KEY; an object {"model", "base_url", "api_key": "env:NAME"} is a model of any
            OpenAI-compatible endpoint, with its key given as the name of a variable. Default: three OpenRouter models,
            small, medium and large.
    """
    draft = await asyncio.to_thread(require_draft, session.session)
    # Not the run file: a draft without a model to train can still be tested.
    environment = draft.environments[0]
    changed = environment.description.changes.get("env", {})
    return await session.runs.test_inference(
        environment.reference,
        environment.name,
        {name: value for name, value in changed.items() if name not in TRAINING_FIELDS},
        models,
        num_steps=num_steps,
        group_size=group_size,
        progress=session.progress,
    )


def _next_call(status: dict[str, Any]) -> str:
    """The suggested call after a status."""
    run_id = status["run_id"]
    if not status["ended"]:
        wait = status.get("next_check_in_seconds") or 60
        return f"rl_check_status(run_id={run_id!r}) in {wait} s; rl_stop_training(run_id={run_id!r}) ends it"
    if status["status"] == "finished":
        return f"rl_get_results(run_id={run_id!r})"
    resume = f"rl_start_training(resume={run_id!r}) continues it"
    return resume if status["status"] == "stopped" else f"read the logs and fix the problem, then {resume}"


async def _resume(session: CallerContext, run_id: str) -> dict[str, Any]:
    def resume() -> dict[str, Any]:
        before = session.runs.status(run_id)["status"]
        if before == "finished":
            raise RefusalError(
                f"run {run_id} is finished and cannot be resumed",
                f"rl_get_results(run_id={run_id!r}), or rl_start_training(again=true) for another run of the draft",
            )
        session.runs.resume(run_id)
        return {
            "message": f"run {run_id}, which was {before}, continues",
            "run_id": run_id,
            "status": session.runs.status(run_id)["status"],
            "next": f"rl_check_status(run_id={run_id!r})",
        }

    return await _with_known_run(session, run_id, resume)


async def _with_known_run(session: CallerContext, run_id: str, work: Any) -> dict[str, Any]:
    """The result of `work`; for an unknown run, RefusalError with the known ones."""
    try:
        answer: dict[str, Any] = await asyncio.to_thread(work)
    except ConfigError as error:
        known = [str(run["run_id"]) for run in await asyncio.to_thread(session.runs.list_runs)]
        if run_id in known:
            raise
        raise RefusalError(
            f"there is no run {run_id!r}" if not known else str(error),
            "rl_list_runs() shows every run; take run_id from there" if known else "rl_start_training() starts one",
            runs=known[:MAX_SUGGESTED_RUNS],
        ) from None
    return answer
