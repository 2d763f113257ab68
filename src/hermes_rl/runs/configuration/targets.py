"""From the name of a field to what it stands for in a draft: a key, and the one environment that is meant, if any.

Always true: every field is found by its plain name where that is enough, and by `SECTION.FIELD`; an unknown name is
answered with the nearest ones.
"""

import difflib
from dataclasses import dataclass, replace
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.model_fields import facts_of
from hermes_rl.runs.configuration.described import DescribedField
from hermes_rl.runs.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.runs.configuration.layers import Layers, model_default
from hermes_rl.runs.configuration.linked import LINKED, MODELS, OWN_TO_EACH, RUN_OWNED, key_of, places_of, plain_name
from hermes_rl.runs.configuration.problems import RUN_RANGES
from hermes_rl.runs.presets import own_presets, preset_named, preset_names

# Of an environment in the run, not of its configuration.
ENTRY_FIELDS = {
    "weight": DescribedField(
        *("weight", "float", ("number",), False, "a number above 0 to 1e+09"),
        description="Its share of each batch, beside those of the other environments.",
        default=1.0,
        value=1.0,
        said=False,
        own=False,
        readable=True,
    ),
    "evaluation_only": DescribedField(
        *("evaluation_only", "bool", ("boolean",), False, "true or false"),
        description="It makes no groups for training, only evaluations as the policy moves on.",
        default=False,
        value=False,
        said=False,
        own=False,
        readable=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Target:
    """`environment` is None for a field of the whole run, or of all environments."""

    key: str
    environment: ChosenEnvironment | None = None


def target_of(draft: Draft, name: str) -> Target:
    """ConfigError for a name that is no field, or of several."""
    section, _, field = name.partition(".")
    if section in MODELS and field:
        return Target(_known(draft, name, name))
    # The longest first: names of environments may have dots in them.
    for one in sorted(draft.environments, key=lambda one: -len(one.name)):
        if name.startswith(f"{one.name}."):
            return _of_one(one, name.removeprefix(f"{one.name}."))
    if name in LINKED:
        return Target(name)
    if len(draft.environments) == 1 and name in ENTRY_FIELDS and name not in draft.environments[0].description.env:
        return Target(name, draft.environments[0])
    found = {key_of(place) for place in _places(draft, ("env", "tinker")) if place.partition(".")[2] == name}
    found = found or {key_of(place) for place in _places(draft) if place.partition(".")[2] == name}
    if found <= RUN_OWNED.keys():
        found = set(sorted(found)[:1])
    if len(found) > 1:
        raise ConfigError(f"{name} is a field of several parts; say which: {', '.join(sorted(found))}")
    return Target(found.pop()) if found else Target(_known(draft, f"env.{name}", name))


def field_of(layers: Layers, target: Target) -> DescribedField:
    """What the field takes, with its value in the draft."""
    draft = layers.draft
    if target.environment is not None and target.key in ENTRY_FIELDS:
        one = target.environment
        value = one.weight if target.key == "weight" else one.evaluation_only
        return replace(ENTRY_FIELDS[target.key], value=value)
    place = places_of(target.key)[0]
    section, _, name = place.partition(".")
    if section in {"env", "openai"}:
        holders = [target.environment] if target.environment else list(draft.environments)
        fields = (getattr(one.description, section).get(name) for one in holders)
        found: DescribedField = next(field for field in fields if field is not None)
    else:
        found = _of_model(section, name, layers)
    if target.key in LINKED and target.environment is None:
        value = layers.linked(target.key)
        found = replace(found, value=value, default=_unedited(layers, target.key))
    if target.key in RUN_RANGES:
        least, most = RUN_RANGES[target.key]
        found = replace(found, allowed=f"a whole number from {least} to {most}")
    return replace(found, name=plain_name(target.key))


def check_open(draft: Draft, target: Target, name: str) -> None:
    """ConfigError for a field that the preset locks, or that the run sets itself."""
    if target.environment is not None and target.key in ENTRY_FIELDS:
        return
    layers = Layers.of(draft)
    for place in places_of(target.key):
        if place in RUN_OWNED:
            owned = RUN_OWNED[place]
            raise ConfigError(f"{name} is locked at {owned.value!r}: {owned.why}")
    if target.key in layers.locked:
        raise ConfigError(
            f"{name} is locked at {layers.locked[target.key]!r} by the preset {draft.preset}; choose another with the "
            f"field 'preset': {', '.join(_open_in(target.key)) or 'none'} leave it open, and "
            f"a preset of your own is a file in {own_presets()}"
        )
    if target.key.startswith("engine.") and not layers.runs_engine():
        raise ConfigError(
            f"{name}: a run with the preset {draft.preset} starts no engine of its own here; choose self-hosted or "
            "laptop with the field 'preset'"
        )
    field = field_of(layers, target)
    if not field.readable:
        raise ConfigError(f"{name} can be set by the environment's own file only: {field.value}")
    if target.environment and target.key in LINKED and target.key not in OWN_TO_EACH:
        raise ConfigError(f"{name}: {target.key} is one for the whole run; edit {target.key}")


def names_of(draft: Draft) -> list[str]:
    """Every name that may be edited or is shown as locked."""
    return ["preset", "environments", *map(plain_name, keys_of(draft))]


def keys_of(draft: Draft) -> list[str]:
    return list(dict.fromkeys(key_of(place) for place in _places(draft)))


def _of_one(one: ChosenEnvironment, field: str) -> Target:
    if field in ENTRY_FIELDS:
        return Target(field, one)
    section, _, rest = field.partition(".")
    place = field if section in {"env", "openai"} and rest else f"env.{field}"
    known = {**{f"env.{at}": 0 for at in one.description.env}, **{f"openai.{at}": 0 for at in one.description.openai}}
    if place not in known:
        near = _near(field, [*ENTRY_FIELDS, *one.description.env])
        raise ConfigError(f"the environment {one.name} has no field {field!r}{near}")
    return Target(key_of(place), one)


def _known(draft: Draft, place: str, name: str) -> str:
    if place in _places(draft):
        return key_of(place)
    raise ConfigError(f"no field is named {name!r}{_near(name, names_of(draft))}")


def _near(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"; near: {', '.join(near)}" if near else "; the current configuration lists all there are"


def _places(draft: Draft, sections: tuple[str, ...] = tuple(MODELS)) -> list[str]:
    """Of all environments and parts, in the order in which they are shown."""
    places: dict[str, None] = {}
    for section in sections:
        if section in {"env", "openai"}:
            for one in draft.environments:
                places |= dict.fromkeys(f"{section}.{name}" for name in getattr(one.description, section))
        else:
            places |= dict.fromkeys(f"{section}.{name}" for name in MODELS[section].model_fields)
    return list(places)


def _open_in(key: str) -> list[str]:
    opened = []
    for name in preset_names():
        try:
            preset = preset_named(name)
        except ConfigError:
            continue
        if key not in {key_of(place) for place in preset.locked.by_place()}:
            opened.append(name)
    return opened


def _of_model(section: str, name: str, layers: Layers) -> DescribedField:
    facts = facts_of(name, MODELS[section].model_fields[name])
    default = layers.overrides.get(
        f"{section}.{name}", layers.defaults.get(f"{section}.{name}", _default(section, name))
    )
    return DescribedField(
        *(name, facts.type, facts.kinds, facts.nullable, facts.allowed, facts.description),
        default=default,
        value=layers.decided().get(f"{section}.{name}", default),
        said=False,
        own=False,
        readable=True,
    )


def _default(section: str, name: str) -> Any:
    field = MODELS[section].model_fields[name]
    return None if field.is_required() else model_default(f"{section}.{name}")


def _unedited(layers: Layers, name: str) -> Any:
    kept = {key: value for key, value in layers.draft.changes.items() if key != name}
    return replace(layers, draft=replace(layers.draft, changes=kept)).linked(name)
