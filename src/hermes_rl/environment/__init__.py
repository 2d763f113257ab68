"""Environments: the base class, its configuration, and the modes that run it."""

from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.config import BaseEnvConfig, EvalHandling, HermesAgentEnvConfig

__all__ = ["BaseEnvConfig", "EvalHandling", "HermesAgentBaseEnv", "HermesAgentEnvConfig"]
