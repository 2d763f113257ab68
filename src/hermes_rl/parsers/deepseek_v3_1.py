"""DeepSeek V3.1: ``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>``, otherwise as V3."""

from hermes_rl.parsers.deepseek_v3 import DeepSeekV3Parser
from hermes_rl.parsers.marked_text import MarkedText


class DeepSeekV31Parser(DeepSeekV3Parser):
    name = "deepseek_v3_1"

    def _name(self, marked: MarkedText, before: str) -> str:
        return before.strip()
