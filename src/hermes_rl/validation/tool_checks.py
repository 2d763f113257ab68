"""Calls each of the environment's own tools with arguments drawn from its schema, each in a new session.

The arguments are the same each time: the ends of ranges, empty and unusual values, each choice of an enumeration,
values of the item, and the oracle's own calls. An exception other than ToolUseError is a finding: it would end a
rollout without a score.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any
from uuid import uuid4

from hermes_rl.core import fast_json
from hermes_rl.core.author_code import author_line
from hermes_rl.core.errors import EnvironmentCodeError, InfrastructureError
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.scripted_policy import parse_step
from hermes_rl.rollout.rollout import begin_session
from hermes_rl.tools.tool import Tool, tools_of
from hermes_rl.validation.item_checks import CheckedItem
from hermes_rl.validation.leaks import item_leaves
from hermes_rl.validation.report import Severity, ValidationFinding, shorten

# Calls of one tool. Each call of a sandboxed one starts a sandbox.
MAX_CALLS, MAX_SANDBOXED_CALLS = 60, 8
CALL_SECONDS = 30.0
MAX_DEPTH = 4

TEXTS = ("a", "", "0", "-1", "ab", "abc", "abcd", "hello", " two words ", "Grüße\n\t\0", "x" * 10_000, "../..", "{}")
# Strings and numbers of the item that are tried too.
MAX_ITEM_VALUES = 6
INTEGERS = (0, 1, -1, 2, 10**6, -(10**6), 2**63)
NUMBERS = (0.0, 1.0, -1.5, 1e-9, 1e18)


async def tool_findings(env: HermesAgentBaseEnv, items: Sequence[CheckedItem]) -> list[ValidationFinding]:
    """One finding for each tool and line that raised."""
    # Those that an adapter learned from a server are not the author's code, and an outside agent calls none.
    own = () if env.config.external_agent else tools_of(env, type(env).own_tools)
    found: dict[str, ValidationFinding] = {}
    for tool in own if items else ():
        leaves = islice(item_leaves(items[0].value), MAX_ITEM_VALUES)
        drawn = ((items[0], one) for one in sample_arguments(tool.parameters, [value for _, value in leaves]))
        refusals: list[str] = []
        calls = list(islice([*_oracle_calls(env, tool.name, items), *drawn], _limit(tool)))
        for item, arguments in calls:
            outcome = await _call(env, item, tool.name, arguments)
            if isinstance(outcome, EnvironmentCodeError):
                line = author_line(outcome.__cause__ or outcome)
                found.setdefault(f"{tool.name}{line}", _raised(outcome, arguments))
            elif outcome is not None:
                refusals.append(outcome)
        if len(refusals) == len(calls):
            found[tool.name] = _refused(tool.name, refusals)
    return list(found.values())


def sample_arguments(schema: Mapping[str, Any], texts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Arguments that match the schema of a tool, or nearly: one parameter at a time takes each of its values.

    `texts` are tried for each parameter that is a string or a number.
    """
    choices = {name: list(_values(one, schema)) for name, one in (schema.get("properties") or {}).items()}
    for name, values in choices.items():
        kind = type(values[0]) if values and "enum" not in schema["properties"][name] else bool
        for text in texts if kind in (str, int, float) else ():
            with suppress(ValueError):
                values.insert(1, kind(text))
    required = set(schema.get("required") or ())
    base = {name: values[0] for name, values in choices.items() if values}
    sampled = [{name: value for name, value in base.items() if name in required}, base]
    for position in range(max(map(len, choices.values()), default=0)):
        sampled += [
            {**base, name: values[position]} for name, values in choices.items() if position < len(values) and position
        ]
    distinct = {fast_json.dumps(arguments): arguments for arguments in sampled}
    return list(distinct.values())


def _values(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Iterator[Any]:
    """Values of a schema, the most ordinary first; `root` holds the definitions that it refers to."""
    if depth > MAX_DEPTH:
        return
    if "$ref" in schema:
        schema = (root.get("$defs") or {}).get(str(schema["$ref"]).rpartition("/")[2]) or {}
    if "const" in schema:
        yield schema["const"]
    elif "enum" in schema:
        yield from schema["enum"]
    elif options := schema.get("anyOf") or schema.get("oneOf"):
        for option in options:
            yield from _values(option, root, depth + 1)
    else:
        yield from _values_of_type(schema, root, depth)


def _values_of_type(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[Any]:
    match schema.get("type"):
        case "string":
            yield from _texts(schema)
        case "integer":
            yield from _in_range(INTEGERS, schema, 1)
        case "number":
            yield from _in_range(NUMBERS, schema, 0.5)
        case "boolean":
            yield from (True, False)
        case "null":
            yield None
        case "array":
            inner = list(_values(schema.get("items") or {"type": "string"}, root, depth + 1))
            yield from ([], inner[:1], inner[:1] * 2, inner)
        case "object":
            properties = schema.get("properties") or {}
            whole = {name: next(_values(one, root, depth + 1), None) for name, one in properties.items()}
            yield from (whole, {name: whole[name] for name in schema.get("required") or () if name in whole})
        case _:
            yield from ("a", 0, None)


def _texts(schema: Mapping[str, Any]) -> Iterator[str]:
    lowest, highest = schema.get("minLength") or 0, schema.get("maxLength")
    yield from dict.fromkeys((text + "a" * (lowest - len(text)))[:highest] for text in TEXTS)


def _in_range(numbers: Sequence[float], schema: Mapping[str, Any], step: float) -> Iterator[float]:
    lowest, highest = schema.get("minimum"), schema.get("maximum")
    if lowest is None and "exclusiveMinimum" in schema:
        lowest = schema["exclusiveMinimum"] + step
    if highest is None and "exclusiveMaximum" in schema:
        highest = schema["exclusiveMaximum"] - step
    ends = [end for end in (lowest, highest) if end is not None]
    fitting = [
        number
        for number in (*ends, *numbers)
        if (lowest is None or number >= lowest) and (highest is None or number <= highest)
    ]
    yield from dict.fromkeys(fitting)


def _oracle_calls(
    env: HermesAgentBaseEnv, name: str, items: Sequence[CheckedItem]
) -> Iterator[tuple[CheckedItem, dict[str, Any]]]:
    for item in items:
        # An oracle that raises is a finding of its own.
        with suppress(Exception):
            for step in env.oracle(item.value) or ():
                # What a function says depends on a conversation.
                for call in () if callable(step) else parse_step(step)[1]:
                    if call.name == name:
                        yield item, fast_json.loads(call.arguments)


async def _call(
    env: HermesAgentBaseEnv, item: CheckedItem, name: str, arguments: Mapping[str, Any]
) -> EnvironmentCodeError | str | None:
    """The exception of the tool, or why it refused the call; None if it took too long or lacked a sandbox."""
    task_id = f"tool-{uuid4()}"
    session = env.tools.session(task_id)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(CALL_SECONDS):
                await begin_session(env, session, item.value, env.config.seed)
                session.turn = 1
                session.seat = env.seats[0] if env.seats else None
                with env.running():
                    return (await session.call(name, arguments)).error
    except EnvironmentCodeError as error:
        return error if error.cause == "tool" else None
    except InfrastructureError:
        return None
    finally:
        await env.tools.close_session(task_id)
    return None


def _refused(tool: str, refusals: Sequence[str]) -> ValidationFinding:
    return ValidationFinding(
        Severity.NOTE,
        "tool_not_tried",
        f"the tool {tool} rejected all {len(refusals)} calls with random arguments, for example: "
        f"{shorten(refusals[0], 200)}",
        "define oracle(item) with calls of this tool; they are tried too",
    )


def _raised(error: EnvironmentCodeError, arguments: Mapping[str, Any]) -> ValidationFinding:
    return ValidationFinding(
        Severity.ERROR,
        "tool_raised",
        f"{shorten(error, 400)}, with the arguments {shorten(fast_json.dumps(arguments).decode(), 200)}",
        "fix the tool; for arguments that it cannot use, raise ToolUseError with what the model should do instead",
    )


def _limit(tool: Tool) -> int:
    return MAX_SANDBOXED_CALLS if tool.sandboxed else MAX_CALLS
