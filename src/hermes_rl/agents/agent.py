"""A ready-made agent: which packages it is, and how it is started in a sandbox so that it talks to the gateway.

A value. Its packages lie in one folder of this machine, made once and named after all that decides what is in it; a
sandbox sees that folder as /agent and cannot write to it. The agent is as its authors made it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path

PLACE = "/agent"
"""Where a sandbox sees an agent's folder: a name that no image has, so it fits beside every image."""


@dataclass(frozen=True)
class Agent:
    """`pip` is exact: every package of its Python environment, with a version.

    `command` is a bash script that runs in the workspace. `env` may hold the marks of agent_command. `python` bounds
    the version of the interpreter: from the first, below the second.
    """

    name: str
    version: str
    about: str
    licence: str
    dialect: str
    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    pip: tuple[str, ...] = ()
    python: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (4, 0))

    @cached_property
    def folder_name(self) -> str:
        told = hashlib.sha256("".join(f"{package}\n" for package in self.pip).encode()).hexdigest()
        return f"{self.name}-{self.version}-{told[:12]}"


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """An installed agent as an environment starts it. `folder` is to be seen at /agent, read-only."""

    name: str
    command: str
    env: Mapping[str, str]
    folder: Path


def pins(name: str) -> tuple[str, ...]:
    """The packages of a list in pins/, one a line."""
    text = resources.files("hermes_rl.agents").joinpath("pins", f"{name}.txt").read_text()
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))
