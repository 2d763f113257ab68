"""ChatTemplate: a tokenizer's chat template, with conversations adapted to what it supports.

Tools, calls and results that the template does not support are written as text in the parser's format. A conversation
that the template still refuses is an EnvironmentCodeError with the template's reason. Spellings of control tokens in
the adapted messages are cut (control_tokens.py), but not in the model's own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, EnvironmentCodeError
from hermes_rl.core.messages import Message, ToolCall, content_text, tool_calls
from hermes_rl.inference.tokens.chat_format import FormatSettings, Tools
from hermes_rl.inference.tokens.control_tokens import ControlTokens, CutTokenizer
from hermes_rl.inference.tokens.reasoning import KeptReasoning, reasoning_of
from hermes_rl.inference.tokens.template_traits import TemplateProbes, detect_traits
from hermes_rl.parsers import get_parser

# Mistral's templates refuse any other call id.
SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


class ChatTemplate:
    def __init__(self, tokenizer: CutTokenizer, settings: FormatSettings) -> None:
        self._tokenizer = tokenizer
        self.control = ControlTokens(tokenizer)
        self._settings = settings
        self._tool_format = get_parser(settings.parser).tool_format
        self._kept_reasoning: KeptReasoning | None = None
        probes = self.probes = TemplateProbes()
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '')!r} has no chat template; "
                "choose one that has with --env.tokenizer_name"
            )
        try:
            rendered = self.render([probes.user, probes.assistant], None, generate=False)
        except EnvironmentCodeError as error:
            raise ConfigError(f"the chat template cannot render a plain question and answer: {error}") from error
        self.after_answer = rendered.partition(probes.turn)[2]
        self.traits = detect_traits(self.render, probes)
        if settings.keep_reasoning:
            self._kept_reasoning = KeptReasoning.detect(self.render, probes, reasoning=self.traits.reasoning)

    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        """The text of the conversation, up to where the model continues."""
        adapted, tools = self.adapt(messages), self.control.in_tools(tools)
        if self.explains_tools(tools) and not self.traits.tools:
            adapted = self._add_tools_section(adapted, tools)
        return self.render(adapted, tools if self.traits.tools else None)

    def render(self, messages: Sequence[Message], tools: Tools | None, *, generate: bool = True) -> str:
        """Apply the template to messages that are already adapted."""
        shown = list(tools) if tools and self._settings.tool_prompt else None
        kept = self._kept_reasoning
        try:
            text = str(
                self._tokenizer.apply_chat_template(
                    list(map(kept.hide, messages)) if kept else list(messages),
                    tools=shown,
                    add_generation_prompt=generate,
                    tokenize=False,
                    **self._settings.template,
                )
            )
        except Exception as error:  # a template is foreign code and may raise anything
            roles = ", ".join(str(message.get("role")) for message in messages[-6:])
            raise EnvironmentCodeError(
                "chat_template",
                f"the model's chat template refuses this conversation ({type(error).__name__}: {error}); "
                f"its last roles are {roles}: send messages in an order and form that this model supports",
            ) from error
        return kept.show(text) if kept else text

    def explains_tools(self, tools: Tools) -> bool:
        """Whether there are tools, and the prompt should explain them."""
        return bool(tools) and self._settings.tool_prompt

    def adapt(self, messages: Iterable[Message], names: Mapping[str, str] | None = None) -> list[Message]:
        """Adapt messages to the template. `names` maps the ids of earlier calls to their tools."""
        adapted: list[Message] = []
        known = dict(names or {})
        merging = False
        for message in messages:
            if message.get("role") == "assistant":
                known |= {call.id: call.name for call in tool_calls([message])}
                adapted.append(self.adapt_assistant(message))
            elif message.get("role") == "tool":
                result = self._result(message, known)
                if merging and result["role"] == "user":
                    adapted[-1]["content"] += "\n" + result["content"]
                else:
                    adapted.append(result)
            else:
                content = self.control.in_prompt(content_text(message.get("content")))
                adapted.append({**message, "content": content})
            merging = message.get("role") == "tool"
        return adapted

    def adapt_assistant(self, message: Message) -> Message:
        """Adapt an assistant message to the template."""
        content, calls = content_text(message.get("content")), tool_calls([message])
        # A call that could not be parsed has no name; its arguments are the model's own text.
        unparsed = [call.arguments for call in calls if not call.name]
        calls = [call for call in calls if call.name]
        content = "\n".join([content, *unparsed] if content else unparsed)
        adapted: Message = {"role": "assistant"}
        if self.traits.reasoning and (reasoning := reasoning_of(message)):
            adapted["reasoning_content"] = reasoning
        if calls and self._can_list(calls, content):
            adapted["tool_calls"] = [self._call(call) for call in calls]
        elif calls:
            calls_as_text = self._tool_format.calls_text(calls)
            content = f"{content}\n{calls_as_text}" if content else calls_as_text
        return {**adapted, "content": content}

    def _can_list(self, calls: Sequence[ToolCall], content: str) -> bool:
        """Whether the template shows these calls and all the rest of their message; otherwise they are sent as text."""
        traits = self.traits
        if not traits.calls or not traits.results_without_calls:
            return bool(traits.calls)
        return (
            (len(calls) == 1 or traits.calls > 1)
            and (traits.content_with_calls or not content.strip())
            and (traits.texts or all(isinstance(_load_object(call.arguments), dict) for call in calls))
        )

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = _load_object(call.arguments) if self.traits.objects else call.arguments
        return {
            "id": self._id(call.id),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }

    def _id(self, call_id: str) -> str:
        if self.traits.long_ids or SHORT_ID.fullmatch(call_id):
            return call_id
        return blake2b(call_id.encode("utf-8", "replace")).hexdigest()[:9]

    def _result(self, message: Message, names: Mapping[str, str]) -> Message:
        content = self.control.in_result(content_text(message.get("content")))
        call_id = str(message.get("tool_call_id") or "")
        if not self.traits.tools and not self.traits.calls:
            content = self._tool_format.result_text(content, call_id)
        if not self.traits.tool_role:
            return {"role": "user", "content": content}
        # Hermes' template refuses a result without a name, even for a call that has none.
        name = message.get("name") or names.get(call_id, "")
        return {"role": "tool", "content": content, "tool_call_id": self._id(call_id), "name": name}

    def _add_tools_section(self, messages: list[Message], tools: Tools) -> list[Message]:
        """Add the tools to the system message, or to the first message if the template has no system role."""
        section = self._tool_format.tools_text(tools)
        if not messages:
            return messages
        first, *rest = messages
        if first["role"] == "system":
            return [{**first, "content": f"{first['content']}\n\n{section}" if first["content"] else section}, *rest]
        if self.traits.system:
            return [{"role": "system", "content": section}, first, *rest]
        return [{**first, "content": f"{section}\n\n{first['content']}"}, *rest]


def _load_object(arguments: str) -> Any:
    """Decode the arguments if they are a JSON object; otherwise return the text."""
    try:
        value = fast_json.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
