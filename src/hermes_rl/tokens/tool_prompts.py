"""How tools are taught, called and answered in each parser's format, for templates that do not know tools.

Always true: the parser of that name reads `calls_text` as the calls it was given. The formats that write values as bare
text (GLM, Qwen3-Coder) need the tools' schemas for that, and cannot hold a value that has their closing tag in it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hermes_rl import jsontext
from hermes_rl.messages import ToolCall
from hermes_rl.parsers import ALIASES, deepseek_v3, get_parser, glm45, kimi_k2, mistral, qwen3_coder
from hermes_rl.tokens.chat_format import Tools

# A call and its place among the calls of its message.
Writer: TypeAlias = Callable[[ToolCall, int], str]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`lesson` says how to call, after the schemas. `answer` stands around a result; `{id}` in it is the call's id."""

    lesson: str
    call: Writer
    around: tuple[str, str] = ("", "")
    between: str = "\n"
    answer: tuple[str, str] = ("", "")


def tools_text(parser: str, tools: Tools) -> str:
    """The part of a system message that names the tools and says how to call them."""
    schemas = "\n".join(map(_dumped, tools))
    return (
        "# Tools\n\nYou may call these functions; each is described by a JSON schema within <tools></tools>:\n"
        f"<tools>\n{schemas}\n</tools>\n\n{_format(parser).lesson}"
    )


def calls_text(parser: str, calls: Sequence[ToolCall]) -> str:
    """The calls as a model of this format writes them."""
    written = _format(parser)
    before, after = written.around
    return before + written.between.join(written.call(call, place) for place, call in enumerate(calls)) + after


def result_text(parser: str, content: str, call_id: str = "") -> str:
    """A tool's result as models of this format are given it; one that is written so already stays as it is."""
    before, after = _format(parser).answer
    before = before.replace("{id}", call_id)
    return content if before and content.lstrip().startswith(before.strip()) else before + content + after


def _format(parser: str) -> ToolFormat:
    # For its ConfigError, when there is no such parser.
    return FORMATS[get_parser(ALIASES.get(parser, parser)).name]


def _json_call(key: str) -> Writer:
    return lambda call, _: f'{{"name": {_dumped(call.name)}, "{key}": {_json(call.arguments)}}}'


def _between_tags(opened: str, closed: str) -> Writer:
    write = _json_call("arguments")
    return lambda call, place: f"{opened}\n{write(call, place)}\n{closed}"


def _mistral_call(call: ToolCall, place: int) -> str:
    written = _json_call("arguments")(call, place)
    return f'{written[:-1]}, "id": "{call.id}"}}' if mistral.ID.fullmatch(call.id) else written


def _deepseek_call(call: ToolCall, _: int) -> str:
    fenced = f"```json\n{_json(call.arguments)}\n```"
    return f"{deepseek_v3.BEGIN}function{deepseek_v3.SEPARATOR}{call.name}\n{fenced}{deepseek_v3.END}"


def _deepseek_v3_1_call(call: ToolCall, _: int) -> str:
    return f"{deepseek_v3.BEGIN}{call.name}{deepseek_v3.SEPARATOR}{_json(call.arguments)}{deepseek_v3.END}"


def _kimi_id(call: ToolCall, place: int) -> str:
    head = f"functions.{call.name}:"
    return call.id if call.id.startswith(head) and call.id[len(head) :].isdecimal() else f"{head}{place}"


def _kimi_call(call: ToolCall, place: int) -> str:
    return f"{kimi_k2.BEGIN}{_kimi_id(call, place)}{kimi_k2.ARGUMENTS}{_json(call.arguments)}{kimi_k2.END}"


def _glm_call(line: str) -> Writer:
    def write(call: ToolCall, _: int) -> str:
        pairs = "".join(
            f"{glm45.KEY}{key}{glm45.KEY_END}{line}{glm45.VALUE}{value}{glm45.VALUE_END}{line}"
            for key, value in _bare_arguments(call)
        )
        return f"{glm45.CALL}{call.name}{line}{pairs}{glm45.CALL_END}"

    return write


def _qwen3_coder_call(call: ToolCall, _: int) -> str:
    pairs = "".join(
        f"{qwen3_coder.PARAMETER}{key}>\n{value}\n{qwen3_coder.PARAMETER_END}\n" for key, value in _bare_arguments(call)
    )
    function = f"{qwen3_coder.FUNCTION}{call.name}>\n{pairs}{qwen3_coder.FUNCTION_END}"
    return f"{qwen3_coder.CALL}\n{function}\n{qwen3_coder.CALL_END}"


def _bare_arguments(call: ToolCall) -> list[tuple[str, str]]:
    value = _value(call.arguments)
    # No parser of these formats gives anything but an object; another's call still has to be written somehow.
    pairs: Mapping[str, Any] = value if isinstance(value, dict) else {"arguments": value}
    return [(key, part if isinstance(part, str) else _dumped(part)) for key, part in pairs.items()]


def _value(arguments: str) -> Any:
    try:
        return jsontext.loads(arguments)
    except ValueError:
        return arguments


def _json(arguments: str) -> str:
    """The arguments spaced as in the templates models were trained on; what is no JSON, as a JSON string."""
    return _dumped(_value(arguments))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tagged(opened: str, closed: str, answer: tuple[str, str]) -> ToolFormat:
    return ToolFormat(
        "For each call, write a JSON object with the function's name and its arguments between tags:\n"
        f'{opened}\n{{"name": <name>, "arguments": <object of arguments>}}\n{closed}',
        _between_tags(opened, closed),
        answer=answer,
    )


def _glm(line: str) -> ToolFormat:
    shown = f"{glm45.KEY}<argument>{glm45.KEY_END}{line}{glm45.VALUE}<value>{glm45.VALUE_END}{line}"
    return ToolFormat(
        "For each call, write the function's name, then a key and a value for each argument, between tags:\n"
        f"{glm45.CALL}<name>{line}{shown}{glm45.CALL_END}",
        _glm_call(line),
        between=line,
        answer=_RESPONSE,
    )


def _deepseek(example: str, call: Writer) -> ToolFormat:
    before, after = deepseek_v3.ALL_BEGIN, deepseek_v3.ALL_END
    return ToolFormat(
        f"To call functions, end your answer with all calls, written so:\n{before}{example}{after}",
        call,
        around=(before, after),
        answer=(
            "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
        ),
    )


_RESPONSE = ("<tool_response>\n", "\n</tool_response>")
_HERMES = _tagged("<tool_call>", "</tool_call>", _RESPONSE)
_LLAMA = ToolFormat(
    "To call a function, answer with nothing but a JSON object, "
    '{"name": <name>, "parameters": <object of arguments>}; put a semicolon between two of them.',
    _json_call("parameters"),
    between="; ",
)
FORMATS = {
    "deepseek_v3": _deepseek(
        f"{deepseek_v3.BEGIN}function{deepseek_v3.SEPARATOR}<name>\n"
        f"```json\n<object of arguments>\n```{deepseek_v3.END}",
        _deepseek_call,
    ),
    "deepseek_v3_1": _deepseek(
        f"{deepseek_v3.BEGIN}<name>{deepseek_v3.SEPARATOR}<object of arguments as JSON>{deepseek_v3.END}",
        _deepseek_v3_1_call,
    ),
    "glm45": _glm("\n"),
    "glm47": _glm(""),
    "hermes": _HERMES,
    "kimi_k2": ToolFormat(
        "To call functions, end your answer with all calls, numbered from 0 and written so:\n"
        f"{kimi_k2.ALL_BEGIN}{kimi_k2.BEGIN}functions.<name>:<number>{kimi_k2.ARGUMENTS}"
        f"<object of arguments as JSON>{kimi_k2.END}{kimi_k2.ALL_END}",
        _kimi_call,
        around=(kimi_k2.ALL_BEGIN, kimi_k2.ALL_END),
        between="",
        answer=("## Return of {id}\n", ""),
    ),
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "longcat": _tagged(
        "<longcat_tool_call>",
        "</longcat_tool_call>",
        ("<longcat_tool_response>\n", "\n</longcat_tool_response>"),
    ),
    "mistral": ToolFormat(
        "To call functions, answer with a JSON list of all calls and nothing else:\n"
        f'{mistral.CALLS} [{{"name": <name>, "arguments": <object of arguments>}}]',
        _mistral_call,
        around=(f"{mistral.CALLS} [", "]"),
        between=", ",
        answer=("[TOOL_RESULTS] ", "[/TOOL_RESULTS]"),
    ),
    "qwen": _HERMES,
    "qwen3_coder": ToolFormat(
        "For each call, write the function and its parameters between tags, each value on lines of its own:\n"
        f"{qwen3_coder.CALL}\n{qwen3_coder.FUNCTION}<name>>\n{qwen3_coder.PARAMETER}<argument>>\n<value>\n"
        f"{qwen3_coder.PARAMETER_END}\n{qwen3_coder.FUNCTION_END}\n{qwen3_coder.CALL_END}",
        _qwen3_coder_call,
        answer=_RESPONSE,
    ),
}
