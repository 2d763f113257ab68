"""Configuration sections: `--SECTION.FIELD` flags or `SECTION:` in a YAML file, checked by a pydantic model.

Errors on unknown fields suggest the closest known one.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

import click

from hermes_rl.console.live_display import warn
from hermes_rl.core import yaml_text
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import SECRET_FIELDS, is_literal

# pydantic is imported where it is used: the help of most commands does not need it.
if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound="BaseModel")

SECTIONS = ("env", "openai", "tinker")
# Atropos' configurations and command lines name these; false is their default.
ATROPOS_FLAGS = ("slurm", "testing")
TRACE = "Send OpenTelemetry traces to this URL, such as http://localhost:4318 or env:NAME."
PART = "With --config RUN.yaml: read the settings of this component of the run."


@dataclass(frozen=True, slots=True)
class ConfigSections:
    """Values by section; `source` names their file in errors."""

    values: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


def config_option(help_text: str) -> click.Option:
    return click.Option(["--config", "config_file"], type=click.Path(path_type=Path), help=help_text)


def trace_option() -> click.Option:
    return click.Option(["--trace"], metavar="URL", help=TRACE)


def atropos_options() -> list[click.Parameter]:
    text = "Accept only false, as in Atropos' command lines."
    return [click.Option([f"--{name}"], type=bool, default=False, hidden=True, help=text) for name in ATROPOS_FLAGS]


def section_options(section: str, default: "BaseModel") -> list[click.Parameter]:
    """An option `--SECTION.FIELD` for each field of a model."""
    return [
        click.Option(
            [f"--{section}.{name}", f"{section}__{name}"],
            metavar=_metavar(field.annotation),
            help=_help(field.description or "", getattr(default, name, None), secret=name == "api_key"),
        )
        for name, field in type(default).model_fields.items()
    ]


def section_values(flags: Mapping[str, str | None], section: str) -> dict[str, str]:
    """The flags of one section that were given, by field name."""
    prefix = f"{section}__"
    given = {name: text for name, text in flags.items() if text is not None}
    return {name.removeprefix(prefix): text for name, text in given.items() if name.startswith(prefix)}


def warn_about_literal_secrets(flags: Mapping[str, str | None]) -> None:
    """Warn of flags that hold a secret itself. One in a file or in Python code is not in the process list."""
    for flag, text in flags.items():
        section, _, name = flag.partition("__")
        if text and name in SECRET_FIELDS and is_literal(text):
            warn(
                f"--{section}.{name} holds a literal secret, which other users of this machine can see in the process "
                "list; use env:NAME or file:PATH"
            )


def resolve_section(default: Model, section: str, config: ConfigSections, flags: Mapping[str, str]) -> Model:
    """Merge one section with flags, for commands without an environment."""
    values = check_fields(config.values.get(section) or {}, type(default), f"{config.source}, section {section}")
    return merge_fields(default, values | parse_flags(type(default), flags), section)


def read_sections(file: Path | None) -> ConfigSections:
    """The sections of the file given with --config, if any."""
    if file is None:
        return ConfigSections()
    try:
        values = yaml_text.loads(file.read_bytes()) or {}
    except OSError as error:
        raise ConfigError(f"cannot read --config {file}: {error.strerror}") from None
    except yaml_text.BadYamlError as error:
        raise ConfigError(f"--config {file} is not valid YAML: {error}") from None
    if isinstance(values, dict):
        refuse_atropos_endpoints(**{name: bool(values.pop(name, False)) for name in ATROPOS_FLAGS})
    if not isinstance(values, dict) or (unknown := set(values) - set(SECTIONS)):
        found = sorted(map(str, unknown)) if isinstance(values, dict) else type(values).__name__
        raise ConfigError(f"--config {file} may only have the sections {', '.join(SECTIONS)}, found {found}")
    return ConfigSections(values, str(file))


def refuse_atropos_endpoints(*, slurm: bool, testing: bool) -> None:
    """With slurm or testing, Atropos chooses endpoints that a command of hermes-rl would not use."""
    if slurm:
        raise ConfigError(
            "slurm: hermes-rl does not read SLURM_JOB_NODELIST; list the inference servers in the openai section, or "
            "one per line in a file for --env.engines_file"
        )
    if testing:
        raise ConfigError("testing: there is no mock model; `hermes-rl validate ENV` runs scripted agents without one")


def parse_flag(annotation: Any, text: str) -> Any:
    """Parse a flag: strings as they are, `a,b` or `[a, b]` for lists, YAML for everything else."""
    kinds = _kinds(annotation)
    if NoneType in kinds and text.lower() in ("none", "null", ""):
        return None
    if str in kinds:
        return text
    if any((get_origin(kind) or kind) is list for kind in kinds) and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return yaml_text.loads(text)
    except yaml_text.BadYamlError:
        return text


def parse_flags(model: "type[BaseModel]", flags: Mapping[str, str]) -> dict[str, Any]:
    return {name: parse_flag(model.model_fields[name].annotation, text) for name, text in flags.items()}


def check_fields(values: Mapping[str, Any], model: "type[BaseModel]", where: str) -> dict[str, Any]:
    unknown = [name for name in values if name not in model.model_fields]
    if unknown:
        raise unknown_fields(unknown, model, where, "the same command with --help")
    return dict(values)


def unknown_fields(names: Sequence[str], model: "type[BaseModel]", where: str, listing: str) -> ConfigError:
    """An error of three lines: the names, known fields with similar names, and what lists all fields."""
    found = {name: difflib.get_close_matches(name, model.model_fields, n=2, cutoff=0.7) for name in names}
    similar = "; ".join(f"{name} → {' or '.join(fields)}" for name, fields in found.items() if fields)
    return ConfigError(
        f"{where}: unknown field{'s' * (len(names) > 1)} {', '.join(names)}\n"
        f"{f'did you mean: {similar}' if similar else 'no field has a similar name'}\n"
        f"all fields: {listing}"
    )


def merge_fields(base: Model, over: Mapping[str, Any], section: str) -> Model:
    from pydantic import ValidationError

    try:
        return type(base).model_validate(base.model_dump(exclude_unset=True) | dict(over))
    except ValidationError as error:
        raise ConfigError(describe_problems(error, f"--{section}.")) from None


def describe_problems(error: "ValidationError", prefix: str = "") -> str:
    """Each problem as field, message and value; values of secrets are never shown."""
    return "; ".join(_problem(prefix, problem) for problem in error.errors())


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _problem(prefix: str, problem: Any) -> str:
    field = ".".join(map(str, problem["loc"]))
    if not field:
        return str(problem["msg"])
    got = "" if set(SECRET_FIELDS) & set(problem["loc"]) else f", got {problem['input']!r}"
    return f"{prefix}{field}: {problem['msg']}{got}"


def _help(description: str, value: Any, *, secret: bool) -> str:
    shown = "" if value is None or secret else f" [{value}]"
    return description + shown


def _metavar(annotation: Any) -> str:
    return str(getattr(annotation, "__name__", annotation)).replace("typing.", "").upper().split(".")[-1]
