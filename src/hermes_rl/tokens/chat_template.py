"""ChatTemplate: a tokenizer's own chat template, and conversations put the way it takes them.

Always true: tools, calls and results that the template has no place for are written as text in the parser's format, and
a conversation that it refuses all the same is the author's error, with the template's reason.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import AuthorError, ConfigError
from hermes_rl.messages import Message, ToolCall, content_text, tool_calls
from hermes_rl.tokens.chat_format import FormatSettings, Tools
from hermes_rl.tokens.template_traits import MadeUp, found_traits
from hermes_rl.tokens.thinking import KeptThinking, reasoning_of
from hermes_rl.tokens.tool_prompts import calls_text, result_text, tools_text

# Mistral's templates refuse ids of any other kind.
SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


class ChatTemplate:
    def __init__(self, tokenizer: Any, settings: FormatSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._keeping: KeptThinking | None = None
        made_up = self.made_up = MadeUp()
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '')!r} has no chat template; "
                "name one that has with --env.tokenizer_name"
            )
        try:
            answered = self.render([made_up.user, made_up.said], None, generate=False)
        except AuthorError as error:
            raise ConfigError(f"a plain question and answer cannot be written: {error}") from error
        self.after_answer = answered.partition(made_up.turn)[2]
        self.traits = found_traits(self.render, made_up)
        if settings.keep_thinking:
            self._keeping = KeptThinking.found(self.render, made_up, reasoning=self.traits.reasoning)

    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        """The text of the conversation, up to where the model is to speak."""
        adapted = self.adapted(messages)
        if self.tells_of(tools) and not self.traits.tools:
            adapted = self._taught(adapted, tools)
        return self.render(adapted, tools if self.traits.tools else None)

    def render(self, messages: Sequence[Message], tools: Tools | None, *, generate: bool = True) -> str:
        """What the template makes of messages that are adapted already."""
        shown = list(tools) if tools and self._settings.tool_prompt else None
        keeping = self._keeping
        try:
            text = str(
                self._tokenizer.apply_chat_template(
                    list(map(keeping.hide, messages)) if keeping else list(messages),
                    tools=shown,
                    add_generation_prompt=generate,
                    tokenize=False,
                    **self._settings.template,
                )
            )
        except Exception as error:  # a template is foreign code and raises what it likes
            roles = ", ".join(str(message.get("role")) for message in messages[-6:])
            raise AuthorError(
                "chat_template",
                f"the model's chat template refuses this conversation ({type(error).__name__}: {error}); "
                f"its last roles are {roles}: send the messages in an order and form that this model knows",
            ) from error
        return keeping.show(text) if keeping else text

    def tells_of(self, tools: Tools) -> bool:
        """Whether there are tools, and the prompt is to teach them."""
        return bool(tools) and self._settings.tool_prompt

    def adapted(self, messages: Iterable[Message], names: Mapping[str, str] | None = None) -> list[Message]:
        """The messages as the template takes them. `names` are those of the calls made before, by their ids."""
        adapted: list[Message] = []
        known = dict(names or {})
        merging = False
        for message in messages:
            if message.get("role") == "assistant":
                known |= {call.id: call.name for call in tool_calls([message])}
                adapted.append(self.assistant(message))
            elif message.get("role") == "tool":
                result = self._result(message, known)
                if merging and result["role"] == "user":
                    adapted[-1]["content"] += "\n" + result["content"]
                else:
                    adapted.append(result)
            else:
                adapted.append({**message, "content": content_text(message.get("content"))})
            merging = message.get("role") == "tool"
        return adapted

    def assistant(self, message: Message) -> Message:
        """A message of the assistant's as the template takes it."""
        content, calls = content_text(message.get("content")), tool_calls([message])
        # A call nobody could read has no name; its text is the model's own.
        unread = [call.arguments for call in calls if not call.name]
        calls = [call for call in calls if call.name]
        content = "\n".join([content, *unread] if content else unread)
        adapted: Message = {"role": "assistant"}
        if self.traits.reasoning and (reasoning := reasoning_of(message)):
            adapted["reasoning_content"] = reasoning
        if calls and self._lists(calls, content):
            adapted["tool_calls"] = [self._call(call) for call in calls]
        elif calls:
            written = calls_text(self._settings.parser, calls)
            content = f"{content}\n{written}" if content else written
        return {**adapted, "content": content}

    def _lists(self, calls: Sequence[ToolCall], content: str) -> bool:
        """Whether the template shows these calls, and all the rest of their message; else they are written as text."""
        traits = self.traits
        if not traits.calls or not traits.unlisted_calls:
            return bool(traits.calls)
        return (
            (len(calls) == 1 or traits.calls > 1)
            and (traits.beside_calls or not content.strip())
            and (traits.texts or all(isinstance(_object(call.arguments), dict) for call in calls))
        )

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = _object(call.arguments) if self.traits.objects else call.arguments
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
        content, call_id = content_text(message.get("content")), str(message.get("tool_call_id") or "")
        if not self.traits.tools and not self.traits.calls:
            content = result_text(self._settings.parser, content, call_id)
        if not self.traits.tool_role:
            return {"role": "user", "content": content}
        # Hermes' own template refuses a result without a name, even for a call that has none.
        name = message.get("name") or names.get(call_id, "")
        return {"role": "tool", "content": content, "tool_call_id": self._id(call_id), "name": name}

    def _taught(self, messages: list[Message], tools: Tools) -> list[Message]:
        """The messages with the tools in the system message, or in the first one where there can be none."""
        section = tools_text(self._settings.parser, tools)
        if not messages:
            return messages
        first, *rest = messages
        if first["role"] == "system":
            return [{**first, "content": f"{first['content']}\n\n{section}" if first["content"] else section}, *rest]
        if self.traits.system:
            return [{"role": "system", "content": section}, first, *rest]
        return [{**first, "content": f"{section}\n\n{first['content']}"}, *rest]


def _object(arguments: str) -> Any:
    """The arguments as an object where they are one, else the text."""
    try:
        value = jsontext.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
