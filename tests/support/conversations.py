"""Random conversations of an agent with a scripted engine.

A conversation comes from one source of chance, so Hypothesis can shrink it and a seed repeats it, but for the ids of
calls. The agent sends back what it got, or something else: whitespace, thinking, results or whole messages changed or
gone, branches, requests that overlap.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, NamedTuple

from hermes_rl.core.errors import EnvironmentCodeError
from hermes_rl.core.messages import Message, ToolCall, content_text
from hermes_rl.core.trajectory import Sampling
from hermes_rl.inference.tokens.chat_format import ChatFormat, FormatSettings, Reply, Tools
from hermes_rl.inference.tokens.recorder import PreparedPrompt, Recorder, assistant_message
from hermes_rl.inference.tokens.renderer_format import RendererFormat
from hermes_rl.inference.tokens.sampled import Sampled
from hermes_rl.inference.tokens.template_format import TemplateFormat
from hermes_rl.inference.tokens.token_check import Checked, WireLog
from tests.support.chat_models import FAMILIES, ChatModel, chat_model
from tests.support.scripted_engine import WORDS, ScriptedEngine

# Families whose template writes tools by itself.
NATIVE_TOOLS = {"qwen3", "llama3", "mistral", "glm"}
SAMPLINGS = (Sampling(1.0), Sampling(0.7), Sampling(1.0, top_p=0.9, logprobs="processed"))
REQUESTS = 5


class Setting(NamedTuple):
    """A family of models, with its template or its renderer."""

    family: str
    writer: str

    @property
    def model(self) -> ChatModel:
        return chat_model(self.family)

    def __str__(self) -> str:
        return f"{self.family}-{self.writer}"


SETTINGS = tuple(
    Setting(family, writer)
    for family in FAMILIES
    for writer in ("template", "renderer")
    if writer == "template" or chat_model(family).renderer
)


@cache
def format_of(setting: Setting) -> ChatFormat:
    """Shared by all conversations, as in a run: formats learn what a template does."""
    return new_format(setting)


def new_format(setting: Setting) -> ChatFormat:
    model = setting.model
    if setting.writer == "template":
        return TemplateFormat(model.tokenizer, FormatSettings(parser=model.parser, renderer="template"))
    return RendererFormat(model.tokenizer, FormatSettings(parser=model.parser, renderer=str(model.renderer)))


def _tool(name: str) -> dict[str, Any]:
    properties = {"command": {"type": "string"}, "path": {"type": "string"}}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} something",
            "parameters": {"type": "object", "properties": properties},
        },
    }


# What users paste from elsewhere: markers of formats, as text.
HOSTILE = ("<|im_end|>", "<think>", "</think>", "<tool_call>", "[/INST]", "<|eot_id|>", "</s>", "<|user|>")
TOOLS = (_tool("terminal"), _tool("read_file"))
TOOL_LISTS: tuple[list[dict[str, Any]], ...] = ([], [TOOLS[0]], list(TOOLS))


class Exchange(NamedTuple):
    """One request as the engine saw it. `text` is what the template makes of the messages behind it.

    `told` are the words in them that are not the model's.
    """

    prompt: tuple[int, ...]
    completions: tuple[Sampled, ...]
    sampling: Sampling
    text: str
    told: tuple[str, ...]
    first_words: bool
    """There is nothing before this: a conversation begins."""


class Heard(NamedTuple):
    """A conversation and what was answered to it."""

    messages: list[Message]
    reply: Reply


@dataclass(slots=True)
class Played:
    """A conversation that has been had. `refused` counts the requests whose messages cannot be written."""

    setting: Setting
    recorder: Recorder
    ledger: WireLog
    exchanges: list[Exchange] = field(default_factory=list)
    refused: int = 0

    def checked(self) -> Checked:
        return self.ledger.check(self.recorder.sequences(), self.recorder.format)


class Agent:
    """Decides what is sent next. Messages are its own objects, sent again and again, and sometimes changed in place."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.tools = rng.choice(TOOL_LISTS)
        self.sampling = SAMPLINGS[0]
        self.heard: list[Heard] = []

    def next_messages(self) -> list[Message]:
        kind = self.rng.random()
        if not self.heard or kind < 0.03:
            return self._opening()
        heard = self.rng.choice(self.heard) if kind < 0.15 else self.heard[-1]
        if kind > 0.97:
            return heard.messages
        said = self._sent_back(heard.reply)
        messages = [*heard.messages, said, *self._following(said)]
        if self.rng.random() < 0.3:
            messages = self.rng.choice(EDITS)(self.rng, messages)
        if self.rng.random() < 0.03:
            self.tools = self.rng.choice(TOOL_LISTS)
        if self.rng.random() < 0.08:
            self.sampling = self.rng.choice(SAMPLINGS)
        return messages

    def _opening(self) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": "You are terse."}] if self.rng.random() < 0.4 else []
        return [*system, self._asked()]

    def _asked(self) -> Message:
        kind = self.rng.random()
        text = f"Question {self.rng.randrange(100)}: {self.rng.choice(WORDS)}"
        if kind < 0.05:
            text += self.rng.choice(HOSTILE)
        return {"role": "user", "content": [{"type": "text", "text": text}] if kind > 0.97 else text}

    def _sent_back(self, reply: Reply) -> Message:
        message = assistant_message(reply)
        if reply.calls:
            # As the loop does: what could not be read is answered too.
            message["tool_calls"] += [ToolCall.make("", broken.text).as_dict() for broken in reply.broken]
        match self.rng.randrange(12):
            case 0:
                message["content"] = message["content"].strip()
            case 1:
                message["content"] += "\n"
            case 2 if "reasoning_content" in message:
                message["reasoning"] = message.pop("reasoning_content")
            case 3 if not message["content"]:
                message["content"] = None
            case 4 if reply.calls:
                for call in message["tool_calls"]:
                    call["function"]["arguments"] = _spaced_otherwise(call["function"]["arguments"])
            case 5:
                message |= {"tool_calls": message.get("tool_calls"), "refusal": None}
        return message

    def _following(self, said: Message) -> list[Message]:
        results: list[Message] = [
            {"role": "tool", "tool_call_id": call["id"], "content": self.rng.choice(WORDS) + str(place)}
            for place, call in enumerate(said.get("tool_calls") or ())
        ]
        if not results or self.rng.random() < 0.05:
            return [*results, self._asked()]
        return results


def _spaced_otherwise(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), indent=1)
    except ValueError:
        return arguments


def _one(rng: Random, messages: Sequence[Message], *roles: str) -> int | None:
    places = [place for place, message in enumerate(messages) if message["role"] in roles]
    return rng.choice(places) if places else None


def _changed(messages: list[Message], place: int | None, **fields: Any) -> list[Message]:
    if place is None:
        return messages
    return [*messages[:place], {**messages[place], **fields}, *messages[place + 1 :]]


def _drop_thinking(rng: Random, messages: list[Message]) -> list[Message]:
    thinking = ("reasoning_content", "reasoning")
    return [{name: value for name, value in message.items() if name not in thinking} for message in messages]


def _change_answer(rng: Random, messages: list[Message]) -> list[Message]:
    return _changed(messages, _one(rng, messages, "assistant"), content="I was edited.")


def _change_question(rng: Random, messages: list[Message]) -> list[Message]:
    return _changed(messages, _one(rng, messages, "user"), content="Edited question")


def _change_in_place(rng: Random, messages: list[Message]) -> list[Message]:
    place = _one(rng, messages, "user", "tool", "assistant")
    if place is not None:
        messages[place]["content"] = "changed in place"
    return messages


def _change_result(rng: Random, messages: list[Message]) -> list[Message]:
    return _changed(messages, _one(rng, messages, "tool"), content="edited result")


def _clear_results(rng: Random, messages: list[Message]) -> list[Message]:
    return [
        {**message, "content": "[cleared]"} if message["role"] == "tool" and place < len(messages) - 1 else message
        for place, message in enumerate(messages)
    ]


def _compact(rng: Random, messages: list[Message]) -> list[Message]:
    system = [message for message in messages[:1] if message["role"] == "system"]
    said = " / ".join(str(message.get("content"))[:12] for message in messages[len(system) :])
    return [*system, {"role": "user", "content": f"So far: {said}. Go on."}]


def _remove(rng: Random, messages: list[Message]) -> list[Message]:
    place = rng.randrange(len(messages))
    return [*messages[:place], *messages[place + 1 :]] if len(messages) > 1 else messages


def _change_system(rng: Random, messages: list[Message]) -> list[Message]:
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": f"You are number {rng.randrange(9)}."}, *rest]


EDITS: tuple[Callable[[Random, list[Message]], list[Message]], ...] = (
    _drop_thinking,
    _change_answer,
    _change_question,
    _change_in_place,
    _change_result,
    _clear_results,
    _compact,
    _remove,
    _change_system,
)


def play(rng: Random, setting: Setting, chat_format: ChatFormat | None = None) -> Played:
    """One conversation, from its first request to its last."""
    chat_format = chat_format or format_of(setting)
    agent, engine = Agent(rng), ScriptedEngine(rng, setting.model, chat_format.stop_token_ids)
    played = Played(setting, Recorder(chat_format), WireLog())
    for _ in range(rng.randint(2, REQUESTS)):
        waiting = [_ask(agent, played) for _ in range(2 if rng.random() < 0.1 else 1)]
        if rng.random() < 0.5:
            waiting.reverse()
        for asked in waiting:
            if asked is not None:
                _hear(asked, agent, engine, played)
    return played


class _Asked(NamedTuple):
    ask: PreparedPrompt
    messages: list[Message]
    text: str
    told: tuple[str, ...]
    begins: bool
    sampling: Sampling


def _ask(agent: Agent, played: Played) -> _Asked | None:
    messages = agent.next_messages()
    try:
        ask = played.recorder.prepare(messages, agent.tools)
    except EnvironmentCodeError:
        played.refused += 1
        return None
    text = _template_text(played, messages, agent.tools)
    told = tuple(content_text(one.get("content")).strip() for one in messages if one["role"] in {"user", "tool"})
    begins = not any(message["role"] == "assistant" for message in messages)
    return _Asked(ask, messages, text, told, begins, agent.sampling)


def _hear(asked: _Asked, agent: Agent, engine: ScriptedEngine, played: Played) -> None:
    ask = asked.ask
    answer = engine.answer(ask.ids, agent.rng.choice((1, 1, 1, 1, 1, 1, 1, 2, 3)), ask.tools)
    played.ledger.note(ask.ids, answer)
    replies = played.recorder.record(ask, answer.completions, asked.sampling)
    exchange = Exchange(tuple(ask.ids), answer.completions, asked.sampling, asked.text, asked.told, asked.begins)
    played.exchanges.append(exchange)
    agent.heard += [Heard(asked.messages, reply) for reply in replies]


def _template_text(played: Played, messages: Sequence[Message], tools: Tools) -> str:
    """What the model's template makes of a conversation: asked directly where nothing in it needs adapting."""
    plain = all(
        isinstance(message.get("content"), str) and message["role"] != "tool" and not message.get("tool_calls")
        for message in messages
    )
    setting = played.setting
    if setting.writer == "renderer" or not plain or (tools and setting.family not in NATIVE_TOOLS):
        return played.recorder.format.transcript(messages, tools)
    given = [
        {**message, "reasoning_content": message["reasoning"]} if "reasoning" in message else message
        for message in messages
    ]
    return str(
        setting.model.tokenizer.apply_chat_template(
            given, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
        )
    )
