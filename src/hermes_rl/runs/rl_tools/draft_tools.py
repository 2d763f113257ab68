"""The tools that make a draft: which environments there are, which are chosen, and what their settings are."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration.draft import Draft
from hermes_rl.runs.configuration.editing import edited, new_draft, with_environment
from hermes_rl.runs.configuration.sessions import save_draft
from hermes_rl.runs.configuration.showing import shown
from hermes_rl.runs.discovery.finding import find_environment
from hermes_rl.runs.discovery.found import Found
from hermes_rl.runs.discovery.listing import discover
from hermes_rl.runs.rl_tools.answers import RefusalError
from hermes_rl.runs.rl_tools.desk import Desk
from hermes_rl.runs.rl_tools.drafts import chosen_draft, forget_started, held
from hermes_rl.tools.tool import tool

TIPS = [
    "rl_select_environment(name=NAME) takes a name or an id from this list",
    "to add your own environment, put its file into a folder that is searched, or select it by its path",
]


@tool(sandboxed=False)
async def rl_list_environments(session: Desk) -> dict[str, Any]:  # noqa: ARG001 (each tool is given it)
    """List the environments that a model can be trained on: name, versioned id, file, and what the task is.

    Call this first. No code of an environment is run for it, and new files are seen at once. Files that cannot be used
    are listed under "broken" with the reason. Next: rl_select_environment with one of the names.
    """
    discovery = await asyncio.to_thread(discover)
    rows = [found.as_json() for found in discovery.found]
    broken = [one.as_json() for one in discovery.broken]
    return {"environments": rows, "count": len(rows), "broken": broken, "tips": [*TIPS, *discovery.notes]}


@tool(sandboxed=False)
async def rl_select_environment(
    session: Desk,
    name: str,
    preset: str | None = None,
    add: bool = False,
    weight: Annotated[float, Field(gt=0)] = 1.0,
    evaluation_only: bool = False,
) -> dict[str, Any]:
    """Choose the environment to train on, and begin a new draft of a run with its own configuration.

    Call it after rl_list_environments. Calling it again begins the draft anew: earlier edits are gone, runs that were
    started go on. Next: rl_get_current_config to see the fields, or rl_start_training to train as it is.

    Args:
        name: A name or id that rl_list_environments gave, or the path of an environment's Python file.
        preset: Where and how to train, which also says which fields are locked: laptop and self-hosted train on this
            machine and need no key; tinker, the default, trains on hosted Tinker and needs TINKER_API_KEY.
        add: Keep the draft and add this environment to it, so that one run trains on several.
        weight: With several environments, how much of each batch comes from this one, beside the others' weights.
        evaluation_only: With add, only evaluate on this environment and never train on it.
    """
    return await asyncio.to_thread(_select, session.session, name, preset, add, weight, evaluation_only)


@tool(sandboxed=False)
async def rl_get_current_config(session: Desk) -> dict[str, Any]:
    """Show the draft: every field that can be changed with its value, type, range and meaning, and the locked ones.

    Call it after rl_select_environment. configurable_fields are for rl_edit_config; locked_fields belong to the preset,
    with the value that will be used as locked_value.
    """
    return await asyncio.to_thread(lambda: shown(chosen_draft(session.session)))


@tool(sandboxed=False)
async def rl_edit_config(session: Desk, field: str, value: Any) -> dict[str, Any]:
    """Change one field of the draft. The value is checked at once; a wrong one is refused and nothing is changed.

    Call rl_get_current_config for the names. A field that is locked is refused with its locked_value: leave it, or
    choose another preset with field "preset". Runs that were started keep the values they were started with.

    Args:
        field: The field's name, such as group_size or preset. With several environments NAME.field is the field of one.
        value: The new value, as JSON of the field's type: 8, true, "text", [1, 2] or null.
    """
    return await asyncio.to_thread(_edit, session.session, field, value)


def _select(
    session: str, name: str, preset: str | None, add: bool, weight: float, evaluation_only: bool
) -> dict[str, Any]:
    found = _found(name)
    with held(session):
        if add:
            if preset is not None:
                raise RefusalError(
                    f"preset={preset!r} goes with a new draft; add keeps the draft's own",
                    f"rl_select_environment(name={name!r}, add=true), and "
                    f"rl_edit_config(field='preset', value={preset!r})",
                )
            draft = with_environment(chosen_draft(session), found, weight=weight, evaluation_only=evaluation_only)
        elif evaluation_only:
            raise RefusalError(
                f"{name!r} is the first environment of the draft, and a run needs one to train on",
                "select the one to train on, then "
                f"rl_select_environment(name={name!r}, add=true, evaluation_only=true)",
            )
        else:
            draft = new_draft(found, preset)
            forget_started(session)
        save_draft(draft, session)
    return {
        "message": f"{found.name} is {'added to the draft' if add else 'selected'}",
        "environment": found.name,
        "id": found.id,
        "file_path": str(found.file),
        **_overview(draft),
        "next": "rl_get_current_config() shows the fields, rl_test_inference() tries the environment, "
        "rl_start_training() starts the run",
    }


def _overview(draft: Draft) -> dict[str, Any]:
    told = shown(draft)
    return {"preset": told["preset"], "environments": told["environments"], "missing": told["missing"]}


def _found(name: str) -> Found:
    try:
        return find_environment(name)
    except ConfigError as error:
        raise RefusalError(
            str(error),
            "rl_select_environment(name=NAME) with one of available",
            available=[found.name for found in discover().found],
        ) from None


def _edit(session: str, field: str, value: Any) -> dict[str, Any]:
    with held(session):
        before = chosen_draft(session)
        try:
            draft = edited(before, field, value)
        except ConfigError as error:
            raise _not_edited(before, field, str(error)) from None
        save_draft(draft, session)
    told = shown(draft)
    now = next((one for one in _fields(told, "configurable_fields") if one["name"] == field), {})
    return {
        "message": f"{field} is changed",
        "field": field,
        "value": now.get("current_value", value),
        "config": {one["name"]: one.get("current_value") for one in _fields(told, "configurable_fields")},
        "next": "rl_edit_config for another field, or rl_start_training()",
    }


def _not_edited(draft: Draft, field: str, why: str) -> RefusalError:
    """The refusal with what the caller needs to do better: the locked value, the field as it is, or all fields."""
    told = shown(draft)
    for one in _fields(told, "locked_fields"):
        if one["name"] == field:
            return RefusalError(
                why,
                f"leave {field} at its locked value, or choose a preset that leaves it open: "
                "rl_edit_config(field='preset', value=PRESET)",
                locked_value=one.get("locked_value"),
                preset=told["preset"],
            )
    for one in _fields(told, "configurable_fields"):
        if one["name"] == field:
            return RefusalError(why, f"rl_edit_config(field={field!r}, value=VALUE) with a value it allows", field=one)
    return RefusalError(
        why,
        "rl_edit_config(field=FIELD, value=…) with one of available_fields; rl_get_current_config() describes them",
        available_fields=[one["name"] for one in _fields(told, "configurable_fields")],
    )


def _fields(told: dict[str, Any], which: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = told[which]
    return fields
