"""How one format writes tools, calls and results, for chat templates without tool support.

Always true: a format's parser parses `calls_text` back into the same calls. The formats that write values as bare text
(GLM, Qwen3-Coder) need the tools' schemas for that, and cannot express a value that contains their closing tag.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hermes_rl.core import fast_json
from hermes_rl.core.messages import ToolCall

# OpenAI tool schemas: {"type": "function", "function": {"name": ..., "parameters": {...}}}.
Tools: TypeAlias = Sequence[Mapping[str, Any]]
# Writes a call; the number is its position among the calls of its message.
CallWriter: TypeAlias = Callable[[ToolCall, int], str]
RESPONSE_TAGS = ("<tool_response>\n", "\n</tool_response>")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`instructions` tell the model how to write a call; they follow the schemas.

    `around` encloses all calls, `between` separates two of them. `result` encloses a tool's result; `{id}` in it is the
    call's id.
    """

    instructions: str
    write_call: CallWriter
    around: tuple[str, str] = ("", "")
    between: str = "\n"
    result: tuple[str, str] = ("", "")

    def tools_text(self, tools: Tools) -> str:
        """The part of the system message that lists the tools and explains how to call them."""
        schemas = "\n".join(map(dump_json, tools))
        return (
            "# Tools\n\nYou may call these functions; each is described by a JSON schema within <tools></tools>:\n"
            f"<tools>\n{schemas}\n</tools>\n\n{self.instructions}"
        )

    def calls_text(self, calls: Sequence[ToolCall]) -> str:
        """The calls, written in this format."""
        before, after = self.around
        return before + self.between.join(self.write_call(call, index) for index, call in enumerate(calls)) + after

    def result_text(self, content: str, call_id: str = "") -> str:
        """A tool's result, written in this format. Content that is already in this format is returned unchanged."""
        before, after = self.result
        before = before.replace("{id}", call_id)
        return content if before and content.lstrip().startswith(before.strip()) else before + content + after


def json_call(key: str) -> CallWriter:
    return lambda call, _: f'{{"name": {dump_json(call.name)}, "{key}": {arguments_json(call.arguments)}}}'


def tagged_json(opening: str, closing: str, result: tuple[str, str] = RESPONSE_TAGS) -> ToolFormat:
    """A JSON object between tags, as hermes writes it."""
    write = json_call("arguments")
    return ToolFormat(
        "For each call, write a JSON object with the function's name and its arguments between tags:\n"
        f'{opening}\n{{"name": <name>, "arguments": <object of arguments>}}\n{closing}',
        lambda call, index: f"{opening}\n{write(call, index)}\n{closing}",
        result=result,
    )


def bare_arguments(call: ToolCall) -> list[tuple[str, str]]:
    """Names and values as text, for formats that do not quote strings."""
    value = _parsed(call.arguments)
    # Parsers of these formats return objects only; any other value is written under the key `arguments`.
    pairs: Mapping[str, Any] = value if isinstance(value, dict) else {"arguments": value}
    return [(key, part if isinstance(part, str) else dump_json(part)) for key, part in pairs.items()]


def arguments_json(arguments: str) -> str:
    """The arguments spaced as in the templates models were trained on; invalid JSON becomes a JSON string."""
    return dump_json(_parsed(arguments))


def dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parsed(arguments: str) -> Any:
    try:
        return fast_json.loads(arguments)
    except ValueError:
        return arguments
