"""The module names that environments written to the seeds' guide import, and what stands behind each today.

`aliasing_import` serves one module only: it replaces that module's `__import__`, so neither sys.modules nor any other
module is touched, and imports inside its functions are served as long as it lives. A name that can really be imported
from atroposlib is left to it.
"""

import builtins
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from hermes_rl import parsers
from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.agent.result import AgentResult, ToolError
from hermes_rl.environment import base, config
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.rewards.tool_context import ToolContext

BASE_NAMES: dict[str, Any] = {
    "HermesAgentBaseEnv": base.HermesAgentBaseEnv,
    "HermesAgentEnvConfig": config.HermesAgentEnvConfig,
    "BaseEnv": base.HermesAgentBaseEnv,
    "BaseEnvConfig": config.BaseEnvConfig,
    "EvalHandlingEnum": config.EvalHandling,
    "APIServerConfig": APIServerConfig,
    "ServerBaseline": ServerBaseline,
    "ServerManager": ServerManager,
    "ScoredDataGroup": dict,
    "ScoredDataItem": dict,
    "Item": Any,
    "AgentResult": AgentResult,
    "HermesAgentLoop": HermesAgentLoop,
    "ToolContext": ToolContext,
}

SEED_MODULES: dict[str, Mapping[str, Any]] = {
    "environments.hermes_base_env": BASE_NAMES,
    "environments.agent_loop": {
        "HermesAgentLoop": HermesAgentLoop,
        "AgentResult": AgentResult,
        "ToolError": ToolError,
    },
    "environments.tool_context": {"ToolContext": ToolContext},
    "environments.tool_call_parsers": {name: getattr(parsers, name) for name in ("get_parser", "list_parsers")},
}
ATROPOS_MODULES: dict[str, Mapping[str, Any]] = {
    "atroposlib.envs.base": BASE_NAMES,
    "atroposlib.envs.server_handling.server_manager": BASE_NAMES,
    "atroposlib.envs.server_handling.server_baseline": BASE_NAMES,
    "atroposlib.type_definitions": BASE_NAMES,
}

Import = Callable[..., Any]


def is_served(name: str) -> bool:
    """Whether a module's name is one of the seeds'."""
    return name in SEED_MODULES or name in ATROPOS_MODULES


def aliasing_import() -> Import:
    """An `__import__` that serves the seeds' names beside everything else."""
    served = dict(SEED_MODULES)
    if importlib.util.find_spec("atroposlib") is None:
        served |= ATROPOS_MODULES

    def serve(
        name: str,
        module_globals: Mapping[str, object] | None = None,
        module_locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if level == 0 and name in served:
            module = ModuleType(name)
            vars(module).update(served[name])
            return module if fromlist else _parents(name, module)
        return builtins.__import__(name, module_globals, module_locals, fromlist or (), level)

    return serve


def _parents(name: str, module: ModuleType) -> ModuleType:
    """`import a.b.c` binds a: an outer module that leads to the inner one."""
    parent, _, child = name.rpartition(".")
    if not parent:
        return module
    outer = ModuleType(parent)
    setattr(outer, child, module)
    return _parents(parent, outer)
