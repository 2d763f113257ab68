"""Qwen 2.5 and Qwen 3 write tool calls as hermes does."""

from hermes_rl.parsers.hermes import HermesParser


class QwenParser(HermesParser):
    name = "qwen"
