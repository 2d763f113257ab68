"""A tool-call parser in one file: `<call name="ls">{"path": "/"}</call>`.

Use it with `--env.tool_call_parser examples/extensions/xml_parser.py:XmlParser`.
"""

import json
import re

from hermes_rl import ToolCall
from hermes_rl.parsers.parser import BrokenCall, ParsedText
from hermes_rl.parsers.tool_format import ToolFormat, Tools, arguments_json

CALL = re.compile(r'<call name="([^"]*)">(.*?)(?:</call>|\Z)', re.DOTALL)


class XmlParser:
    name = "xml"
    # Text that holds one of these but no readable call is counted as a leaked call.
    markers = ("<call ",)
    # How tools are described to a model whose chat template does not support them.
    tool_format = ToolFormat(
        'For each call, write its arguments as JSON: <call name="NAME">{"key": "value"}</call>',
        lambda call, _: f'<call name="{call.name}">{arguments_json(call.arguments)}</call>',
        result=("<result>\n", "\n</result>"),
    )

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        calls, broken = [], []
        for name, arguments in CALL.findall(text):
            try:
                json.loads(arguments)
            except ValueError as error:
                broken.append(BrokenCall(arguments, f"not valid JSON: {error}"))
            else:
                calls.append(ToolCall.make(name, arguments))
        return ParsedText(CALL.sub("", text).strip(), tuple(calls), tuple(broken))
