"""Markers of every known tool-call format: text that holds one was meant as a call, whoever can read it."""

MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<longcat_tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<function=",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<arg_key>",
)


def leaked_marker(text: str) -> str | None:
    """The first marker found in text that no parser took as a call."""
    return next((marker for marker in MARKERS if marker in text), None)
