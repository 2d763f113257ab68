"""The ready-made agents by name."""

from collections.abc import Mapping
from types import MappingProxyType

from hermes_rl.agents import codex, hermes_agent, sdk
from hermes_rl.agents.agent import Agent, AgentProgram
from hermes_rl.agents.installing import installed
from hermes_rl.errors import ConfigError

AGENTS: Mapping[str, Agent] = MappingProxyType(
    {agent.name: agent for agent in (hermes_agent.AGENT, codex.AGENT, sdk.AGENT)}
)


def agent_named(name: str) -> AgentProgram:
    """How to start an agent that is installed here; ConfigError for one that is not, or that nobody knows."""
    agent = known(name)
    folder = installed(agent)
    if folder is None:
        raise ConfigError(f"the agent {name} is not installed here: run `hermes-rl agent install {name}` once")
    return AgentProgram(agent.name, agent.command, agent.env, folder)


def known(name: str) -> Agent:
    try:
        return AGENTS[name]
    except KeyError:
        raise ConfigError(f"there is no ready-made agent {name!r}; there are {', '.join(AGENTS)}") from None
