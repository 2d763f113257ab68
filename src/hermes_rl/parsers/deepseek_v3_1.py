"""DeepSeek V3.1: ``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>``, otherwise as V3."""

from hermes_rl.parsers.deepseek_v3 import BEGIN, END, SEPARATOR, DeepSeekV3Parser, deepseek_format
from hermes_rl.parsers.marked_text import MarkedText
from hermes_rl.parsers.tool_format import arguments_json


class DeepSeekV31Parser(DeepSeekV3Parser):
    name = "deepseek_v3_1"
    tool_format = deepseek_format(
        f"{BEGIN}<name>{SEPARATOR}<object of arguments as JSON>{END}",
        lambda call, _: f"{BEGIN}{call.name}{SEPARATOR}{arguments_json(call.arguments)}{END}",
    )

    def _name(self, marked: MarkedText, before: str) -> str:
        return before.strip()
