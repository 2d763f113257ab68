"""The text of an answer, for the Python functions and for MCP."""

import json
from typing import Any


def answer_text(answer: Any) -> str:
    return json.dumps(answer, indent=2, ensure_ascii=False)
