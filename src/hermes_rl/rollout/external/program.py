"""An external agent's command and environment variables, with placeholders filled in for one rollout.

A placeholder in a command expands to one shell word, whatever its value. Other braces are left alone.
"""

import asyncio
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from hermes_rl.agent.harnesses.harness import MOUNT_PATH, packages_agent
from hermes_rl.agent.harnesses.installer import install, installed_folder
from hermes_rl.agent.harnesses.registry import load_agent
from hermes_rl.console.live_display import write_line
from hermes_rl.core.errors import ConfigError, EnvironmentCodeError
from hermes_rl.core.messages import Message, content_text
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.sandbox.spec import SandboxSpec

HARNESS_PREFIX = "agent:"
# Linux rejects a single argument or variable of 128 KiB.
MAX_ARGUMENT_CHARS = 100_000
# Puts the interpreter and the programs of agent_packages before those of the sandbox.
USE_PACKAGES = f"export PATH={MOUNT_PATH}/bin:$PATH;"
# Read by the official clients; Anthropic's appends /v1 itself.
CLIENT_VARIABLES = {
    "OPENAI_BASE_URL": "{base_url}",
    "OPENAI_API_BASE": "{base_url}",
    "OPENAI_API_KEY": "{key}",
    "ANTHROPIC_BASE_URL": "{origin}",
    "ANTHROPIC_API_KEY": "{key}",
    "GOOGLE_GEMINI_BASE_URL": "{origin}",
    "GEMINI_API_KEY": "{key}",
}


@dataclass(frozen=True, slots=True)
class Placeholders:
    """Placeholder values of one rollout. `key` is valid at the gateway only during this rollout.

    `context_tokens` is empty when the model's context size is unknown.
    """

    origin: str
    base_url: str
    key: str
    model: str
    context_tokens: str
    prompt: str
    prompt_file: str
    messages_file: str


# Braces after a dollar sign are shell syntax.
_PLACEHOLDER = re.compile("|".join(rf"(?<!\$)\{{{field.name}\}}" for field in fields(Placeholders)))


@dataclass(frozen=True, slots=True)
class Program:
    """The program of agent_command. `folder` has a harness or packages, and is mounted in its sandboxes.

    The command follows `script`: what a harness or the packages need.
    """

    command: str | Sequence[str]
    env: Mapping[str, str]
    folder: Path | None = None
    script: str = ""

    @classmethod
    def from_config(cls, config: HermesAgentEnvConfig) -> "Program":
        """ConfigError when agent_command names an unknown agent, or one that is not installed."""
        command, env = config.agent_command or "", {**CLIENT_VARIABLES, **config.agent_env}
        first, arguments = command.partition(" ")[::2] if isinstance(command, str) else (command[0], command[1:])
        if not first.startswith(HARNESS_PREFIX):
            return cls(command, env, *_packages(config))
        harness = load_agent(first.removeprefix(HARNESS_PREFIX))
        if config.agent_packages and harness.folder is not None:
            raise ConfigError(f"agent_packages are for a command of your own; {first} has its own packages")
        if arguments and not harness.takes_arguments:
            raise ConfigError(f"{first} takes no arguments, got {arguments!r}; it is set by agent_env")
        folder, script = _packages(config)
        env = {**CLIENT_VARIABLES, **harness.env, **config.agent_env}
        return cls(arguments, env, harness.folder or folder, f"{script} {harness.command}".lstrip(" "))

    def shell_command(self, placeholders: Placeholders) -> str:
        """The shell command: a string is used as it is, a list is quoted word by word."""

        def as_words(text: str) -> str:
            return _PLACEHOLDER.sub(lambda found: shlex.quote(_value_of(found, placeholders)), text)

        if isinstance(self.command, str):
            command = as_words(self.command)
        else:
            words = [_PLACEHOLDER.sub(lambda found: _value_of(found, placeholders), word) for word in self.command]
            command = shlex.join(words)
        return " ".join(filter(None, (as_words(self.script), command)))

    def environment_variables(self, placeholders: Placeholders) -> dict[str, str]:
        return {
            name: _PLACEHOLDER.sub(lambda found: _value_of(found, placeholders), text)
            for name, text in self.env.items()
        }


def _packages(config: HermesAgentEnvConfig) -> tuple[Path | None, str]:
    """The folder of agent_packages, and what puts them on the path."""
    if not config.agent_packages:
        return None, ""
    folder = installed_folder(packages_agent(config.agent_packages))
    if folder is None:
        raise ConfigError("agent_packages are not installed yet; open the environment, which installs them")
    return folder, USE_PACKAGES


async def install_packages(config: HermesAgentEnvConfig) -> None:
    """Install `agent_packages` on this machine, unless they are."""
    packages = packages_agent(config.agent_packages)
    if config.agent_packages and installed_folder(packages) is None:
        write_line(f"installing {', '.join(config.agent_packages)} for agent_command, once on this machine")
        await asyncio.to_thread(install, packages)


def prompt_text(messages: Iterable[Message]) -> str:
    """The prompt as one text: the system messages and the last user message."""
    prompts = [message for message in messages if message.get("role") in ("system", "user")]
    last = [message for message in prompts if message["role"] == "user"][-1:]
    chosen = [message for message in prompts if message["role"] == "system"] + last
    return "\n\n".join(text for message in chosen if (text := content_text(message.get("content"))))


def with_agent(spec: SandboxSpec, config: HermesAgentEnvConfig) -> SandboxSpec:
    """The spec plus what the external agent needs; unchanged when our loop is the agent."""
    if not config.agent_command:
        return spec
    files = {target: Path(local).expanduser() for target, local in config.agent_files.items()}
    for target, local in files.items():
        if not local.is_file():
            raise ConfigError(f"agent_files: {local}, to be copied to {target}, is not a file on this machine")
    folder = Program.from_config(config).folder
    return replace(
        spec,
        files={**spec.files, **files},
        setup="\n".join(part for part in (spec.setup, config.agent_setup) if part) or None,
        folders={**spec.folders, **({} if folder is None else {MOUNT_PATH: folder})},
    )


def _value_of(found: re.Match[str], placeholders: Placeholders) -> str:
    name = found[0][1:-1]
    value: str = getattr(placeholders, name)
    if len(value) > MAX_ARGUMENT_CHARS:
        raise EnvironmentCodeError(
            "prompt",
            f"{{{name}}} has {len(value)} characters, too many for an argument; let agent_command read {{{name}_file}}",
        )
    return value
