"""The ten tools by name, and the call of one by somebody who may be wrong about its arguments.

Always true: a call answers with a JSON object and never raises; what went wrong stands under "error", with the call to
make next under "next".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import HermesRLError
from hermes_rl.runs.rl_tools import draft_tools, run_tools
from hermes_rl.runs.rl_tools.answers import RefusalError
from hermes_rl.runs.rl_tools.desk import Desk, Told
from hermes_rl.tools.tool import Tool, ToolUseError


@dataclass(frozen=True, slots=True)
class RlTool:
    """A tool, and the hints by which a client decides whether to ask its user first.

    `otherwise` is the call to make when it failed for a reason that named none.
    """

    tool: Tool
    title: str
    otherwise: str
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    drafts: bool = False
    """Whether it works on the session's draft."""


_TOOLS = (
    RlTool(
        draft_tools.rl_list_environments,
        "List environments",
        "rl_list_environments() once more when the cause is mended",
        read_only=True,
    ),
    RlTool(
        draft_tools.rl_select_environment,
        "Select an environment",
        "rl_list_environments() shows what can be selected",
        drafts=True,
    ),
    RlTool(
        draft_tools.rl_get_current_config,
        "Show the draft's configuration",
        "rl_select_environment(name=NAME) begins a new draft",
        read_only=True,
        drafts=True,
    ),
    RlTool(
        draft_tools.rl_edit_config,
        "Change the draft's configuration",
        "rl_get_current_config() shows the fields and what they allow",
        drafts=True,
    ),
    RlTool(
        run_tools.rl_start_training,
        "Start a training run",
        "rl_get_current_config() shows the draft, rl_edit_config changes it; then rl_start_training()",
        open_world=True,
        drafts=True,
    ),
    RlTool(run_tools.rl_check_status, "Check a run", "rl_list_runs() shows every run", read_only=True),
    RlTool(run_tools.rl_stop_training, "Stop a run", "rl_list_runs() shows every run", destructive=True),
    RlTool(run_tools.rl_get_results, "Get a run's results", "rl_check_status(run_id) tells its state", read_only=True),
    RlTool(run_tools.rl_list_runs, "List runs", "rl_list_runs() once more when the cause is mended", read_only=True),
    RlTool(
        run_tools.rl_test_inference,
        "Test an environment on models",
        "rl_get_current_config() shows the draft that is tested; then rl_test_inference()",
        idempotent=False,
        open_world=True,
        drafts=True,
    ),
)
RL_TOOLS: dict[str, RlTool] = {one.tool.name: one for one in _TOOLS}


async def called(
    desk: Desk, name: str, arguments: Mapping[str, Any] | None = None, progress: Told | None = None
) -> dict[str, Any]:
    """The answer of one call."""
    known = RL_TOOLS.get(name)
    if known is None:
        near = get_close_matches(name, RL_TOOLS, n=1)
        meant = f"{near[0]}, if that was meant" if near else "one of tools"
        return {"error": f"there is no tool {name!r}", "next": f"call {meant}", "tools": list(RL_TOOLS)}
    try:
        checked = known.tool.check({} if arguments is None else arguments)
    except ToolUseError as error:
        return {
            "error": str(error),
            "next": f"{name} with arguments as in its schema",
            "schema": known.tool.parameters,
        }
    try:
        answer = await known.tool.function(desk if progress is None else replace(desk, progress=progress), **checked)
    except RefusalError as error:
        answer = error.answer
    except HermesRLError as error:
        answer = {"error": str(error), "next": known.otherwise}
    except Exception as error:  # noqa: BLE001 (a caller who reads only JSON is told in JSON)
        answer = {"error": f"{name} failed: {type(error).__name__}: {error}", "next": known.otherwise}
    # What an author put into a configuration may be no JSON.
    plain: dict[str, Any] = jsontext.loads(jsontext.dumps(answer))
    return plain
