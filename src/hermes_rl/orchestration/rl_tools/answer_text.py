"""The text of an answer, for the Python functions and for MCP."""

import json
from typing import Any


def answer_text(answer: Any) -> str:
    # One space: deeper indentation would cost an agent a tenth more tokens.
    return json.dumps(answer, indent=1, ensure_ascii=False)
