"""The tools that edit a draft: list and select environments, show and change settings."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.draft_store import save_draft
from hermes_rl.orchestration.configuration.edit import add_environment, edit_field, new_draft
from hermes_rl.orchestration.configuration.view import draft_view
from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.discovery.discover import discover
from hermes_rl.orchestration.discovery.lookup import find_environment, run_refusal
from hermes_rl.orchestration.discovery.types import BrokenFile, DiscoveredEnvironment
from hermes_rl.orchestration.rl_tools.config_answer import MAIN, config_answer
from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.errors import RefusalError
from hermes_rl.orchestration.rl_tools.session_draft import clear_started, locked_session, require_draft
from hermes_rl.tools.tool import tool

TIPS = [
    "rl_select_environment(name=NAME) takes a name or an id from this list",
    "to add your own environment, put its file into a searched folder, or select it by its path",
]


@tool(sandboxed=False)
async def rl_list_environments(session: CallerContext) -> dict[str, Any]:  # noqa: ARG001 (every tool takes it)
    """List the environments that a model can be trained on: name, versioned id, file, and what the task is.

    Call this first. It runs no environment code, and new files appear immediately. Unusable files are listed under
    "broken" with the reason. Next: rl_select_environment with one of the names.
    """
    discovery = await asyncio.to_thread(discover)
    refused = {found: why for found in discovery.found if (why := run_refusal(found)) is not None}
    unusable = [BrokenFile(found.file, f"class {found.class_name} {why}", found.line) for found, why in refused.items()]
    rows = [found.as_json() for found in discovery.found if found not in refused]
    broken = [entry.as_json() for entry in (*discovery.broken, *unusable)]
    return {"environments": rows, "count": len(rows), "broken": broken, "tips": [*TIPS, *discovery.notes]}


@tool(sandboxed=False)
async def rl_select_environment(
    session: CallerContext,
    name: str,
    preset: str | None = None,
    add: bool = False,
    weight: Annotated[float, Field(gt=0)] = 1.0,
    evaluation_only: bool = False,
) -> dict[str, Any]:
    """Choose the environment to train on, and start a new draft of a run with its configuration.

    Call it after rl_list_environments. Calling it again starts a new draft: earlier edits are lost, started runs
    continue. Next: rl_get_current_config to see the fields, or rl_start_training to train as it is.

    Args:
        name: A name or id from rl_list_environments, or the path of an environment's Python file.
        preset: Where and how to train, and which fields are locked: laptop and self-hosted train on this machine and
            need no key; tinker, the default, trains on hosted Tinker and needs TINKER_API_KEY.
        add: Keep the draft and add this environment to it, so that one run trains on several.
        weight: With several environments, this one's share of each batch, relative to the others' weights.
        evaluation_only: With add, only evaluate on this environment and never train on it.
    """
    return await asyncio.to_thread(_select, session, name, preset, add, weight, evaluation_only)


@tool(sandboxed=False)
async def rl_get_current_config(session: CallerContext, fields: str = MAIN) -> dict[str, Any]:
    """Show the draft: the fields that can be changed with value, type, range and meaning, and the locked ones.

    Call it after rl_select_environment. configurable_fields and more_fields can be changed with rl_edit_config;
    locked_fields are fixed by the preset to their locked_value.

    Args:
        fields: Which fields to describe: main, the default, describes the most used ones, those of this environment and
            those you changed, and gives only the value of the others; all describes every one, in about 30 kB; any
            other text is a list of parts of names, separated by commas, such as "tokens, timeout".
    """
    return await asyncio.to_thread(lambda: config_answer(require_draft(session.session), fields))


@tool(sandboxed=False)
async def rl_edit_config(session: CallerContext, field: str, value: Any) -> dict[str, Any]:
    """Change one field of the draft. The value is checked immediately; an invalid one is refused and changes nothing.

    Call rl_get_current_config for the names. A locked field is refused with its locked_value: leave it, or choose
    another preset with field "preset". Runs keep the values they were started with.

    Args:
        field: The field's name, such as group_size or preset; NAME.field selects one of several environments.
        value: The new value, as JSON of the field's type: 8, true, "text", [1, 2] or null.
    """
    return await asyncio.to_thread(_edit, session, field, value)


def _select(
    caller: CallerContext, name: str, preset: str | None, add: bool, weight: float, evaluation_only: bool
) -> dict[str, Any]:
    session = caller.session
    found = _find(name, caller.allowed_files)
    with locked_session(session):
        if add:
            if preset is not None:
                raise RefusalError(
                    f"preset={preset!r} applies to a new draft only; add keeps the draft's preset",
                    f"rl_select_environment(name={name!r}, add=true), and "
                    f"rl_edit_config(field='preset', value={preset!r})",
                )
            draft = add_environment(require_draft(session), found, weight=weight, evaluation_only=evaluation_only)
        elif evaluation_only:
            raise RefusalError(
                f"{name!r} would be the draft's only environment, and a run needs one to train on",
                "select the one to train on, then "
                f"rl_select_environment(name={name!r}, add=true, evaluation_only=true)",
            )
        else:
            draft = new_draft(found, preset)
            clear_started(session)
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
    view = draft_view(draft)
    return {"preset": view["preset"], "environments": view["environments"], "missing": view["missing"]}


def _find(name: str, allowed: AllowedFiles | None) -> DiscoveredEnvironment:
    try:
        return find_environment(name, allowed=allowed)
    except ConfigError as error:
        raise RefusalError(
            str(error),
            "rl_select_environment(name=NAME) with one of available",
            available=[found.name for found in discover().found],
        ) from None


def _edit(caller: CallerContext, field: str, value: Any) -> dict[str, Any]:
    session = caller.session
    with locked_session(session):
        before = require_draft(session)
        try:
            draft = edit_field(before, field, value, caller.allowed_files)
        except ConfigError as error:
            raise _edit_refusal(before, field, str(error)) from None
        save_draft(draft, session)
    view = draft_view(draft)
    now = next((entry for entry in _fields(view, "configurable_fields") if entry["name"] == field), {})
    return {
        "message": f"{field} was changed",
        "field": field,
        "value": now.get("current_value", value),
        "config": {entry["name"]: entry.get("current_value") for entry in _fields(view, "configurable_fields")},
        "next": "rl_edit_config for another field, or rl_start_training()",
    }


def _edit_refusal(draft: Draft, field: str, why: str) -> RefusalError:
    """The refusal with the locked value, the field's description, or all field names."""
    view = draft_view(draft)
    for entry in _fields(view, "locked_fields"):
        if entry["name"] == field:
            return RefusalError(
                why,
                f"leave {field} at its locked value, or choose a preset that does not lock it: "
                "rl_edit_config(field='preset', value=PRESET)",
                locked_value=entry.get("locked_value"),
                preset=view["preset"],
            )
    for entry in _fields(view, "configurable_fields"):
        if entry["name"] == field:
            return RefusalError(why, f"rl_edit_config(field={field!r}, value=VALUE) with an allowed value", field=entry)
    return RefusalError(
        why,
        "rl_edit_config(field=FIELD, value=…) with one of available_fields; rl_get_current_config() describes them",
        available_fields=[entry["name"] for entry in _fields(view, "configurable_fields")],
    )


def _fields(view: dict[str, Any], which: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = view[which]
    return fields
