"""A draft as JSON: editable fields with their allowed values, locked fields, missing fields and problems.

Always true: fields that the seed shows have the seed's names; each value is the one that a run would use.
"""

from collections.abc import Iterator
from typing import Any

from hermes_rl.orchestration.configuration.checks import draft_notes, find_problems, missing_fields
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.field_lookup import Target, draft_field, draft_keys
from hermes_rl.orchestration.configuration.precedence import Layers
from hermes_rl.orchestration.configuration.shared_fields import LINKED_FIELDS, RUN_OWNED_FIELDS, paths_of, plain_name
from hermes_rl.orchestration.presets.preset import list_presets

# The fields that the seed lists first.
FIRST = ("base_model", "env.group_size", "batch_size", "wandb_name", "total_steps", "tinker.learning_rate")


def draft_view(draft: Draft) -> dict[str, Any]:
    layers = Layers.from_draft(draft)
    missing, problems = missing_fields(draft), find_problems(draft)
    return {
        "environment": draft.environments[0].name,
        "environments": [
            {
                "name": chosen.name,
                "id": chosen.id,
                "reference": chosen.reference,
                "weight": chosen.weight,
                "evaluation_only": chosen.evaluation_only,
            }
            for chosen in draft.environments
        ],
        "preset": draft.preset,
        "presets": list_presets(),
        "needed_keys": list(layers.preset.needs.keys),
        "configurable_fields": list(_configurable(draft, layers)),
        "locked_fields": list(_locked(draft, layers)),
        "missing": [problem.message for problem in missing],
        "problems": [problem.message for problem in problems],
        "notes": draft_notes(draft),
        "tip": _tip(draft, bool(missing), bool(problems)),
    }


def _configurable(draft: Draft, layers: Layers) -> Iterator[dict[str, Any]]:
    for key in sorted(_open_keys(draft, layers), key=lambda key: _rank(draft, key)):
        for name, target in _named(draft, key):
            field = draft_field(layers, target)
            row = {
                "name": name,
                "type": field.type,
                "default": field.default,
                "description": field.description,
                "current_value": field.value,
                "allowed": field.allowed,
            }
            marks = {
                "required": plain_name(key) in layers.preset.needs.fields,
                "edited": _is_edited(draft, target),
                "own": _is_own(draft, key),
            }
            yield row | {mark: True for mark, applies in marks.items() if applies}


def _locked(draft: Draft, layers: Layers) -> Iterator[dict[str, Any]]:
    locked = f"the preset {draft.preset} locks it"
    for key, value in layers.locked.items():
        why = f"{locked}; metrics go to wandb where it is installed and configured" if key == "use_wandb" else locked
        yield {"name": plain_name(key), "locked_value": value, "why": why}
    known = set(draft_keys(draft))
    names: set[str] = set()
    for key, owned in RUN_OWNED_FIELDS.items():
        name = plain_name(key)
        if key in known and name not in names:
            names.add(name)
            yield {"name": name, "locked_value": owned.value, "why": owned.why}


def _open_keys(draft: Draft, layers: Layers) -> Iterator[str]:
    for key in draft_keys(draft):
        locked = key in layers.locked or any(path in RUN_OWNED_FIELDS for path in paths_of(key))
        if not locked and (layers.runs_engine() or not key.startswith("engine.")):
            yield key


def _named(draft: Draft, key: str) -> Iterator[tuple[str, Target]]:
    """One field, or one for each environment if their values differ."""
    section, _, name = paths_of(key)[0].partition(".")
    if section not in {"env", "openai"} or (key in LINKED_FIELDS and key != "seed"):
        yield plain_name(key), Target(key)
        return
    fields = [(chosen, getattr(chosen.description, section).get(name)) for chosen in draft.environments]
    readable = [(chosen, field) for chosen, field in fields if field is not None and field.readable]
    if readable and all(field.value == readable[0][1].value for _, field in readable):
        yield plain_name(key), Target(key)
        return
    for chosen, _ in readable:
        yield f"{chosen.name}.{plain_name(key)}", Target(key, chosen)


def _rank(draft: Draft, key: str) -> tuple[int, int]:
    """The seed's fields first, then the environments' own, then the rest in model order."""
    if key in FIRST:
        return 0, FIRST.index(key)
    return (1, 0) if _is_own(draft, key) else (2, 0)


def _is_own(draft: Draft, key: str) -> bool:
    """Whether only the draft's environments have the field."""
    section, _, name = key.partition(".")
    return section == "env" and any(
        name in chosen.description.env and chosen.description.env[name].own for chosen in draft.environments
    )


def _is_edited(draft: Draft, target: Target) -> bool:
    return target.key in draft.changes or (target.environment is not None and target.key in target.environment.changes)


def _tip(draft: Draft, missing: bool, problems: bool) -> str:
    if problems:
        return "Fix the problems first: edit the fields that they name."
    if missing:
        return "Set the missing fields, then start the run."
    return (
        f"Edit any of configurable_fields by name. The preset {draft.preset} sets locked_fields: edit the field "
        "'preset' for another. Then start the run."
    )
