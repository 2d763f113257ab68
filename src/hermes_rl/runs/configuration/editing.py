"""Making a draft and editing it, a field at a time.

Always true: a draft that is given back has no problem that the one before had not; one that is refused is as it was.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration import described
from hermes_rl.runs.configuration.described import Description
from hermes_rl.runs.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.runs.configuration.layers import Layers
from hermes_rl.runs.configuration.linked import MODELS, plain_name
from hermes_rl.runs.configuration.problems import WANTED, Problem, model_fault, problems_of
from hermes_rl.runs.configuration.targets import ENTRY_FIELDS, Target, check_open, field_of, target_of
from hermes_rl.runs.configuration.typing_values import refusal, typed
from hermes_rl.runs.discovery.finding import find_environment
from hermes_rl.runs.discovery.found import Found
from hermes_rl.runs.presets import DEFAULT_PRESET, preset_named

MOST_WEIGHT = 1e9
_UNDESCRIBED = Description("", "", "", {}, {}, ())


def new_draft(found: Found, preset: str | None = None) -> Draft:
    """A run of one environment, with the preset's values and its own; ConfigError when it cannot tell its fields."""
    name = preset_named(preset or DEFAULT_PRESET).name
    chosen = _chosen(found, _plain(found.name), weight=1.0, evaluation_only=False)
    # Local time, as in the names of the runs that people compare it with.
    moment = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return settled(Draft(name, (chosen,), wandb_name=f"{chosen.name}-{moment}"))


def with_environment(draft: Draft, found: Found, *, weight: float = 1.0, evaluation_only: bool = False) -> Draft:
    """The draft with one more environment; ConfigError for one that the trajectory API could not tell from another."""
    _check_weight("weight", weight)
    chosen = _chosen(found, _free_name(draft, found.name), weight=weight, evaluation_only=evaluation_only)
    after = settled(replace(draft, environments=(*draft.environments, chosen)))
    _check_names(after)
    _refuse_new_problems(draft, after, lambda problem: ConfigError(f"{found.name} does not fit in: {problem.message}"))
    return after


def edited(draft: Draft, field: str, value: Any) -> Draft:
    """The draft with another value of a field; ConfigError says what the field takes."""
    name = field.strip()
    if name == "preset":
        return _with_preset(draft, value)
    if name == "environments":
        return _with_environments(draft, value)
    target = target_of(draft, name)
    check_open(draft, target, name)
    facts = field_of(Layers.of(draft), target)
    meant = _checked(draft, target, name, typed(name, facts, value))
    after = settled(_changed(draft, target, meant))

    def refused(problem: Problem) -> ConfigError:
        about = "" if problem.key in {None, target.key} else f"{plain_name(str(problem.key))}: "
        return refusal(name, value, facts.allowed, f"{about}{problem.message}")

    _check_names(after)
    _refuse_new_problems(draft, after, refused)
    return after


def settled(draft: Draft, *, afresh: bool = False) -> Draft:
    """The draft with each environment's fields as they are now; `afresh` asks also where nothing was changed."""
    environments = list(draft.environments)
    stale = [True] * len(environments) if afresh else [False] * len(environments)
    # What one environment says may be for all of them, so the second round may find more to ask; no third is needed.
    for _ in range(2):
        layers = Layers.of(replace(draft, environments=tuple(environments)))
        for place, chosen in enumerate(layers.draft.environments):
            asked = layers.asked(chosen)
            if stale[place] or asked != chosen.description.asked:
                environments[place] = replace(chosen, description=described.describe(chosen.reference, asked))
                stale[place] = False
    return replace(draft, environments=tuple(environments))


def _with_preset(draft: Draft, value: Any) -> Draft:
    after = settled(replace(draft, preset=preset_named(str(value)).name))
    _refuse_new_problems(draft, after, lambda problem: ConfigError(f"preset cannot be {value!r}: {problem.message}"))
    return after


def _with_environments(draft: Draft, value: Any) -> Draft:
    """Those that are named, in this order; such as are chosen already keep what was edited of them."""
    wanted = [value] if isinstance(value, str | Mapping) else value
    if not isinstance(wanted, Sequence) or not wanted:
        raise refusal("environments", value, _ENVIRONMENTS)
    after = replace(draft, environments=())
    for row in [_row(one, value) for one in wanted]:
        before = draft.environment(row["name"])
        if before is None or after.environment(before.name) is not None:
            found = find_environment(row["name"])
            before = _chosen(found, _free_name(after, found.name), weight=1.0, evaluation_only=False)
        chosen = replace(
            before,
            weight=_check_weight(f"{row['name']}.weight", row.get("weight", before.weight)),
            evaluation_only=typed(
                f"{row['name']}.evaluation_only",
                ENTRY_FIELDS["evaluation_only"],
                row.get("evaluation_only", before.evaluation_only),
            ),
        )
        after = replace(after, environments=(*after.environments, chosen))
    after = settled(after)
    _check_names(after)
    _refuse_new_problems(draft, after, lambda problem: ConfigError(f"environments: {problem.message}"))
    return after


_ENVIRONMENTS = 'a list of names, or of {"name": NAME, "weight": a number above 0, "evaluation_only": true or false}'


def _row(given: Any, whole: Any) -> dict[str, Any]:
    row = {"name": given} if isinstance(given, str) else given
    if (
        not isinstance(row, Mapping)
        or not isinstance(row.get("name"), str)
        or set(row) - {"name", "weight", "evaluation_only"}
    ):
        raise refusal("environments", whole, _ENVIRONMENTS)
    return dict(row)


def _chosen(found: Found, name: str, *, weight: float, evaluation_only: bool) -> ChosenEnvironment:
    if found.kind == "atropos":
        raise ConfigError(
            f"{found.name} ({found.file}) is an environment of atroposlib, which a run cannot start: give it the base "
            "class HermesAgentBaseEnv, or start it yourself with `python FILE serve` beside `hermes-rl api` "
            "(docs/atropos.md)"
        )
    return ChosenEnvironment(name, found.id, found.reference, _UNDESCRIBED, weight, evaluation_only)


def _checked(draft: Draft, target: Target, name: str, value: Any) -> Any:
    """The value as it is kept; ConfigError for what only a run refuses."""
    if target.key == "weight" and target.environment:
        return _check_weight(name, value)
    if target.key == "evaluation_only" and value and {one.name for one in draft.trained} == {_name(target)}:
        raise ConfigError(f"{name} cannot be true: no environment would be left to train on; add one first")
    kind = preset_named(draft.preset).needs.fields.get(plain_name(target.key))
    if kind in {"model", "folder"}:
        fault = model_fault(kind, value)
        if fault is not None:
            raise refusal(name, value, WANTED[kind], fault)
        folder = Path(str(value)).expanduser()
        # The run's parts may have another working directory.
        return str(folder.resolve()) if folder.is_dir() else value
    return value


def _changed(draft: Draft, target: Target, value: Any) -> Draft:
    if target.environment is None:
        environments = tuple(
            replace(one, changes={key: old for key, old in one.changes.items() if key != target.key})
            for one in draft.environments
        )
        return replace(draft, environments=environments, changes={**draft.changes, target.key: value})
    if target.key in ENTRY_FIELDS:
        changed = replace(target.environment, **{target.key: value})
    else:
        changed = replace(target.environment, changes={**target.environment.changes, target.key: value})
    return replace(
        draft, environments=tuple(changed if one.name == changed.name else one for one in draft.environments)
    )


def _name(target: Target) -> str | None:
    return target.environment.name if target.environment else None


def _check_weight(name: str, value: Any) -> float:
    field = ENTRY_FIELDS["weight"]
    weight = float(typed(name, field, value))
    if not 0 < weight <= MOST_WEIGHT:
        raise refusal(name, value, field.allowed)
    return weight


def _check_names(draft: Draft) -> None:
    """The trajectory API knows environments by the names they give themselves."""
    if not draft.trained:
        raise ConfigError("no environment of the run is trained on; take evaluation_only from one of them")
    seen: dict[tuple[str, bool], ChosenEnvironment] = {}
    for one in draft.environments:
        before = seen.setdefault((one.description.name, one.evaluation_only), one)
        if before is one:
            continue
        instead = (
            "leave one of them out"
            if one.evaluation_only
            else f"raise the first one's weight with {before.name}.weight, add the second with evaluation_only"
        )
        raise ConfigError(
            f"two environments to {'evaluate' if one.evaluation_only else 'train'} on are named "
            f"{one.description.name!r} ({before.reference} and {one.reference}), and what they send could not be told "
            f"apart: {instead}, or copy the file and give its class another `name`"
        )


def _refuse_new_problems(before: Draft, after: Draft, error: Any) -> None:
    old = problems_of(before)
    for problem in problems_of(after):
        if problem not in old:
            raise error(problem)


def _free_name(draft: Draft, name: str) -> str:
    plain = _plain(name)
    names = (plain, *(f"{plain}-{number}" for number in range(2, len(draft.environments) + 3)))
    return next(one for one in names if draft.environment(one) is None)


def _plain(name: str) -> str:
    """A name that files and parts can have."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "environment"
    # `env.group_size` is the field of all environments.
    return f"{plain}-environment" if plain in MODELS else plain
