"""Train, evaluate and generate data for LLM agents that use tools.

The public names are loaded when first used: importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hermes_rl.version import __version__

if TYPE_CHECKING:
    from hermes_rl.agent import AgentResult, HermesAgentLoop, ToolError
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.config import HermesAgentEnvConfig
    from hermes_rl.environment.steps import Step
    from hermes_rl.errors import (
        ConfigError,
        EndpointError,
        Failure,
        HermesRLError,
        JudgeError,
        SandboxError,
        ToolHostError,
        VerifierError,
        Whose,
        WorldError,
    )
    from hermes_rl.inference import APIServerConfig, ServerManager
    from hermes_rl.messages import Message, ToolCall
    from hermes_rl.rewards import Case, Judge, Judgement, ToolContext, Verdict, cpu_reward, run_cases, weighted
    from hermes_rl.sandbox import Limits, SandboxSpec
    from hermes_rl.tools.tool import ToolUseError, tool
    from hermes_rl.trajectory import Group, Reward, Rollout, Sequence, StopReason

__all__ = [
    "APIServerConfig",
    "AgentResult",
    "Case",
    "ConfigError",
    "EndpointError",
    "Failure",
    "Group",
    "HermesAgentBaseEnv",
    "HermesAgentEnvConfig",
    "HermesAgentLoop",
    "HermesRLError",
    "Judge",
    "JudgeError",
    "Judgement",
    "Limits",
    "Message",
    "Reward",
    "Rollout",
    "SandboxError",
    "SandboxSpec",
    "Sequence",
    "ServerManager",
    "Step",
    "StopReason",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolHostError",
    "ToolUseError",
    "Verdict",
    "VerifierError",
    "Whose",
    "WorldError",
    "__version__",
    "cpu_reward",
    "run_cases",
    "tool",
    "weighted",
]

_HOMES = {
    "agent": ("AgentResult", "HermesAgentLoop", "ToolError"),
    "environment.base": ("HermesAgentBaseEnv",),
    "environment.config": ("HermesAgentEnvConfig",),
    "environment.steps": ("Step",),
    "errors": (
        "ConfigError",
        "EndpointError",
        "Failure",
        "HermesRLError",
        "JudgeError",
        "SandboxError",
        "ToolHostError",
        "VerifierError",
        "Whose",
        "WorldError",
    ),
    "inference": ("APIServerConfig", "ServerManager"),
    "messages": ("Message", "ToolCall"),
    "rewards": ("Case", "Judge", "Judgement", "ToolContext", "Verdict", "cpu_reward", "run_cases", "weighted"),
    "sandbox": ("Limits", "SandboxSpec"),
    "tools": ("ToolUseError", "tool"),
    "trajectory": ("Group", "Reward", "Rollout", "Sequence", "StopReason"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
