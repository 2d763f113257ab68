"""The ten tools as Python functions: each returns JSON text and uses the draft of the session "default"."""

import json
from typing import Any

from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.dispatch import call_rl_tool


async def rl_list_environments() -> str:
    return await _call_json("rl_list_environments")


async def rl_select_environment(
    name: str, preset: str | None = None, add: bool = False, weight: float = 1.0, evaluation_only: bool = False
) -> str:
    return await _call_json(
        "rl_select_environment", name=name, preset=preset, add=add, weight=weight, evaluation_only=evaluation_only
    )


async def rl_get_current_config() -> str:
    return await _call_json("rl_get_current_config")


async def rl_edit_config(field: str, value: Any) -> str:
    return await _call_json("rl_edit_config", field=field, value=value)


async def rl_start_training(dry_run: bool = False, again: bool = False, resume: str | None = None) -> str:
    return await _call_json("rl_start_training", dry_run=dry_run, again=again, resume=resume)


async def rl_check_status(run_id: str) -> str:
    return await _call_json("rl_check_status", run_id=run_id)


async def rl_stop_training(run_id: str) -> str:
    return await _call_json("rl_stop_training", run_id=run_id)


async def rl_get_results(run_id: str) -> str:
    return await _call_json("rl_get_results", run_id=run_id)


async def rl_list_runs() -> str:
    return await _call_json("rl_list_runs")


async def rl_test_inference(num_steps: int = 3, group_size: int = 16, models: list[Any] | None = None) -> str:
    return await _call_json("rl_test_inference", num_steps=num_steps, group_size=group_size, models=models)


async def _call_json(tool: str, /, **arguments: Any) -> str:
    return json.dumps(await call_rl_tool(CallerContext(), tool, arguments), indent=2, ensure_ascii=False)
