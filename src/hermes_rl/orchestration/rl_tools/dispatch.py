"""The tools by name, and calls with unchecked arguments.

Always true: a call returns a JSON object and never raises; a failure is under "error", the call to make next under
"next".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import HermesRLError
from hermes_rl.orchestration.rl_tools import draft_tools, run_tools
from hermes_rl.orchestration.rl_tools.context import CallerContext, ProgressCallback
from hermes_rl.orchestration.rl_tools.errors import RefusalError
from hermes_rl.orchestration.rl_tools.fork_tool import rl_fork
from hermes_rl.tools.tool import Tool, ToolUseError


@dataclass(frozen=True, slots=True)
class RlTool:
    """A tool with the hints by which a client decides whether to ask its user first.

    `default_next` is the suggested call after an error that suggests none.
    """

    tool: Tool
    title: str
    default_next: str
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    uses_draft: bool = False
    """Whether it works on the session's draft."""


_TOOLS = (
    RlTool(
        draft_tools.rl_list_environments,
        "List environments",
        "rl_list_environments() again once the cause is fixed",
        read_only=True,
    ),
    RlTool(
        draft_tools.rl_select_environment,
        "Select an environment",
        "rl_list_environments() shows what can be selected",
        uses_draft=True,
    ),
    RlTool(
        draft_tools.rl_get_current_config,
        "Show the draft's configuration",
        "rl_select_environment(name=NAME) starts a new draft",
        read_only=True,
        uses_draft=True,
    ),
    RlTool(
        draft_tools.rl_edit_config,
        "Change the draft's configuration",
        "rl_get_current_config() shows the fields and their allowed values",
        uses_draft=True,
    ),
    RlTool(
        run_tools.rl_start_training,
        "Start a training run",
        "rl_get_current_config() shows the draft, rl_edit_config changes it; then rl_start_training()",
        open_world=True,
        uses_draft=True,
    ),
    RlTool(run_tools.rl_check_status, "Check a run", "rl_list_runs() shows every run", read_only=True),
    RlTool(run_tools.rl_stop_training, "Stop a run", "rl_list_runs() shows every run", destructive=True),
    RlTool(run_tools.rl_get_results, "Get a run's results", "rl_check_status(run_id) shows its status", read_only=True),
    RlTool(run_tools.rl_list_runs, "List runs", "rl_list_runs() again once the cause is fixed", read_only=True),
    RlTool(
        run_tools.rl_test_inference,
        "Test an environment on models",
        "rl_get_current_config() shows the draft that is tested; then rl_test_inference()",
        idempotent=False,
        open_world=True,
        uses_draft=True,
    ),
)
RL_TOOLS: dict[str, RlTool] = {rl_tool.tool.name: rl_tool for rl_tool in _TOOLS}
"""The ten tools, which an agent in a rollout has too."""
_FORK = RlTool(
    rl_fork,
    "Fork a recorded rollout",
    "rl_fork with another turn, rollout, group or file",
    idempotent=False,
    open_world=True,
)
MCP_TOOLS: dict[str, RlTool] = {**RL_TOOLS, rl_fork.name: _FORK}
"""What clients of the MCP server have."""


async def call_rl_tool(
    context: CallerContext,
    name: str,
    arguments: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    rl_tool = MCP_TOOLS.get(name)
    if rl_tool is None:
        similar = get_close_matches(name, MCP_TOOLS, n=1)
        suggestion = f"{similar[0]}, if that was meant" if similar else "one of tools"
        return {"error": f"there is no tool {name!r}", "next": f"call {suggestion}", "tools": list(MCP_TOOLS)}
    try:
        checked = rl_tool.tool.check({} if arguments is None else arguments)
    except ToolUseError as error:
        return wrong_arguments(rl_tool, str(error))
    try:
        caller = context if progress is None else replace(context, progress=progress)
        answer = await rl_tool.tool.function(caller, **checked)
    except RefusalError as error:
        answer = error.answer
    except HermesRLError as error:
        answer = {"error": str(error), "next": rl_tool.default_next}
    except Exception as error:  # noqa: BLE001 (callers read only JSON)
        answer = {"error": f"{name} failed: {type(error).__name__}: {error}", "next": rl_tool.default_next}
    # Round trip: configurations may contain values that are not plain JSON.
    json_answer: dict[str, Any] = fast_json.loads(fast_json.dumps(answer))
    return json_answer


def wrong_arguments(rl_tool: RlTool, error: str) -> dict[str, Any]:
    return {
        "error": error,
        "next": f"{rl_tool.tool.name} with arguments that match its schema",
        "schema": rl_tool.tool.parameters,
    }
