"""Train, evaluate and generate data for LLM agents that use tools.

The public names are loaded when first used: importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hermes_rl.version import __version__

if TYPE_CHECKING:
    from hermes_rl.agent.loop import HermesAgentLoop
    from hermes_rl.agent.result import AgentResult, ToolError
    from hermes_rl.core.errors import (
        ConfigError,
        EndpointError,
        Failure,
        FailureSource,
        HermesRLError,
        InfrastructureError,
        JudgeError,
        SandboxError,
        ToolHostError,
        VerifierError,
    )
    from hermes_rl.core.messages import Message, ToolCall
    from hermes_rl.core.trajectory import Group, Reward, Rollout, Sequence, StepReward, StopReason, TurnState
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.scripted_policy import Step
    from hermes_rl.environment.seats import HermesMultiAgentEnv
    from hermes_rl.environment.simulated_user import ScriptedUser, SimulatedUser
    from hermes_rl.environment.text_game import TextGameEnv
    from hermes_rl.inference.config import APIServerConfig
    from hermes_rl.inference.server_manager import ServerManager
    from hermes_rl.interop.records import load_records
    from hermes_rl.rewards.cases import Case, run_cases
    from hermes_rl.rewards.composition import weighted
    from hermes_rl.rewards.cpu_reward import cpu_reward
    from hermes_rl.rewards.judge import Judge, Judgement
    from hermes_rl.rewards.tool_context import ToolContext
    from hermes_rl.rewards.verification import Verdict
    from hermes_rl.rollout.config import HermesAgentEnvConfig
    from hermes_rl.rollout.seats import EpisodeContext, SeatAnswer
    from hermes_rl.sandbox.spec import Limits, SandboxSpec
    from hermes_rl.tools.session import ToolSession
    from hermes_rl.tools.tool import ToolUseError, tool

__all__ = [
    "APIServerConfig",
    "AgentResult",
    "Case",
    "ConfigError",
    "EndpointError",
    "EpisodeContext",
    "Failure",
    "FailureSource",
    "Group",
    "HermesAgentBaseEnv",
    "HermesAgentEnvConfig",
    "HermesAgentLoop",
    "HermesMultiAgentEnv",
    "HermesRLError",
    "InfrastructureError",
    "Judge",
    "JudgeError",
    "Judgement",
    "Limits",
    "Message",
    "Reward",
    "Rollout",
    "SandboxError",
    "SandboxSpec",
    "ScriptedUser",
    "SeatAnswer",
    "Sequence",
    "ServerManager",
    "SimulatedUser",
    "Step",
    "StepReward",
    "StopReason",
    "TextGameEnv",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolHostError",
    "ToolSession",
    "ToolUseError",
    "TurnState",
    "Verdict",
    "VerifierError",
    "__version__",
    "cpu_reward",
    "load_records",
    "run_cases",
    "tool",
    "weighted",
]

_HOMES = {
    "agent.loop": ("HermesAgentLoop",),
    "agent.result": ("AgentResult", "ToolError"),
    "core.errors": (
        "ConfigError",
        "EndpointError",
        "Failure",
        "FailureSource",
        "HermesRLError",
        "InfrastructureError",
        "JudgeError",
        "SandboxError",
        "ToolHostError",
        "VerifierError",
    ),
    "core.messages": ("Message", "ToolCall"),
    "core.trajectory": ("Group", "Reward", "Rollout", "Sequence", "StepReward", "StopReason", "TurnState"),
    "environment.base": ("HermesAgentBaseEnv",),
    "environment.scripted_policy": ("Step",),
    "environment.seats": ("HermesMultiAgentEnv",),
    "environment.simulated_user": ("ScriptedUser", "SimulatedUser"),
    "environment.text_game": ("TextGameEnv",),
    "inference.config": ("APIServerConfig",),
    "inference.server_manager": ("ServerManager",),
    "interop.records": ("load_records",),
    "rewards.cases": ("Case", "run_cases"),
    "rewards.composition": ("weighted",),
    "rewards.cpu_reward": ("cpu_reward",),
    "rewards.judge": ("Judge", "Judgement"),
    "rewards.tool_context": ("ToolContext",),
    "rewards.verification": ("Verdict",),
    "rollout.config": ("HermesAgentEnvConfig",),
    "rollout.seats": ("EpisodeContext", "SeatAnswer"),
    "sandbox.spec": ("Limits", "SandboxSpec"),
    "tools.session": ("ToolSession",),
    "tools.tool": ("ToolUseError", "tool"),
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
