"""The ten `rl_*` tools for training a model: as functions, as the toolset `rl`, and for the MCP server."""

from hermes_rl.orchestration.rl_tools.context import CallerContext, RunFunctions
from hermes_rl.orchestration.rl_tools.dispatch import RL_TOOLS, RlTool, call_rl_tool
from hermes_rl.orchestration.rl_tools.functions import (
    rl_check_status,
    rl_edit_config,
    rl_get_current_config,
    rl_get_results,
    rl_list_environments,
    rl_list_runs,
    rl_select_environment,
    rl_start_training,
    rl_stop_training,
    rl_test_inference,
)

__all__ = [
    "RL_TOOLS",
    "CallerContext",
    "RlTool",
    "RunFunctions",
    "call_rl_tool",
    "rl_check_status",
    "rl_edit_config",
    "rl_get_current_config",
    "rl_get_results",
    "rl_list_environments",
    "rl_list_runs",
    "rl_select_environment",
    "rl_start_training",
    "rl_stop_training",
    "rl_test_inference",
]
