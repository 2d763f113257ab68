"""A draft as it is shown: what may be changed with what it takes, what is locked at which value, and what is missing.

Always true: it is JSON, with the seed's names for what the seed shows; a value shown is the one a run would have.
"""

from collections.abc import Iterator
from typing import Any

from hermes_rl.runs.configuration.draft import Draft
from hermes_rl.runs.configuration.layers import Layers
from hermes_rl.runs.configuration.linked import LINKED, RUN_OWNED, places_of, plain_name
from hermes_rl.runs.configuration.problems import missing_of, notes_of, problems_of
from hermes_rl.runs.configuration.targets import Target, field_of, keys_of
from hermes_rl.runs.presets import listed_presets

# What the seed names first.
FIRST = ("base_model", "env.group_size", "batch_size", "wandb_name", "total_steps", "tinker.learning_rate")


def shown(draft: Draft) -> dict[str, Any]:
    layers = Layers.of(draft)
    missing, problems = missing_of(draft), problems_of(draft)
    return {
        "environment": draft.environments[0].name,
        "environments": [
            {
                "name": one.name,
                "id": one.id,
                "reference": one.reference,
                "weight": one.weight,
                "evaluation_only": one.evaluation_only,
            }
            for one in draft.environments
        ],
        "preset": draft.preset,
        "presets": listed_presets(),
        "needed_keys": list(layers.preset.needs.keys),
        "configurable_fields": list(_configurable(draft, layers)),
        "locked_fields": list(_locked(draft, layers)),
        "missing": [problem.message for problem in missing],
        "problems": [problem.message for problem in problems],
        "notes": notes_of(draft),
        "tip": _tip(draft, bool(missing), bool(problems)),
    }


def _configurable(draft: Draft, layers: Layers) -> Iterator[dict[str, Any]]:
    for key in sorted(_open_keys(draft, layers), key=lambda key: _rank(draft, key)):
        for name, target in _named(draft, key):
            field = field_of(layers, target)
            row = {
                "name": name,
                "type": field.type,
                "default": field.default,
                "description": field.description,
                "current_value": field.value,
                "allowed": field.allowed,
            }
            yield {**row, "required": True} if plain_name(key) in layers.preset.needs.fields else row


def _locked(draft: Draft, layers: Layers) -> Iterator[dict[str, Any]]:
    why = f"the preset {draft.preset} locks it"
    for key, value in layers.locked.items():
        told = f"{why}; metrics go there where it is installed and set up" if key == "use_wandb" else why
        yield {"name": plain_name(key), "locked_value": value, "why": told}
    known = set(keys_of(draft))
    names: set[str] = set()
    for key, owned in RUN_OWNED.items():
        name = plain_name(key)
        if key in known and name not in names:
            names.add(name)
            yield {"name": name, "locked_value": owned.value, "why": owned.why}


def _open_keys(draft: Draft, layers: Layers) -> Iterator[str]:
    for key in keys_of(draft):
        locked = key in layers.locked or any(place in RUN_OWNED for place in places_of(key))
        if not locked and (layers.runs_engine() or not key.startswith("engine.")):
            yield key


def _named(draft: Draft, key: str) -> Iterator[tuple[str, Target]]:
    """One field; or one for each environment, where their values differ."""
    section, _, name = places_of(key)[0].partition(".")
    if section not in {"env", "openai"} or (key in LINKED and key != "seed"):
        yield plain_name(key), Target(key)
        return
    holders = [one for one in draft.environments if name in getattr(one.description, section)]
    holders = [one for one in holders if getattr(one.description, section)[name].readable]
    values = [getattr(one.description, section)[name].value for one in holders]
    if holders and all(value == values[0] for value in values):
        yield plain_name(key), Target(key)
        return
    for one in holders:
        yield f"{one.name}.{plain_name(key)}", Target(key, one)


def _rank(draft: Draft, key: str) -> tuple[int, int]:
    """The seed's first, then the environments' own, then the rest in the order of the models."""
    if key in FIRST:
        return 0, FIRST.index(key)
    section, _, name = key.partition(".")
    own = section == "env" and any(
        name in one.description.env and one.description.env[name].own for one in draft.environments
    )
    return (1, 0) if own else (2, 0)


def _tip(draft: Draft, missing: bool, problems: bool) -> str:
    if problems:
        return "Mend what stands under problems first: edit the fields that are named there."
    if missing:
        return "Set what stands under missing; then the run can be started."
    return (
        f"Edit any of configurable_fields by its name; locked_fields belong to the preset {draft.preset}: edit the "
        "field 'preset' for another. Then start the run."
    )
