"""The ten tools as Python functions: each returns JSON text and uses the draft of the session "default".

Always true: a call never raises, also with arguments that Python would refuse.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec

from hermes_rl.orchestration.rl_tools.answer_text import answer_text
from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.dispatch import RL_TOOLS, call_rl_tool, wrong_arguments

Arguments = ParamSpec("Arguments")
Function = Callable[Arguments, Awaitable[str]]


def _answers_wrong_calls(function: Function[Arguments]) -> Function[Arguments]:
    signature, name = inspect.signature(function), getattr(function, "__name__", "")

    @wraps(function)
    async def call(*values: Arguments.args, **named: Arguments.kwargs) -> str:
        try:
            signature.bind(*values, **named)
        except TypeError as error:
            return answer_text(wrong_arguments(RL_TOOLS[name], f"invalid arguments for {name}: {error}"))
        return await function(*values, **named)

    return call


@_answers_wrong_calls
async def rl_list_environments() -> str:
    return await _call_json("rl_list_environments")


@_answers_wrong_calls
async def rl_select_environment(
    name: str, preset: str | None = None, add: bool = False, weight: float = 1.0, evaluation_only: bool = False
) -> str:
    return await _call_json(
        "rl_select_environment", name=name, preset=preset, add=add, weight=weight, evaluation_only=evaluation_only
    )


@_answers_wrong_calls
async def rl_get_current_config(fields: str = "main") -> str:
    return await _call_json("rl_get_current_config", fields=fields)


@_answers_wrong_calls
async def rl_edit_config(field: str, value: Any) -> str:
    return await _call_json("rl_edit_config", field=field, value=value)


@_answers_wrong_calls
async def rl_start_training(dry_run: bool = False, again: bool = False, resume: str | None = None) -> str:
    return await _call_json("rl_start_training", dry_run=dry_run, again=again, resume=resume)


@_answers_wrong_calls
async def rl_check_status(run_id: str) -> str:
    return await _call_json("rl_check_status", run_id=run_id)


@_answers_wrong_calls
async def rl_stop_training(run_id: str) -> str:
    return await _call_json("rl_stop_training", run_id=run_id)


@_answers_wrong_calls
async def rl_get_results(run_id: str) -> str:
    return await _call_json("rl_get_results", run_id=run_id)


@_answers_wrong_calls
async def rl_list_runs() -> str:
    return await _call_json("rl_list_runs")


@_answers_wrong_calls
async def rl_test_inference(num_steps: int = 3, group_size: int = 16, models: list[Any] | None = None) -> str:
    return await _call_json("rl_test_inference", num_steps=num_steps, group_size=group_size, models=models)


async def _call_json(tool: str, /, **arguments: Any) -> str:
    return answer_text(await call_rl_tool(CallerContext(), tool, arguments))
