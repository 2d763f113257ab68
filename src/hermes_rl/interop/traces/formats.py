"""The formats that `hermes-rl import` reads, the most specific first."""

from collections.abc import Iterable, Mapping
from typing import Any

from hermes_rl.interop.traces.anthropic_messages import AnthropicMessages
from hermes_rl.interop.traces.atif_documents import AtifDocuments
from hermes_rl.interop.traces.claude_code import ClaudeCode
from hermes_rl.interop.traces.langfuse import Langfuse
from hermes_rl.interop.traces.langsmith import LangSmith
from hermes_rl.interop.traces.openai_chat import OpenAIChat
from hermes_rl.interop.traces.otel import OpenTelemetry
from hermes_rl.interop.traces.trace import TraceFormat

FORMATS: Mapping[str, TraceFormat] = {
    one.name: one
    for one in (
        AtifDocuments(),
        ClaudeCode(),
        LangSmith(),
        Langfuse(),
        OpenTelemetry(),
        AnthropicMessages(),
        OpenAIChat(),
    )
}


def detect(records: Iterable[Mapping[str, Any]]) -> TraceFormat | None:
    """The format of the first record that any format knows."""
    return next((one for record in records for one in FORMATS.values() if one.matches(record)), None)
