"""Extensions: one rule for every part that a setting names.

A name is a built-in part, an installed entry point of the group `hermes_rl.<kind>`, or a reference: `module:attribute`,
or `file.py:attribute`. Always true: built-in parts are found by the same rule, and nothing is imported before a setting
names it.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hermes_rl.core.errors import ConfigError

BUILT_IN = "built in"


@dataclass(frozen=True, slots=True)
class Extension:
    """One part that was found. `origin` is `built in`, or the distribution that brings it with its version."""

    kind: str
    name: str
    reference: str
    origin: str


@dataclass(frozen=True, slots=True)
class ExtensionKind:
    """Parts of one kind. `builtin` has their references by name; `extras` the extra that a built-in part needs."""

    name: str
    label: str
    builtin: dict[str, str]
    extras: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    special: tuple[str, ...] = ()
    """Names with a special meaning in this setting, for messages."""

    @property
    def group(self) -> str:
        return f"hermes_rl.{self.name}"

    def resolve(self, name: str) -> Any:
        """The object behind a name; ConfigError when nothing has that name or it cannot be loaded."""
        name = self.aliases.get(name, name)
        reference = self.find(name)
        try:
            return load(reference)
        except ModuleNotFoundError as error:
            if name in self.extras:
                raise ConfigError(
                    f"the {self.label} {name} needs the package {error.name}: "
                    f"pip install 'hermes-rl[{self.extras[name]}]'"
                ) from error
            raise ConfigError(_cannot_load(self.label, name, error)) from error
        except ConfigError as error:
            raise ConfigError(f"{self.label} {name!r}: {error}") from error
        except Exception as error:
            raise ConfigError(_cannot_load(self.label, name, error)) from error

    def check(self, name: str) -> str:
        """For a setting: ValueError for a name that nothing has. A file gets its absolute path; nothing is imported."""
        try:
            self.find(self.aliases.get(name, name))
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return absolute_reference(name)

    def names(self) -> list[str]:
        """Built-in and installed names, with aliases."""
        return sorted({*self.builtin, *self.aliases, *(entry.name for entry in entry_points(group=self.group))})

    def found(self) -> Iterator[Extension]:
        for name, reference in self.builtin.items():
            yield Extension(self.name, name, reference, BUILT_IN)
        for entry in entry_points(group=self.group):
            yield Extension(self.name, entry.name, entry.value, _distribution(entry))

    def find(self, name: str) -> str:
        """The reference behind a name, not loaded; ConfigError names what there is."""
        if name in self.builtin:
            return self.builtin[name]
        for entry in entry_points(group=self.group, name=name):
            return entry.value
        if ":" in name:
            return name
        known = ", ".join((*self.special, *self.names()))
        raise ConfigError(f"no {self.label} is named {name!r}: choose one of {known}, or module:Name")


def absolute_reference(name: str) -> str:
    """`file.py:Name` with the file's absolute path, so that processes in other folders find it; others unchanged."""
    file, _, attribute = name.rpartition(":")
    return f"{Path(file).expanduser().absolute()}:{attribute}" if file.endswith(".py") else name


def load(reference: str) -> Any:
    """What `module:attribute` or `path/file.py:attribute` names; the working directory is searched for modules too."""
    place, _, attribute = reference.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"{place} has no {attribute!r}")
        value = getattr(value, part)
    return value


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if here in sys.path or error.name != name.partition(".")[0]:
            raise
    sys.path.append(here)
    return import_module(name)


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    # By path, so that two files of one name stay apart, and once, so that a class is the same class everywhere.
    name = f"hermes_rl_extension_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _cannot_load(label: str, name: str, error: Exception) -> str:
    return f"the {label} {name} cannot be loaded: {type(error).__name__}: {error}"


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"


def _below(package: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {name: f"hermes_rl.{package}.{reference}" for name, reference in parts.items()}


PARSERS = ExtensionKind(
    "parsers",
    "tool-call parser",
    _below(
        "parsers",
        {
            "deepseek_v3": "deepseek_v3:DeepSeekV3Parser",
            "deepseek_v3_1": "deepseek_v3_1:DeepSeekV31Parser",
            "glm45": "glm45:Glm45Parser",
            "glm47": "glm47:Glm47Parser",
            "hermes": "hermes:HermesParser",
            "kimi_k2": "kimi_k2:KimiK2Parser",
            "llama3_json": "llama3_json:Llama3JsonParser",
            "llama4_json": "llama4_json:Llama4JsonParser",
            "longcat": "longcat:LongcatParser",
            "mistral": "mistral:MistralParser",
            "qwen": "qwen:QwenParser",
            "qwen3_coder": "qwen3_coder:Qwen3CoderParser",
        },
    ),
    aliases={"deepseek_v31": "deepseek_v3_1"},
)
SANDBOX_BACKENDS = ExtensionKind(
    "sandbox_backends",
    "sandbox backend",
    _below(
        "sandbox.backends",
        {
            "bubblewrap": "bubblewrap:BubblewrapBackend",
            "docker": "docker:DockerBackend",
            "podman": "docker:PodmanBackend",
            "ssh": "ssh:SshBackend",
            "singularity": "singularity:SingularityBackend",
            "modal": "modal:ModalBackend",
            "daytona": "daytona:DaytonaBackend",
            "local": "local:LocalBackend",
        },
    ),
    special=("auto",),
    extras={"docker": "docker", "podman": "docker", "ssh": "ssh", "modal": "modal", "daytona": "daytona"},
)
TOOLSETS = ExtensionKind(
    "toolsets",
    "toolset",
    _below(
        "tools",
        {
            "terminal": "terminal:TERMINAL",
            "file": "files:FILE",
            "web": "web.toolset:WEB",
            "browser": "browser.toolset:BROWSER",
            "code_execution": "code_execution:CODE_EXECUTION",
            "todo": "todo:TODO",
            "vision": "vision:VISION",
        },
    ),
)
SAMPLERS = ExtensionKind(
    "samplers",
    "item sampler",
    _below(
        "rollout",
        {"in_order": "sampler:InOrder", "uniform": "sampler:Uniform", "by_difficulty": "sampler:ByDifficulty"},
    ),
)
GROUP_STRATEGIES = ExtensionKind(
    "group_strategies",
    "group strategy",
    _below("rollout", {"flat": "group_strategy:FlatGroup", "tree": "tree_group:TreeGroup"}),
)
OBJECTIVES = ExtensionKind(
    "objectives",
    "objective",
    _below(
        "training",
        {
            "importance_sampling": "objectives:ImportanceSampling",
            "ppo": "objectives:PPO",
            "cispo": "objectives:CISPO",
            "reinforce": "objectives:Reinforce",
        },
    ),
)
ADVANTAGES = ExtensionKind(
    "advantages",
    "advantage",
    _below(
        "training",
        {
            "mean": "advantages:mean",
            "mean_std": "advantages:mean_std",
            "leave_one_out": "advantages:leave_one_out",
        },
    ),
)
AGENTS = ExtensionKind(
    "agents",
    "agent",
    _below(
        "agent.harnesses",
        {
            "hermes-agent": "hermes_agent:AGENT",
            "claude-code": "claude_code:AGENT",
            "codex": "codex:AGENT",
            "gemini-cli": "gemini_cli:AGENT",
            "opencode": "opencode:AGENT",
            "openhands": "openhands:AGENT",
            "qwen-code": "qwen_code:AGENT",
            "mini-swe-agent": "mini_swe_agent:AGENT",
            "aider": "aider:AGENT",
            "acp": "acp:AGENT",
            "sdk": "sdk:AGENT",
        },
    ),
)
SINKS = ExtensionKind(
    "sinks",
    "metric sink",
    _below("sinks", {"wandb": "wandb_sink:WandbSink", "trackio": "trackio_sink:TrackioSink"}),
    extras={"wandb": "wandb", "trackio": "trackio"},
)
AUDITS = ExtensionKind(
    "audits",
    "audit",
    _below("rewards", {"signatures": "cheat_signatures:audit_signatures"}),
    special=("auto", "off"),
)
# Bundled ones are files. `hermes-rl env list` reads those, and the files of installed ones, without importing them.
ENVIRONMENTS = ExtensionKind("environments", "environment", {})
KINDS = (
    ENVIRONMENTS,
    SANDBOX_BACKENDS,
    PARSERS,
    TOOLSETS,
    SAMPLERS,
    GROUP_STRATEGIES,
    OBJECTIVES,
    ADVANTAGES,
    AGENTS,
    SINKS,
    AUDITS,
)
