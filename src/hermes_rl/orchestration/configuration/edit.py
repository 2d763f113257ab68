"""Create a draft and edit its fields.

Always true: an edit never introduces a new problem; a rejected edit leaves the draft as it was.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hermes_rl.core import yaml_text
from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration import introspect
from hermes_rl.orchestration.configuration.checks import EXPECTED, ConfigProblem, find_problems, model_problem
from hermes_rl.orchestration.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.orchestration.configuration.field_lookup import (
    ENTRY_FIELDS,
    Target,
    check_editable,
    draft_field,
    find_target,
)
from hermes_rl.orchestration.configuration.introspect import DescribedField, Description
from hermes_rl.orchestration.configuration.precedence import Layers
from hermes_rl.orchestration.configuration.shared_fields import plain_name
from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.discovery.lookup import find_environment, run_refusal
from hermes_rl.orchestration.discovery.types import DiscoveredEnvironment
from hermes_rl.orchestration.presets.preset import DEFAULT_PRESET, SECTIONS, load_preset
from hermes_rl.orchestration.secret_settings import holds_secret, looks_like_key

# Coercion of input to the field's type, such as "8" to 8. An error names the field, the value and what is allowed, and
# never repeats a secret.

_MAX_SHOWN = 200
_INTEGER = re.compile(r"[+-]?\d+")
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def coerce_value(name: str, field: DescribedField, given: Any) -> Any:
    """Convert the input to the field's type; ConfigError when that is not possible."""
    if isinstance(given, str) and looks_like_key(given):
        raise _secret_error(name)
    for kind in field.kinds:
        value = _as_kind(kind, given)
        if value is not _INVALID:
            if holds_secret(name.rpartition(".")[2], value):
                raise _secret_error(name)
            return value
    if field.nullable and (given is None or (isinstance(given, str) and _is_null(given))):
        return None
    raise invalid_value(name, given, field.allowed)


def invalid_value(name: str, given: Any, allowed: str, why: str = "") -> ConfigError:
    """The error for an invalid value, with what is allowed instead."""
    shown = repr(given)
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    return ConfigError(f"{name} cannot be {shown}" + (f": {why}" if why else "") + f"; it takes {allowed}")


_INVALID = object()


def _secret_error(name: str) -> ConfigError:
    return ConfigError(
        f"{name}: the value contains a secret, which would be saved with the run; store it with `hermes-rl config set "
        "NAME` and give env:NAME or file:PATH instead"
    )


def _as_kind(kind: str, given: Any) -> Any:
    if kind == "any":
        return given
    if kind in {"text", "choice"}:
        return given if isinstance(given, str) and not (kind == "text" and _is_null(given)) else _INVALID
    if kind == "boolean":
        return given if isinstance(given, bool) else _BOOLEANS.get(str(given).strip().lower(), _INVALID)
    if kind in {"integer", "number"}:
        return _number(kind, given)
    return _structure(list if kind == "list" else dict, given)


def _is_null(given: str) -> bool:
    return given.strip().lower() in {"null", "none"}


def _number(kind: str, given: Any) -> Any:
    value = given
    if isinstance(given, str):
        text = given.strip()
        try:
            value = int(text) if _INTEGER.fullmatch(text) else float(text)
        except ValueError:
            return _INVALID
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return _INVALID
    if kind == "number":
        return value
    return int(value) if value == int(value) else _INVALID


def _structure(expected: type, given: Any) -> Any:
    value = given
    if isinstance(given, str):
        if expected is list and not given.lstrip().startswith("["):
            return [part.strip() for part in given.split(",") if part.strip()] if not _is_null(given) else _INVALID
        try:
            value = yaml_text.loads(given)
        except yaml_text.BadYamlError:
            return _INVALID
    if expected is list and isinstance(value, tuple):
        value = list(value)
    return value if isinstance(value, expected) else _INVALID


MAX_WEIGHT = 1e9
_UNDESCRIBED = Description("", "", "", {}, {}, ())


def new_draft(found: DiscoveredEnvironment, preset: str | None = None) -> Draft:
    """A draft of one environment with a preset; ConfigError when the environment cannot be described."""
    name = load_preset(preset or DEFAULT_PRESET).name
    chosen = _choose(found, _safe_name(found.name), weight=1.0, evaluation_only=False)
    # Local time, as in other run names.
    timestamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return refresh_descriptions(Draft(name, (chosen,), wandb_name=f"{chosen.name}-{timestamp}"))


def add_environment(
    draft: Draft, found: DiscoveredEnvironment, *, weight: float = 1.0, evaluation_only: bool = False
) -> Draft:
    """The draft with one more environment; ConfigError when the trajectory API could not distinguish it."""
    _check_weight("weight", weight)
    chosen = _choose(found, _free_name(draft, found.name), weight=weight, evaluation_only=evaluation_only)
    after = refresh_descriptions(replace(draft, environments=(*draft.environments, chosen)))
    return _accept(draft, after, lambda problem: ConfigError(f"{found.name} does not fit in: {problem.message}"))


def edit_field(draft: Draft, field: str, value: Any, allowed_files: AllowedFiles | None = None) -> Draft:
    """The draft with a new value of one field; ConfigError says what is allowed."""
    return edit_fields(draft, [(field, value)], allowed_files)


def edit_fields(draft: Draft, changes: Iterable[tuple[str, Any]], allowed_files: AllowedFiles | None = None) -> Draft:
    """The draft with all changes, checked together: first the preset, then the environments, then other fields.

    With `allowed_files`, no value may name code in another file.
    """
    after = draft
    edits: list[tuple[str, str, Any, str]] = []
    for given, value in sorted(changes, key=lambda change: _ORDER.get(change[0].strip(), len(_ORDER))):
        key = name = given.strip()
        if name == "preset":
            allowed = "the name of a preset"
            after = replace(after, preset=load_preset(str(value)).name)
        elif name == "environments":
            allowed = _ENVIRONMENTS
            after = _with_environments(after, value, allowed_files)
        else:
            target = find_target(after, name)
            check_editable(after, target, name)
            described = draft_field(Layers.from_draft(after), target)
            key, allowed = target.key, described.allowed
            coerced = coerce_value(name, described, value)
            if allowed_files is not None:
                allowed_files.require_references(coerced)
            after = _apply_change(after, target, _validate(after, target, name, coerced))
        edits.append((key, name, value, allowed))

    def rejected(problem: ConfigProblem) -> ConfigError:
        causes = [edit for edit in edits if edit[0] == problem.key] or edits
        key, name, value, allowed = causes[0]
        why = problem.message if problem.key in {None, key} else f"{plain_name(str(problem.key))}: {problem.message}"
        if len(causes) == 1:
            return invalid_value(name, value, allowed, why)
        return ConfigError(f"cannot set {', '.join(edit[1] for edit in causes)}: {why}")

    return _accept(draft, refresh_descriptions(after), rejected)


_ORDER = {"preset": 0, "environments": 1}


def refresh_descriptions(draft: Draft, *, force: bool = False) -> Draft:
    """Describe each environment again whose changes differ from its description; with `force` every one."""
    environments = list(draft.environments)
    stale = [force] * len(environments)
    # One environment's config_init may set a value for all, so a second round may be needed, never a third.
    for _ in range(2):
        layers = Layers.from_draft(replace(draft, environments=tuple(environments)))
        for index, chosen in enumerate(layers.draft.environments):
            changes = layers.changes_for(chosen)
            if stale[index] or changes != chosen.description.changes:
                environments[index] = replace(chosen, description=introspect.describe(chosen.reference, changes))
                stale[index] = False
    return replace(draft, environments=tuple(environments))


def _with_environments(draft: Draft, value: Any, allowed_files: AllowedFiles | None) -> Draft:
    """Exactly the listed environments, in this order; those already in the draft keep their edits."""
    listed = [value] if isinstance(value, str | Mapping) else value
    if not isinstance(listed, Sequence) or not listed:
        raise invalid_value("environments", value, _ENVIRONMENTS)
    after = replace(draft, environments=())
    for row in [_parse_row(given, value) for given in listed]:
        before = draft.environment(row["name"])
        if before is None or after.environment(before.name) is not None:
            found = find_environment(row["name"], allowed=allowed_files)
            before = _choose(found, _free_name(after, found.name), weight=1.0, evaluation_only=False)
        chosen = replace(
            before,
            weight=_check_weight(f"{row['name']}.weight", row.get("weight", before.weight)),
            evaluation_only=coerce_value(
                f"{row['name']}.evaluation_only",
                ENTRY_FIELDS["evaluation_only"],
                row.get("evaluation_only", before.evaluation_only),
            ),
        )
        after = replace(after, environments=(*after.environments, chosen))
    # A new environment has no fields to edit before it is described.
    return refresh_descriptions(after)


_ENVIRONMENTS = 'a list of names, or of {"name": NAME, "weight": a number above 0, "evaluation_only": true or false}'


def _parse_row(given: Any, whole: Any) -> dict[str, Any]:
    row = {"name": given} if isinstance(given, str) else given
    if (
        not isinstance(row, Mapping)
        or not isinstance(row.get("name"), str)
        or set(row) - {"name", "weight", "evaluation_only"}
    ):
        raise invalid_value("environments", whole, _ENVIRONMENTS)
    return dict(row)


def _choose(found: DiscoveredEnvironment, name: str, *, weight: float, evaluation_only: bool) -> ChosenEnvironment:
    refusal = run_refusal(found)
    if refusal is not None:
        raise ConfigError(f"{found.name} ({found.file}) {refusal}")
    return ChosenEnvironment(name, found.id, found.reference, _UNDESCRIBED, weight, evaluation_only)


def _validate(draft: Draft, target: Target, name: str, value: Any) -> Any:
    """The value to store; ConfigError for values that the field allows but a run does not."""
    if target.key == "weight" and target.environment:
        return _check_weight(name, value)
    if target.key == "evaluation_only" and value and draft.trained == (target.environment,):
        raise ConfigError(f"{name} cannot be true: no environment would be left to train on; add one first")
    kind = load_preset(draft.preset).needs.fields.get(plain_name(target.key))
    if kind in {"model", "folder"}:
        problem = model_problem(kind, value)
        if problem is not None:
            raise invalid_value(name, value, EXPECTED[kind], problem)
        folder = Path(str(value)).expanduser()
        # The run's parts may have a different working directory.
        return str(folder.resolve()) if folder.is_dir() else value
    return value


def _apply_change(draft: Draft, target: Target, value: Any) -> Draft:
    if target.environment is None:
        environments = tuple(
            replace(chosen, changes={key: old for key, old in chosen.changes.items() if key != target.key})
            for chosen in draft.environments
        )
        return replace(draft, environments=environments, changes={**draft.changes, target.key: value})
    if target.key in ENTRY_FIELDS:
        changed = replace(target.environment, **{target.key: value})
    else:
        changed = replace(target.environment, changes={**target.environment.changes, target.key: value})
    return replace(
        draft, environments=tuple(changed if old.name == changed.name else old for old in draft.environments)
    )


def _check_weight(name: str, value: Any) -> float:
    field = ENTRY_FIELDS["weight"]
    weight = float(coerce_value(name, field, value))
    if not 0 < weight <= MAX_WEIGHT:
        raise invalid_value(name, value, field.allowed)
    return weight


def _check_names(draft: Draft) -> None:
    """The trajectory API identifies environments by the names they give themselves."""
    if not draft.trained:
        raise ConfigError("no environment of the run is trained on; set evaluation_only to false for one of them")
    seen: dict[tuple[str, bool], ChosenEnvironment] = {}
    for chosen in draft.environments:
        first = seen.setdefault((chosen.description.name, chosen.evaluation_only), chosen)
        if first is chosen:
            continue
        instead = (
            "leave one of them out"
            if chosen.evaluation_only
            else f"raise the weight of the first with {first.name}.weight, add the second with evaluation_only"
        )
        raise ConfigError(
            f"two environments to {'evaluate' if chosen.evaluation_only else 'train'} on are named "
            f"{chosen.description.name!r} ({first.reference} and {chosen.reference}), so their groups could not be "
            f"distinguished: {instead}, or copy the file and give its class another `name`"
        )


def _accept(before: Draft, after: Draft, error: Callable[[ConfigProblem], ConfigError]) -> Draft:
    """The draft after an edit; ConfigError for a new problem."""
    _check_names(after)
    old = find_problems(before)
    for problem in find_problems(after):
        if problem not in old:
            raise error(problem)
    return after


def _free_name(draft: Draft, name: str) -> str:
    safe = _safe_name(name)
    names = (safe, *(f"{safe}-{number}" for number in range(2, len(draft.environments) + 3)))
    return next(candidate for candidate in names if draft.environment(candidate) is None)


def _safe_name(name: str) -> str:
    """A valid name for files and parts."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "environment"
    # A section name is reserved: `env.group_size` means the field of all environments.
    return f"{safe}-environment" if safe in SECTIONS else safe
