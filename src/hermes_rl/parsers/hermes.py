"""The hermes format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them in the text.

A tag inside a JSON string is part of the string: an agent may well write a file about tool calls.
"""

import json
import re
from typing import Any

from hermes_rl import jsontext
from hermes_rl.messages import ToolCall
from hermes_rl.parsers.parser import BrokenCall, ParsedText

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# A model may stop short of closing the last call, or open the next one without closing this.
BLOCK = re.compile(r"<tool_call>\s*(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
END = re.compile(r"\s*(?:</tool_call>|(?=<tool_call>)|\Z)")
JSON = json.JSONDecoder()


class HermesParser:
    name = "hermes"

    def parse(self, text: str) -> ParsedText:
        if OPEN not in text:
            return ParsedText(content=text)
        calls: list[ToolCall] = []
        broken: list[BrokenCall] = []
        said: list[str] = []
        here = 0
        while block := BLOCK.search(text, here):
            said.append(text[here : block.start()])
            inside, here = _inside(block)
            call = _call_of(inside)
            if isinstance(call, ToolCall):
                calls.append(call)
            else:
                broken.append(call)
        content = "".join((*said, text[here:])).replace(CLOSE, "").strip()
        return ParsedText(content=content, calls=tuple(calls), broken=tuple(broken))


def _inside(block: re.Match[str]) -> tuple[str, int]:
    """What stands between the tags, and where the text goes on behind them."""
    text, begin = block.string, block.start(1)
    try:
        _, end = JSON.raw_decode(text, begin)
    except (ValueError, RecursionError):
        pass
    else:
        if closed := END.match(text, end):
            return text[begin:end], closed.end()
    return block.group(1).rstrip(), block.end()


def _call_of(block: str) -> ToolCall | BrokenCall:
    try:
        value: Any = jsontext.loads(block)
    except ValueError as error:
        return BrokenCall(block, f"not valid JSON: {error}")
    if not isinstance(value, dict):
        return BrokenCall(block, f"expected a JSON object, got {type(value).__name__}")
    if not isinstance(value.get("name"), str) or not value["name"]:
        return BrokenCall(block, 'the object has no "name"')
    return ToolCall.of({"function": value})
