"""Environments: the base class authors subclass, its configuration, and the modes that run one."""

from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.config import BaseEnvConfig, EvalHandling, HermesAgentEnvConfig
from hermes_rl.environment.steps import Step

__all__ = ["BaseEnvConfig", "EvalHandling", "HermesAgentBaseEnv", "HermesAgentEnvConfig", "Step"]
