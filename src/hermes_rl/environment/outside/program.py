"""The program that is the agent, as one rollout starts it: command and variables with their marks filled in.

Pure. A mark in a command stands for one word, whatever is in it; braces that are no mark stay as they are.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from hermes_rl.agents.agent import PLACE
from hermes_rl.agents.registry import agent_named
from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.errors import AuthorError, ConfigError
from hermes_rl.messages import Message, content_text
from hermes_rl.sandbox.spec import SandboxSpec

READY_MADE = "agent:"
# Linux refuses a single argument, or variable, of 128 KiB.
LONGEST_WORD = 100_000
# What the official clients read; Anthropic's adds the /v1 itself.
USUAL_VARIABLES = {
    "OPENAI_BASE_URL": "{base_url}",
    "OPENAI_API_BASE": "{base_url}",
    "OPENAI_API_KEY": "{key}",
    "ANTHROPIC_BASE_URL": "{origin}",
    "ANTHROPIC_API_KEY": "{key}",
}


@dataclass(frozen=True, slots=True)
class Marks:
    """What the marks stand for in one rollout. `key` opens this rollout's door of the gateway, while it lasts.

    `context_tokens` is empty where nobody knows the model's context.
    """

    origin: str
    base_url: str
    key: str
    model: str
    context_tokens: str
    prompt: str
    prompt_file: str
    messages_file: str


# Not what a shell means by braces after a dollar.
_MARK = re.compile("|".join(rf"(?<!\$)\{{{one.name}\}}" for one in fields(Marks)))


@dataclass(frozen=True, slots=True)
class Program:
    """What agent_command names. `folder` is a ready-made agent's, which its sandboxes see at `place`."""

    command: str | Sequence[str]
    env: Mapping[str, str]
    folder: Path | None = None

    @classmethod
    def of(cls, config: HermesAgentEnvConfig) -> "Program":
        """ConfigError for an agent that nobody knows, or that is not installed here."""
        command = config.agent_command or ""
        if not isinstance(command, str) or not command.startswith(READY_MADE):
            return cls(command, {**USUAL_VARIABLES, **config.agent_env})
        ready = agent_named(command.removeprefix(READY_MADE))
        return cls(ready.command, {**USUAL_VARIABLES, **ready.env, **config.agent_env}, ready.folder)

    def command_with(self, marks: Marks) -> str:
        """The shell command: a string as it is, words each as one word."""
        if isinstance(self.command, str):
            return _MARK.sub(lambda found: shlex.quote(_meant(found, marks)), self.command)
        return shlex.join(_MARK.sub(lambda found: _meant(found, marks), word) for word in self.command)

    def variables_with(self, marks: Marks) -> dict[str, str]:
        return {name: _MARK.sub(lambda found: _meant(found, marks), text) for name, text in self.env.items()}


def prompt_of(messages: Iterable[Message]) -> str:
    """The prompt as a text: what the environment says as the system, and the last thing the user says."""
    spoken = [message for message in messages if message.get("role") in ("system", "user")]
    last = [message for message in spoken if message["role"] == "user"][-1:]
    said = [message for message in spoken if message["role"] == "system"] + last
    return "\n\n".join(text for message in said if (text := content_text(message.get("content"))))


def with_agent(spec: SandboxSpec, config: HermesAgentEnvConfig) -> SandboxSpec:
    """The machine of an item with what the agent's program needs on it; the item's own where our loop is the agent."""
    if not config.agent_command:
        return spec
    files = {inside: Path(local).expanduser() for inside, local in config.agent_files.items()}
    for inside, local in files.items():
        if not local.is_file():
            raise ConfigError(f"agent_files: {inside} is to be a copy of {local}, which is not a file here")
    folder = Program.of(config).folder
    return replace(
        spec,
        files={**spec.files, **files},
        setup="\n".join(part for part in (spec.setup, config.agent_setup) if part) or None,
        folders={**spec.folders, **({} if folder is None else {PLACE: folder})},
    )


def _meant(found: re.Match[str], marks: Marks) -> str:
    name = found[0][1:-1]
    value: str = getattr(marks, name)
    if len(value) > LONGEST_WORD:
        raise AuthorError(
            "prompt",
            f"{{{name}}} has {len(value)} characters, too many for an argument: let agent_command read {{{name}_file}}",
        )
    return value
