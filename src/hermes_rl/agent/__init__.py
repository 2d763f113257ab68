"""The agent: the loop every rollout spends its life in, its limits, and the result it hands to the reward."""

from hermes_rl.agent.compaction import Compaction, DropOldResults
from hermes_rl.agent.limits import AgentLimits, ResultBudget
from hermes_rl.agent.loop import ChatServer, HermesAgentLoop
from hermes_rl.agent.result import AgentResult, ProgramEnd, ToolError

__all__ = [
    "AgentLimits",
    "AgentResult",
    "ChatServer",
    "Compaction",
    "DropOldResults",
    "HermesAgentLoop",
    "ProgramEnd",
    "ResultBudget",
    "ToolError",
]
