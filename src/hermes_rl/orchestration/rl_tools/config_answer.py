"""The answer of rl_get_current_config: the main fields described and the others by value, or the fields asked for.

Always true: the default answer is shorter than MAX_BYTES, except for a draft of dozens of environments.
"""

from typing import Any

from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.shared_fields import plain_name
from hermes_rl.orchestration.configuration.view import FIRST, draft_view
from hermes_rl.orchestration.rl_tools.answer_text import answer_text
from hermes_rl.orchestration.rl_tools.errors import RefusalError

MAX_BYTES = 8_900
MAX_TEXT = 240
MAX_VALUE = 60
MAIN, ALL = "main", "all"
_MAIN_NAMES = frozenset(map(plain_name, FIRST))
_MORE = "rl_get_current_config(fields='all') describes every field, fields='tokens, timeout' those with such names"


def config_answer(draft: Draft, fields: str) -> dict[str, Any]:
    view = draft_view(draft)
    asked = fields.strip().lower()
    if asked == ALL:
        return view
    return _main_fields(view) if asked in {"", MAIN} else _matching_fields(view, fields)


def _matching_fields(view: dict[str, Any], fields: str) -> dict[str, Any]:
    parts = [part.strip().lower() for part in fields.split(",") if part.strip()]
    found = {
        which: [row for row in view[which] if any(part in row["name"].lower() for part in parts)]
        for which in ("configurable_fields", "locked_fields")
    }
    if not any(found.values()):
        raise RefusalError(
            f"no field has a name with {fields!r}",
            "rl_get_current_config(fields=PARTS) with parts of available_fields, separated by commas",
            available_fields=[row["name"] for row in view["configurable_fields"]],
        )
    return view | found


def _main_fields(view: dict[str, Any]) -> dict[str, Any]:
    described = [
        {key: _shortened(value, MAX_TEXT) for key, value in row.items()}
        for row in view["configurable_fields"]
        if _is_main(row)
    ]
    main = {row["name"] for row in described}
    others = {
        row["name"]: _shortened(row["current_value"], MAX_VALUE)
        for row in view["configurable_fields"]
        if row["name"] not in main
    }
    locked = [
        {"name": row["name"], "locked_value": _shortened(row["locked_value"], MAX_VALUE)}
        for row in view["locked_fields"]
    ]
    answer = view | {
        "presets": [preset["name"] for preset in view["presets"]],
        "configurable_fields": described,
        "more_fields": others,
        "locked_fields": locked,
        "left_out": 0,
        "more": _MORE,
    }
    while len(answer_text(answer).encode()) > MAX_BYTES and (others or len(described) > len(_MAIN_NAMES)):
        if len(described) > len(_MAIN_NAMES):
            row = described.pop()
            others[row["name"]] = _shortened(row["current_value"], MAX_VALUE)
        else:
            others.popitem()
            answer["left_out"] += 1
    return answer


def _is_main(row: dict[str, Any]) -> bool:
    return row["name"] in _MAIN_NAMES or any(row.get(mark) for mark in ("required", "edited", "own"))


def _shortened(value: Any, limit: int) -> Any:
    text = value if isinstance(value, str) else answer_text(value)
    return value if len(text) <= limit else f"{text[:limit]}…"
