"""The main conversation of an agent of somebody else's as the AgentResult that a reward reads."""

from hermes_rl.agent.result import AgentResult
from hermes_rl.gateway.contexts import Context
from hermes_rl.messages import ToolCall, content_text
from hermes_rl.trajectory import ToolUse


def transcript(context: Context) -> AgentResult:
    """The conversation; tool results are those that the agent told the policy of."""
    messages = list(context.messages)
    results = {
        message.get("tool_call_id"): content_text(message.get("content"))
        for message in messages
        if message.get("role") == "tool"
    }
    result = AgentResult(messages=messages, prompt_length=context.prompt_length)
    for turn, place in enumerate(context.answers, 1):
        said = messages[place]
        result.reasoning_per_turn.append(said.get("reasoning_content"))
        for call in map(ToolCall.of, said.get("tool_calls") or ()):
            if call.id in results:
                result.tool_uses.append(ToolUse(turn, call.id, call.name, call.arguments, results[call.id]))
    return result
