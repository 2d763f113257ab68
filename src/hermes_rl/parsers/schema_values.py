"""Values of formats that write every argument as bare text, typed by the tool's schema.

A value without a type in the schema is the text itself. Text that does not fit its type is kept, or is parsed as JSON,
so that argument validation can report the error.
"""

import math
from collections.abc import Mapping
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.parsers.tool_format import Tools

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def tool_properties(tools: Tools, name: str) -> Mapping[str, Any]:
    """The schemas of that tool's parameters; empty for an unknown tool."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            return properties if isinstance(properties, Mapping) else {}
    return {}


def parse_value(text: str, schema: Any) -> Any:
    """The text as a value of the schema's type."""
    types = schema_types(schema)
    if types <= {"string"}:
        return text
    value = _as_json(text)
    if any(_is(value, kind) for kind in types):
        return value
    if "null" in types and text.strip().lower() == "null":
        return None
    if (number := _as_number(text, types)) is not None:
        return number
    if "boolean" in types and (word := text.strip().lower()) in BOOLEANS:
        return BOOLEANS[word]
    return text if "string" in types or value is NOT_JSON else value


def schema_types(schema: Any) -> set[str]:
    """All types that the schema allows; empty if it names none."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)}
    for value in schema.get("enum") or ():
        types |= {kind for kind in KINDS if _is(value, kind)} or {"string"}
    for choice in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(choice) or ():
            types |= schema_types(inner)
    return types


NOT_JSON = object()


def _as_json(text: str) -> Any:
    try:
        return fast_json.loads(text)
    except ValueError:
        return NOT_JSON


def _as_number(text: str, types: set[str]) -> int | float | None:
    """A number that Python accepts and JSON does not, such as +5 and .5."""
    try:
        if "integer" in types:
            return int(text)
        number = float(text) if "number" in types else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, KINDS.get(kind, ())) and (kind == "boolean" or not isinstance(value, bool))
