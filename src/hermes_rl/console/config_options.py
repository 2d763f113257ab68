"""Configuration sections: `--SECTION.FIELD` flags or `SECTION:` in a YAML file, checked by a pydantic model.

Errors on unknown fields suggest the closest known one.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import click

from hermes_rl.console.live_display import warn
from hermes_rl.console.output import echo
from hermes_rl.core import yaml_text
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.help_layout import HelpLayout
from hermes_rl.core.secrets import SECRET_FIELDS, is_literal
from hermes_rl.core.validation import problem_text

# pydantic is imported where it is used: the help of most commands does not need it.
if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound="BaseModel")

SECTIONS = ("env", "openai", "tinker")
# Atropos' configurations and command lines name these; false is their default.
ATROPOS_FLAGS = ("slurm", "testing")
TRACE = "Send OpenTelemetry traces to this URL, such as http://localhost:4318 or env:NAME."
OWN_SETTINGS = "Settings of this environment"
_ALL_SETTINGS = "hermes_rl.all_settings"
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


class SettingOption(click.Option):
    """A field of a section. `--help` shows it if it is used often, `--help-all` under its heading."""

    def __init__(self, declarations: Sequence[str], *, heading: str, common: bool, metavar: str, help: str) -> None:  # noqa: A002
        super().__init__(declarations, metavar=metavar, help=help)
        self.heading = heading
        self.common = common


class SettingsCommand(click.Command):
    """A command with so many settings that `--help` shows those used often, and `--help-all` all of them."""

    def __init__(self, name: str, *, params: list[click.Parameter], **attributes: Any) -> None:
        params = [*params, help_all_option()]
        super().__init__(name, params=params, context_settings={"max_content_width": 110}, **attributes)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parameters = self.get_params(ctx)
        settings = [one for one in parameters if isinstance(one, SettingOption)]
        shown = settings if ctx.meta.get(_ALL_SETTINGS) else [one for one in settings if one.common]
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for one in [one for one in parameters if one not in settings] + shown:
            heading = one.heading if isinstance(one, SettingOption) else "Options"
            record = one.get_help_record(ctx)
            if record is not None:
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        if len(shown) < len(settings):
            formatter.write(f"\n{len(settings) - len(shown)} more settings: {ctx.command_path} --help-all\n")


def help_all_option() -> click.Option:
    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Show all settings."
    )


def _show_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL_SETTINGS] = True
        echo(ctx.get_help())
        ctx.exit()


class SettingsGroup(click.Group, SettingsCommand):
    """The same with subcommands."""


def section_options(
    section: str, default: "BaseModel", flags: Mapping[str, Sequence[str]] | None = None
) -> list[click.Parameter]:
    """An option `--SECTION.FIELD` for each field of a model; `flags` are further flags of a field in this command."""
    model = type(default)
    layout: HelpLayout = getattr(model, "help_layout", HelpLayout({}, ()))
    heading_of = {name: heading for heading, names in layout.headings.items() for name in names}
    further = {**layout.flags, **(flags or {})}
    own = [name for name in model.model_fields if name not in heading_of]
    return [
        SettingOption(
            [*further.get(name, ()), f"--{section}.{name}", f"{section}__{name}"],
            heading=heading_of.get(name, OWN_SETTINGS),
            common=name in layout.common or name in own,
            metavar=_metavar(model.model_fields[name].annotation),
            help=_help(
                model.model_fields[name].description or "", getattr(default, name, None), secret=name == "api_key"
            ),
        )
        for name in (*own, *(name for name in heading_of if name in model.model_fields))
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
        return problem_text(problem)
    got = "" if set(SECRET_FIELDS) & set(problem["loc"]) else f", got {problem['input']!r}"
    return f"{prefix}{field}: {problem_text(problem)}{got}"


def _help(description: str, value: Any, *, secret: bool) -> str:
    shown = "" if value is None or secret else f" [{value}]"
    return description + shown


def _metavar(annotation: Any) -> str:
    """The values that an option takes, as its help shows them."""
    if get_origin(annotation) is Annotated:
        return _metavar(get_args(annotation)[0])
    kinds = [kind for kind in _kinds(annotation) if kind is not NoneType]
    return "|".join(dict.fromkeys(_metavar(kind) if kind is not annotation else _values(kind) for kind in kinds))


def _values(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    if (get_origin(kind) or kind) in (list, tuple):
        return "A,B,…"
    return {bool: "true|false", int: "N", float: "NUMBER", str: "TEXT"}.get(kind, "YAML")
