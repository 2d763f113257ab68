"""Aliases for the module names that environments written for the seeds import.

`aliasing_import` replaces `__import__` of one module only, so sys.modules and other modules are unaffected, and imports
inside its functions work too. Installed atroposlib modules take precedence.
"""

import builtins
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from hermes_rl import parsers
from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.agent.result import AgentResult, ToolError
from hermes_rl.environment import base
from hermes_rl.environment.atropos_base import BaseEnv
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout import config

BASE_NAMES: dict[str, Any] = {
    "HermesAgentBaseEnv": base.HermesAgentBaseEnv,
    "HermesAgentEnvConfig": config.HermesAgentEnvConfig,
    "BaseEnv": BaseEnv,
    "BaseEnvConfig": config.HermesAgentEnvConfig,
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


def is_alias(name: str) -> bool:
    return name in SEED_MODULES or name in ATROPOS_MODULES


def aliasing_import() -> Import:
    """An `__import__` that also resolves the seeds' module names."""
    aliases = dict(SEED_MODULES)
    if importlib.util.find_spec("atroposlib") is None:
        aliases |= ATROPOS_MODULES

    def import_module(
        name: str,
        module_globals: Mapping[str, object] | None = None,
        module_locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if level == 0 and name in aliases:
            module = ModuleType(name)
            vars(module).update(aliases[name])
            return module if fromlist else _wrap_in_parents(name, module)
        return builtins.__import__(name, module_globals, module_locals, fromlist or (), level)

    return import_module


def _wrap_in_parents(name: str, module: ModuleType) -> ModuleType:
    """`import a.b.c` binds `a`: wrap the module in empty parent modules."""
    parent, _, child = name.rpartition(".")
    if not parent:
        return module
    outer = ModuleType(parent)
    setattr(outer, child, module)
    return _wrap_in_parents(parent, outer)
