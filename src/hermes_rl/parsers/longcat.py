"""LongCat writes tool calls as hermes does, between tags of its own: `<longcat_tool_call>{...}</longcat_tool_call>`."""

from hermes_rl.parsers.hermes import HermesParser


class LongcatParser(HermesParser):
    name = "longcat"
    tags = ("<longcat_tool_call>", "</longcat_tool_call>")
