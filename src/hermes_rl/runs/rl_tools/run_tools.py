"""The tools that start, watch and stop runs, and the one that tries an environment before any training."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from hermes_rl.errors import ConfigError
from hermes_rl.runs.rl_tools.answers import RefusalError
from hermes_rl.runs.rl_tools.desk import Desk
from hermes_rl.runs.rl_tools.drafts import chosen_draft
from hermes_rl.runs.rl_tools.launching import rehearsed, started
from hermes_rl.tools.tool import tool

KNOWN_SHOWN = 10
# What a run sets of an environment for the sake of its trainer.
OF_TRAINING = frozenset({"total_steps", "tokenizer_name", "inference_weight", "wandb_name"})


@tool(sandboxed=False)
async def rl_start_training(
    session: Desk, dry_run: bool = False, again: bool = False, resume: str | None = None
) -> dict[str, Any]:
    """Start a training run of the draft, and answer at once with its run_id; the run goes on when you leave.

    Call it after rl_select_environment and rl_edit_config. Calling it twice with an unchanged draft answers with the
    run that is already there. Next: rl_check_status(run_id) now and then until it is finished, stopped or failed.

    Args:
        dry_run: Only check everything and show what would be started.
        again: Start one more run of a draft of which a run was started before.
        resume: The run_id of a run that was stopped, failed or was interrupted: go on with it instead of the draft.
    """
    if resume is not None:
        return await _resumed(session, resume)
    await session.progress(0, 3, "checking the configuration")
    if dry_run:
        return await asyncio.to_thread(rehearsed, session)
    await session.progress(1, 3, "starting")
    answer = await asyncio.to_thread(started, session, again)
    await session.progress(3, 3, str(answer["message"]))
    return answer


@tool(sandboxed=False)
async def rl_check_status(session: Desk, run_id: str) -> dict[str, Any]:
    """Tell how a run goes: its status, its processes, how long it has run, its step and rewards, and its logs.

    A run takes minutes to days: ask again after next_check_in_seconds. Asked earlier, the figures may be those of the
    last answer, while a crash, a stall or the end is always told at once. When status is finished call rl_get_results;
    when it is failed read error and the logs, and go on with rl_start_training(resume=run_id).

    Args:
        run_id: As rl_start_training or rl_list_runs gave it.
    """

    def check() -> dict[str, Any]:
        told = session.runs.status(run_id, courtesy=True)
        return {**told, "next": _following(told)}

    return await _of_run(session, run_id, check)


@tool(sandboxed=False)
async def rl_stop_training(session: Desk, run_id: str) -> dict[str, Any]:
    """Stop a run: environment, trainer and API end in this order, and what was learned is kept.

    It answers at once while the parts are still ending; rl_check_status tells when it is stopped. Stopping a run that
    has ended already changes nothing. rl_start_training(resume=run_id) goes on with it later.

    Args:
        run_id: As rl_start_training or rl_list_runs gave it.
    """

    def stop() -> dict[str, Any]:
        before = session.runs.status(run_id)
        if before["ended"]:
            return {
                "message": f"the run {run_id} has ended before: it is {before['status']}",
                "run_id": run_id,
                "status": before["status"],
                "next": f"rl_get_results(run_id={run_id!r})",
            }
        session.runs.stop(run_id)
        return {
            "message": f"the run {run_id} is being stopped",
            "run_id": run_id,
            "status": "stopping",
            "next": f"rl_check_status(run_id={run_id!r}) tells when it is stopped",
        }

    return await _of_run(session, run_id, stop)


@tool(sandboxed=False)
async def rl_get_results(session: Desk, run_id: str) -> dict[str, Any]:
    """Give a run's outcome: final metrics, their history, the reward curve as a PNG, and the path of the weights.

    Also of a run that is still going, as far as it is. weights_path is a folder with a LoRA adapter that PEFT and vLLM
    load; it is there once the run is finished.

    Args:
        run_id: As rl_start_training or rl_list_runs gave it.
    """
    return await _of_run(session, run_id, lambda: session.runs.results(run_id))


@tool(sandboxed=False)
async def rl_list_runs(session: Desk) -> dict[str, Any]:
    """List all runs, the newest first, with run_id, environment and status; also those that others started.

    Next: rl_check_status(run_id), rl_get_results(run_id) or rl_stop_training(run_id) with one of them.
    """
    runs = await asyncio.to_thread(session.runs.listed)
    return {"runs": runs, "count": len(runs)}


@tool(sandboxed=False)
async def rl_test_inference(
    session: Desk,
    num_steps: Annotated[int, Field(ge=1, le=1000)] = 3,
    group_size: Annotated[int, Field(ge=1, le=1024)] = 16,
    models: list[Any] | None = None,
) -> dict[str, Any]:
    """Try the selected environment on real models without training: does it load, prompt, parse and score as it should.

    Call it after rl_select_environment and before a long run. It takes minutes, makes num_steps × group_size rollouts
    of each model, and gives a verdict for each check. No training engine is needed.

    Args:
        num_steps: Items to try with each model.
        group_size: Completions of each item.
        models: Which models to ask. A text is a model of OpenRouter, such as "qwen/qwen3-8b", which needs
            OPENROUTER_API_KEY; an object {"model", "base_url", "api_key": "env:NAME"} is a model of any
            OpenAI-compatible endpoint, its key by the name of a variable and never itself. Left out: three models of
            OpenRouter, small, medium and large.
    """
    draft = await asyncio.to_thread(chosen_draft, session.session)
    # Not the run's file: a draft that lacks a model to train can be tried all the same.
    environment = draft.environments[0]
    changed = environment.description.asked.get("env", {})
    return await session.runs.test_inference(
        environment.reference,
        environment.name,
        {name: value for name, value in changed.items() if name not in OF_TRAINING},
        models,
        num_steps=num_steps,
        group_size=group_size,
        progress=session.progress,
    )


def _following(told: dict[str, Any]) -> str:
    """The call to make after a status."""
    run_id = told["run_id"]
    if not told["ended"]:
        wait = told.get("next_check_in_seconds") or 60
        return f"rl_check_status(run_id={run_id!r}) in {wait} s; rl_stop_training(run_id={run_id!r}) ends it"
    if told["status"] == "finished":
        return f"rl_get_results(run_id={run_id!r})"
    onward = f"rl_start_training(resume={run_id!r}) goes on with it"
    return onward if told["status"] == "stopped" else f"read the logs and mend what is wrong, then {onward}"


async def _resumed(session: Desk, run_id: str) -> dict[str, Any]:
    def resume() -> dict[str, Any]:
        before = session.runs.status(run_id)["status"]
        if before == "finished":
            raise RefusalError(
                f"the run {run_id} is finished; there is nothing to go on with",
                f"rl_get_results(run_id={run_id!r}), or rl_start_training(again=true) for another run of the draft",
            )
        session.runs.resume(run_id)
        return {
            "message": f"the run {run_id}, which was {before}, goes on",
            "run_id": run_id,
            "status": session.runs.status(run_id)["status"],
            "next": f"rl_check_status(run_id={run_id!r})",
        }

    return await _of_run(session, run_id, resume)


async def _of_run(session: Desk, run_id: str, work: Any) -> dict[str, Any]:
    """The work's answer; for a run that is not known a refusal with those that are."""
    try:
        answer: dict[str, Any] = await asyncio.to_thread(work)
    except ConfigError as error:
        known = [str(run["run_id"]) for run in await asyncio.to_thread(session.runs.listed)]
        if run_id in known:
            raise
        raise RefusalError(
            f"there is no run {run_id!r}" if not known else str(error),
            "rl_list_runs() shows every run; take run_id from there" if known else "rl_start_training() starts one",
            runs=known[:KNOWN_SHOWN],
        ) from None
    return answer
