"""Every field of every section, and the presets, from the models that check them."""

import enum

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hermes_rl.core.config_schema import describe_field
from hermes_rl.orchestration.presets.preset import SECTIONS, SectionValues, load_preset

from .markdown import bars, prose, table

PRESETS = ("laptop", "self-hosted", "tinker")
SETTINGS = """# Settings

Every field of every section, with its allowed values and its default. Generated from the models that validate them. The
command line overrides the file, and the file overrides the environment's `config_init`. A run also has a
[preset](presets.md) ([where the values come from](../runs.md#where-the-values-come-from))."""
PRESETS_INTRODUCTION = """# Presets

The values that `--preset` sets for a run. A locked field cannot be edited. An override takes precedence over the
environment's value; a default does not. See [configuring a run](../runs.md#presets) to write your own."""
SECTION_TITLES = {
    "env": "The environment",
    "openai": "The endpoint",
    "tinker": "The trainer",
    "engine": "The engine",
}
SECTION_NOTES = {
    "env": "Flags `--env.FIELD` of `process`, `evaluate`, `serve`, `validate` and others; section `env` of a file for "
    "`--config`. An environment may have its own fields: `hermes-rl env show NAME` lists them.",
    "openai": "Flags `--openai.FIELD`; section `openai`, a list of them for several endpoints.",
    "tinker": "Flags `--tinker.FIELD` of `hermes-rl trainer`; section `tinker`.",
    "engine": "For runs that start their own engine; `--set engine.FIELD=VALUE` of `hermes-rl train`.",
}


def settings_page() -> str:
    parts = [SETTINGS]
    for section, model in SECTIONS.items():
        parts += [f"## {SECTION_TITLES[section]}: `{section}`", SECTION_NOTES[section]]
        for owner, fields in _fields_by_owner(model).items():
            parts.append(prose(" ".join((owner.__doc__ or "").split())))
            rows = [
                (
                    f"`{section}.{name}`",
                    prose(field.description or ""),
                    prose(describe_field(name, field).allowed),
                    _value(field),
                )
                for name, field in fields.items()
            ]
            parts.append(table(("field", "what it is", "takes", "default"), rows))
    return "\n\n".join(filter(None, parts)) + "\n"


def _fields_by_owner(model: type[BaseModel]) -> dict[type[BaseModel], dict[str, FieldInfo]]:
    """The fields by the class that brought them, the oldest first."""
    owners = [one for one in reversed(model.__mro__) if issubclass(one, BaseModel) and one is not BaseModel]
    found: dict[type[BaseModel], dict[str, FieldInfo]] = {owner: {} for owner in owners}
    for name, field in model.model_fields.items():
        owner = next(one for one in owners if name in one.model_fields)
        found[owner][name] = field
    return {owner: fields for owner, fields in found.items() if fields}


def _value(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True, validated_data={})
    value = value.value if isinstance(value, enum.Enum) else value
    return "" if value is None or value in ("", [], {}, ()) else f"`{bars(str(value))}`"


def presets_page() -> str:
    parts = [PRESETS_INTRODUCTION]
    for name in PRESETS:
        preset = load_preset(name)
        parts += [f"## `{name}`", prose(preset.description)]
        needs = [f"key `{key}`" for key in preset.needs.keys]
        needs += [f"field `{field}`: a {kind}" for field, kind in preset.needs.fields.items()]
        parts.append(f"Needs: {', '.join(needs) or 'nothing'}. Starts an engine: {'yes' if preset.engine else 'no'}.")
        layers: dict[str, SectionValues] = {
            "locked": preset.locked, "override": preset.overrides, "default": preset.defaults,
        }  # fmt: skip
        rows = [
            (f"`{place}`", f"`{value}`", layer)
            for layer, values in layers.items()
            for place, value in values.by_path().items()
        ]
        parts.append(table(("field", "value", "how"), rows))
    return "\n\n".join(parts) + "\n"


def anchor(section: str) -> str:
    return f"{SECTION_TITLES[section]} {section}".lower().replace(" ", "-")
