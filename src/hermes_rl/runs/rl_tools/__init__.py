"""The ten tools with which an agent trains a model: as functions, as the toolset `rl`, and for the MCP server."""

from hermes_rl.runs.rl_tools.calling import RL_TOOLS, RlTool, called
from hermes_rl.runs.rl_tools.desk import Desk, RunFunctions
from hermes_rl.runs.rl_tools.functions import (
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
    "Desk",
    "RlTool",
    "RunFunctions",
    "called",
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
