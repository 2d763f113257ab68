"""What is wrong with a value that pydantic refused, without pydantic's own prefix."""

from collections.abc import Mapping
from typing import Any

PREFIXES = ("Value error, ", "Assertion failed, ")


def problem_text(problem: Mapping[str, Any]) -> str:
    """The message of one of a ValidationError's `errors()`, in the words of the validator."""
    text = str(problem["msg"])
    for prefix in PREFIXES:
        text = text.removeprefix(prefix)
    return text
