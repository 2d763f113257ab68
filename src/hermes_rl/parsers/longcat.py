"""LongCat writes tool calls as hermes does, in its own tags: `<longcat_tool_call>{...}</longcat_tool_call>`."""

from hermes_rl.parsers.hermes import HermesParser
from hermes_rl.parsers.tool_format import tagged_json


class LongcatParser(HermesParser):
    name = "longcat"
    markers = ("<longcat_tool_call>", "</longcat_tool_call>")
    tool_format = tagged_json(*markers, result=("<longcat_tool_response>\n", "\n</longcat_tool_response>"))
