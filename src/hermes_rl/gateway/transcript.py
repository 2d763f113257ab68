"""The main conversation of an external agent as the AgentResult that a reward reads."""

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.messages import ToolCall, content_text
from hermes_rl.core.trajectory import ToolUse
from hermes_rl.gateway.conversations import Conversation


def transcript(conversation: Conversation) -> AgentResult:
    """The conversation; tool results are those that the agent reported to the policy."""
    messages = list(conversation.messages)
    results = {
        message.get("tool_call_id"): content_text(message.get("content"))
        for message in messages
        if message.get("role") == "tool"
    }
    result = AgentResult(
        messages=messages, prompt_length=conversation.prompt_length, tool_schemas=list(conversation.tools)
    )
    for turn, index in enumerate(conversation.answers, 1):
        answer = messages[index]
        result.reasoning_per_turn.append(answer.get("reasoning_content"))
        for call in map(ToolCall.from_raw, answer.get("tool_calls") or ()):
            if call.id in results:
                result.tool_uses.append(ToolUse(turn, call.id, call.name, call.arguments, results[call.id]))
    return result
