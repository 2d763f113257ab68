"""Resolve a field name to its key in a draft and, if the field belongs to one environment, that environment.

Always true: a field is found by its plain name when that is unambiguous, and by `SECTION.FIELD`; the error for an
unknown name suggests the closest ones.
"""

import difflib
from dataclasses import dataclass, replace
from typing import Any

from hermes_rl.core.config_schema import describe_field
from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration.checks import RUN_RANGES
from hermes_rl.orchestration.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.orchestration.configuration.introspect import DescribedField
from hermes_rl.orchestration.configuration.precedence import Layers, model_default
from hermes_rl.orchestration.configuration.shared_fields import (
    LINKED_FIELDS,
    PER_ENVIRONMENT,
    RUN_OWNED_FIELDS,
    key_of,
    paths_of,
    plain_name,
)
from hermes_rl.orchestration.presets.preset import SECTIONS, load_preset, preset_names, user_presets_dir

# Fields of an environment's entry in the run, not of its configuration.
ENTRY_FIELDS = {
    "weight": DescribedField(
        *("weight", "float", ("number",), False, "a number above 0 to 1e+09"),
        description="Its share of each batch, relative to the other environments.",
        default=1.0,
        value=1.0,
    ),
    "evaluation_only": DescribedField(
        *("evaluation_only", "bool", ("boolean",), False, "true or false"),
        description="Only evaluate the policy on it during training, without training groups.",
        default=False,
        value=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Target:
    """`environment` is None for a field of the whole run, or of all environments."""

    key: str
    environment: ChosenEnvironment | None = None


def find_target(draft: Draft, name: str) -> Target:
    """ConfigError for an unknown or ambiguous name."""
    section, _, field = name.partition(".")
    if section in SECTIONS and field:
        return Target(_known_key(draft, name, name))
    # Longest first: names of environments may contain dots.
    for chosen in sorted(draft.environments, key=lambda chosen: -len(chosen.name)):
        if name.startswith(f"{chosen.name}."):
            return _environment_target(chosen, name.removeprefix(f"{chosen.name}."))
    if name in LINKED_FIELDS:
        return Target(name)
    if len(draft.environments) == 1 and name in ENTRY_FIELDS and name not in draft.environments[0].description.env:
        return Target(name, draft.environments[0])
    found = {key_of(path) for path in _field_paths(draft, ("env", "tinker")) if path.partition(".")[2] == name}
    found = found or {key_of(path) for path in _field_paths(draft) if path.partition(".")[2] == name}
    if found <= RUN_OWNED_FIELDS.keys():
        found = set(sorted(found)[:1])
    if len(found) > 1:
        raise ConfigError(f"{name} is a field of several parts; use one of: {', '.join(sorted(found))}")
    return Target(found.pop()) if found else Target(_known_key(draft, f"env.{name}", name))


def draft_field(layers: Layers, target: Target) -> DescribedField:
    """The field's type, allowed values and value in the draft."""
    draft = layers.draft
    if target.environment is not None and target.key in ENTRY_FIELDS:
        return replace(ENTRY_FIELDS[target.key], value=getattr(target.environment, target.key))
    path = paths_of(target.key)[0]
    section, _, name = path.partition(".")
    if section in {"env", "openai"}:
        holders = [target.environment] if target.environment else list(draft.environments)
        fields = (getattr(holder.description, section).get(name) for holder in holders)
        found: DescribedField = next(field for field in fields if field is not None)
    else:
        found = _describe_model_field(section, name, layers)
    if target.key in LINKED_FIELDS and target.environment is None:
        value = layers.linked_value(target.key)
        found = replace(found, value=value, default=_value_without_edit(layers, target.key))
    if target.key in RUN_RANGES:
        low, high = RUN_RANGES[target.key]
        found = replace(found, allowed=f"a whole number from {low} to {high}")
    return replace(found, name=plain_name(target.key))


def check_editable(draft: Draft, target: Target, name: str) -> None:
    """ConfigError for a field that the preset locks or the run sets."""
    if target.environment is not None and target.key in ENTRY_FIELDS:
        return
    layers = Layers.from_draft(draft)
    for path in paths_of(target.key):
        if path in RUN_OWNED_FIELDS:
            owned = RUN_OWNED_FIELDS[path]
            raise ConfigError(f"{name} is locked at {owned.value!r}: {owned.why}")
    if target.key in layers.locked:
        raise ConfigError(
            f"{name} is locked at {layers.locked[target.key]!r} by the preset {draft.preset}; set the field 'preset' "
            f"to one without this lock ({', '.join(_presets_without_lock(target.key)) or 'none'}), or add your own "
            f"preset as a file in {user_presets_dir()}"
        )
    if target.key.startswith("engine.") and not layers.runs_engine():
        raise ConfigError(
            f"{name}: a run with the preset {draft.preset} does not start an engine; set the field 'preset' to "
            "self-hosted or laptop"
        )
    field = draft_field(layers, target)
    if not field.readable:
        raise ConfigError(f"{name} can be set only in the environment's file: {field.value}")
    if target.environment and target.key in LINKED_FIELDS and target.key not in PER_ENVIRONMENT:
        raise ConfigError(f"{name}: {target.key} applies to the whole run; edit {target.key}")


def field_names(draft: Draft) -> list[str]:
    """All field names, editable or locked."""
    return ["preset", "environments", *map(plain_name, draft_keys(draft))]


def draft_keys(draft: Draft) -> list[str]:
    return list(dict.fromkeys(key_of(path) for path in _field_paths(draft)))


def _environment_target(chosen: ChosenEnvironment, field: str) -> Target:
    if field in ENTRY_FIELDS:
        return Target(field, chosen)
    section, _, name = field.partition(".")
    if section not in {"env", "openai"} or not name:
        section, name = "env", field
    if name not in getattr(chosen.description, section):
        near = _suggestions(field, [*ENTRY_FIELDS, *chosen.description.env])
        raise ConfigError(f"the environment {chosen.name} has no field {field!r}{near}")
    return Target(key_of(f"{section}.{name}"), chosen)


def _known_key(draft: Draft, path: str, name: str) -> str:
    if path in _field_paths(draft):
        return key_of(path)
    raise ConfigError(f"no field is named {name!r}{_suggestions(name, field_names(draft))}")


def _suggestions(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else "; the current configuration lists all fields"


def _field_paths(draft: Draft, sections: tuple[str, ...] = tuple(SECTIONS)) -> list[str]:
    """`SECTION.FIELD` of all environments and parts, in display order."""
    paths: dict[str, None] = {}
    for section in sections:
        if section in {"env", "openai"}:
            for chosen in draft.environments:
                paths |= dict.fromkeys(f"{section}.{name}" for name in getattr(chosen.description, section))
        else:
            paths |= dict.fromkeys(f"{section}.{name}" for name in SECTIONS[section].model_fields)
    return list(paths)


def _presets_without_lock(key: str) -> list[str]:
    found = []
    for name in preset_names():
        try:
            preset = load_preset(name)
        except ConfigError:
            continue
        if key not in {key_of(path) for path in preset.locked.by_path()}:
            found.append(name)
    return found


def _describe_model_field(section: str, name: str, layers: Layers) -> DescribedField:
    facts = describe_field(name, SECTIONS[section].model_fields[name])
    default = layers.overrides.get(
        f"{section}.{name}", layers.defaults.get(f"{section}.{name}", _default(section, name))
    )
    return DescribedField(
        *(name, facts.type, facts.kinds, facts.nullable, facts.allowed, facts.description),
        default=default,
        value=layers.decided().get(f"{section}.{name}", default),
    )


def _default(section: str, name: str) -> Any:
    field = SECTIONS[section].model_fields[name]
    return None if field.is_required() else model_default(f"{section}.{name}")


def _value_without_edit(layers: Layers, name: str) -> Any:
    others = {key: value for key, value in layers.draft.changes.items() if key != name}
    return replace(layers, draft=replace(layers.draft, changes=others)).linked_value(name)
