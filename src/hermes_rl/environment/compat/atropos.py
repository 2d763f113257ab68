"""The names of atroposlib's modules, for environments that run without atroposlib."""

from typing import Any, TypeAlias

from hermes_rl.environment.compat.base_env import BaseEnv
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.inference.endpoint import Endpoint
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.inference.token_engines import engine_for
from hermes_rl.rollout.config import EvalHandling as EvalHandlingEnum

# Our rollouts need all fields, and Atropos' are among them.
from hermes_rl.rollout.config import HermesAgentEnvConfig as BaseEnvConfig

Item: TypeAlias = Any
ScoredDataGroup: TypeAlias = dict[str, Any]
ScoredDataItem: TypeAlias = dict[str, Any]


class _WithoutTokens(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Endpoint) and engine_for(value.config.server_type) is None


class OpenAIServer(metaclass=_WithoutTokens):
    """The class of `env.server.servers[i]`, for isinstance, when the endpoint answers chats and returns no tokens."""


__all__ = [
    "APIServerConfig",
    "BaseEnv",
    "BaseEnvConfig",
    "EvalHandlingEnum",
    "Item",
    "ManagedServer",
    "OpenAIServer",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ServerBaseline",
    "ServerManager",
]
