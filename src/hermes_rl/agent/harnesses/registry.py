"""Finds an agent harness by name: built-in, installed (entry points), or `module:AGENT`."""

from hermes_rl.agent.harnesses.harness import Agent, AgentProgram
from hermes_rl.agent.harnesses.installer import installed_folder
from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import AGENTS


def load_agent(name: str) -> AgentProgram:
    """How to start an agent; ConfigError if it is unknown, or needs packages that are not installed."""
    agent = get_agent(name)
    folder = installed_folder(agent)
    if folder is None and agent.pip:
        raise ConfigError(f"the agent {name} is not installed here: run `hermes-rl agent install {name}` once")
    return AgentProgram(agent.name, agent.command, agent.env, folder, agent.takes_arguments)


def get_agent(name: str) -> Agent:
    agent = AGENTS.resolve(name)
    if not isinstance(agent, Agent):
        raise ConfigError(f"{name} is not an Agent")
    return agent


def listed_agents() -> list[Agent]:
    return [get_agent(name) for name in AGENTS.names()]
