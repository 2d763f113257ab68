"""Values of formats that write every argument as bare text, typed by the tool's schema.

Without a type in the schema a value is the text itself. A text that does not fit its type stays as it is or becomes
what it is as JSON, so that the check of the arguments can tell the model what was wrong.
"""

import math
from collections.abc import Mapping
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.parsers.tool_format import Tools

TRUTH = {"true": True, "1": True, "false": False, "0": False}
KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def properties_of(tools: Tools, name: str) -> Mapping[str, Any]:
    """The schemas of the parameters of that tool; none for a tool nobody gave."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            return properties if isinstance(properties, Mapping) else {}
    return {}


def typed(text: str, schema: Any) -> Any:
    """The value that the text stands for."""
    types = types_of(schema)
    if types <= {"string"}:
        return text
    value = _as_json(text)
    if any(_is(value, kind) for kind in types):
        return value
    if "null" in types and text.strip().lower() == "null":
        return None
    if (number := _as_number(text, types)) is not None:
        return number
    if "boolean" in types and (word := text.strip().lower()) in TRUTH:
        return TRUTH[word]
    return text if "string" in types or value is NOTHING else value


def types_of(schema: Any) -> set[str]:
    """All types that the schema allows; empty when it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)}
    for value in schema.get("enum") or ():
        types |= {kind for kind in KINDS if _is(value, kind)} or {"string"}
    for choice in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(choice) or ():
            types |= types_of(inner)
    return types


NOTHING = object()


def _as_json(text: str) -> Any:
    try:
        return fast_json.loads(text)
    except ValueError:
        return NOTHING


def _as_number(text: str, types: set[str]) -> int | float | None:
    """What Python reads as a number though JSON does not, such as +5 and .5."""
    try:
        if "integer" in types:
            return int(text)
        number = float(text) if "number" in types else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, KINDS.get(kind, ())) and (kind == "boolean" or not isinstance(value, bool))
