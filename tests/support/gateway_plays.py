"""Rollouts of a real model through the gateway: agents in SDK code that look somewhere with a tool and tell of it.

Always true of a Play: what it heard came by the SDK, and its rollout is the record that the operator got for it. The
model has seen the tool called in worked examples, since a small one does not call otherwise; what it says is sampled.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from itertools import groupby
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
import anthropic
import openai
import uvloop
from google import genai

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.core.trajectory import Rollout
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.gateway.api_keys import ApiKeys
from hermes_rl.gateway.limits import GatewayLimits
from hermes_rl.gateway.rollout import GatewayPolicy, RunSampling
from hermes_rl.gateway.server import GatewayServer
from hermes_rl.gateway.standalone import RolloutTemplate, StandaloneApp
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.factory import chat_format
from hermes_rl.inference.tokens.tokenizer import load_tokenizer
from hermes_rl.store.records import group_from_record
from tests.support.dialects import BODIES, LOOK
from tests.support.sdk_agents import AGENTS, Agent, AnthropicAgent, ChatAgent, GoogleAgent, Heard, ResponsesAgent

SYSTEM = "You have a tool named look. It looks somewhere."
SEEN = (("moon", 417), ("green", 902), ("silver", 358), ("stone", 264))
ASKED, RESULT = "Look at river", "731"
# The prompt teaches the tool; our own lesson would triple what a small model has to read.
SETTINGS = FormatSettings(tool_prompt=False)
WAYS = [(dialect, streamed) for dialect in AGENTS for streamed in (False, True)]
WAY_NAMES = [f"{dialect}-{'streamed' if streamed else 'whole'}" for dialect, streamed in WAYS]
LONGEST_ANSWER = 48
# A model that calls in one of three answers holds out longer in one of three hundred runs.
TRIES = 14
OPERATOR = "operator-token"
SECONDS = 300.0


class Play(NamedTuple):
    """One rollout. `heard` has a second answer when the first held a call, whose result the agent gave back."""

    way: tuple[str, bool]
    heard: tuple[Heard, ...]
    rollout: Rollout

    @property
    def prompt_length(self) -> int:
        return int(self.rollout.metadata["prompt_length"])

    @property
    def prompt(self) -> list[Message]:
        return self.rollout.messages[: self.prompt_length]

    @property
    def answers(self) -> list[Message]:
        """What the record says that the model said."""
        return [one for one in self.rollout.messages[self.prompt_length :] if one["role"] == "assistant"]


def example(thing: str, number: int) -> list[Message]:
    call = ToolCall.make("look", json.dumps({"at": thing}), f"call_{number}")
    return [
        {"role": "user", "content": f"Look at {thing}"},
        {"role": "assistant", "content": "", "tool_calls": [call.as_dict()]},
        {"role": "tool", "tool_call_id": call.id, "content": str(number)},
        {"role": "assistant", "content": f"It says {number}."},
    ]


HISTORY: list[Message] = [
    {"role": "system", "content": SYSTEM},
    *(message for thing, number in SEEN for message in example(thing, number)),
]


def play_all(manager: Callable[[], AbstractAsyncContextManager[ServerManager]], tokenizer: str | None) -> list[Play]:
    """Every dialect, streamed and not, each until a call was made or `TRIES` are over; the rollouts of all tries.

    Without a tokenizer the gateway passes messages on, as with --no-training.
    """

    async def played() -> list[Play]:
        async with manager() as held, _operator(held, tokenizer) as operator:
            ways = [_until_called(operator, way, 1000 * place) for place, way in enumerate(WAYS)]
            return [play for plays in await asyncio.gather(*ways) for play in plays]

    return uvloop.run(played())


def called(plays: list[Play], way: tuple[str, bool]) -> Play:
    """The rollout of this way in which a call was made."""
    tries = [play for play in plays if play.way == way]
    found = [play for play in tries if len(play.heard) == 2]
    assert found, f"no call in {len(tries)} rollouts: {[(play.heard, play.rollout.failure) for play in tries]}"
    return found[0]


def figures(plays: list[Play]) -> str:
    """What was played, in a line."""
    rollouts = [play.rollout for play in plays]
    sequences = [sequence for rollout in rollouts for sequence in rollout.sequences]
    failed = [str(rollout.failure) for rollout in rollouts if rollout.failure]
    return (
        f"{len(plays)} rollouts, {sum(len(play.heard) == 2 for play in plays)} with a call and its result, "
        f"{sum(len(play.heard) for play in plays)} answers, {len(sequences)} sequences, "
        f"{sum(len(sequence.tokens) for sequence in sequences)} tokens, "
        f"{sum(sum(sequence.mask) for sequence in sequences)} of them sampled; failures: {failed or 'none'}"
    )


# --- what has to hold ---


def assert_heard_is_recorded(play: Play) -> None:
    """The record's messages are what the agent sent, and what the SDK gave it."""
    assert list(map(_plain, play.prompt)) == [*map(_plain, HISTORY), {"role": "user", "content": ASKED}]
    assert [_spoken(answer) for answer in play.answers] == [(heard.text, _objects(heard)) for heard in play.heard]
    calls = [call for answer in play.answers for call in answer.get("tool_calls") or ()]
    assert [call["id"] for call in calls] == [call for heard in play.heard for call, _, _ in heard.calls]
    results = [one for one in play.rollout.messages[play.prompt_length :] if one["role"] == "tool"]
    assert [(one["tool_call_id"], one["content"]) for one in results] == [
        (call, RESULT) for heard in play.heard[:-1] for call, _, _ in heard.calls
    ]


def assert_one_conversation(play: Play) -> None:
    """The turn after the tool's result goes on from the first."""
    assert play.rollout.failure is None
    assert play.rollout.metadata["contexts"] == [play.rollout.messages]
    assert "breaches" not in play.rollout.metadata


def assert_encoded(play: Play, tokenizer: Any) -> None:
    """The recorded tokens are the conversation, written down here and encoded anew, around what was sampled."""
    [sequence] = play.rollout.sequences
    stretches = list(spans(sequence))
    assert len(stretches) == len(play.heard)
    form = chat_format(tokenizer, SETTINGS)
    before, read = 0, play.prompt_length
    for (begin, end), heard in zip(stretches, play.heard, strict=True):
        text = _written(play.rollout.messages[:read] if not before else _results(play.rollout.messages[read - 1 :]))
        cut = before and sequence.tokens[before - 1] not in form.stop_token_ids
        # A turn that was cut is ended by the template.
        text = f"{'<|im_end|>' if cut else ''}{chr(10) if before else ''}{text}<|im_start|>assistant\n"
        assert list(sequence.tokens[before:begin]) == tokenizer.encode(text, add_special_tokens=False)
        reply = form.reply(sequence.tokens[begin:end], sequence.tokens[:begin], [LOOK])
        assert reply.content == heard.text
        assert [(call.name, _object(call.arguments)) for call in reply.calls] == _objects(heard)
        before, read = end, read + 2
    assert before == len(sequence.tokens)


def assert_counted(play: Play) -> None:
    """The SDK was told of as many tokens as were sent and sampled."""
    [sequence] = play.rollout.sequences
    assert [heard.tokens for heard in play.heard] == [(begin, end - begin) for begin, end in spans(sequence)]
    assert play.rollout.usage.completion_tokens == sum(sequence.mask)


def logprobs(sequence: TokenSequence) -> list[float]:
    return [logprob for logprob in sequence.logprobs if logprob is not None]


def spans(sequence: TokenSequence) -> Iterator[tuple[int, int]]:
    """Where a sequence's sampled stretches begin and end."""
    at = 0
    for kept, run in groupby(sequence.mask):
        begin, at = at, at + len(list(run))
        if kept:
            yield begin, at


def _spoken(answer: Message) -> tuple[str, list[tuple[str, Any]]]:
    calls = [ToolCall.from_raw(call) for call in answer.get("tool_calls") or ()]
    return answer["content"], [(call.name, _object(call.arguments)) for call in calls]


def _plain(message: Message) -> Message:
    """The message with the arguments of its calls as objects: how JSON is spaced is lost in Anthropic's dialect."""
    calls = [ToolCall.from_raw(call) for call in message.get("tool_calls") or ()]
    plain = [(call.id, call.name, _object(call.arguments)) for call in calls]
    return {**message, "tool_calls": plain} if calls else message


def _objects(heard: Heard) -> list[tuple[str, Any]]:
    return [(name, _object(given)) for _, name, given in heard.calls]


def _object(arguments: Any) -> Any:
    """Arguments as an object. Those that are none are told so in Anthropic's dialect, which has no other way."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return {"INVALID_JSON": arguments}


def _results(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["role"] == "tool"]


def _written(messages: list[Message]) -> str:
    """As SmolLM2 is given them: ChatML, with calls and results as Hermes has them."""
    text = ""
    for message in messages:
        said = message["content"]
        if message["role"] == "tool":
            said = f"<tool_response>\n{said}\n</tool_response>"
        for call in map(ToolCall.from_raw, message.get("tool_calls") or ()):
            written = json.dumps({"name": call.name, "arguments": json.loads(call.arguments)})
            said += f"<tool_call>\n{written}\n</tool_call>"
        text += f"<|im_start|>{message['role']}\n{said}<|im_end|>\n"
    return text


# --- playing ---


@asynccontextmanager
async def _operator(manager: ServerManager, tokenizer: str | None) -> AsyncIterator[aiohttp.ClientSession]:
    """The operator of a gateway before these endpoints."""
    await manager.wait_until_ready(60)
    loaded = load_tokenizer(tokenizer) if tokenizer else None

    @asynccontextmanager
    async def passed_on() -> AsyncIterator[GatewayPolicy]:
        yield manager

    def policy() -> AbstractAsyncContextManager[GatewayPolicy]:
        return passed_on() if loaded is None else manager.managed_server(loaded, settings=SETTINGS)

    terms = RolloutTemplate(
        policy, "small", RunSampling(max_tokens=LONGEST_ANSWER), GatewayLimits(calls=4), lambda: manager.context_tokens
    )
    keys = ApiKeys()
    app = StandaloneApp(keys, terms, OPERATOR)
    async with GatewayServer(keys=keys, app=app) as server:
        app.url = server.url
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        async with aiohttp.ClientSession(server.url, headers=headers) as operator:
            yield operator
        await app.close()


async def _until_called(operator: aiohttp.ClientSession, way: tuple[str, bool], seed: int) -> list[Play]:
    plays: list[Play] = []
    while len(plays) < TRIES and not (plays and len(plays[-1].heard) == 2):
        async with operator.post("/rollouts", json={"seed": seed + 10 * len(plays)}) as response:
            opened = await response.json()
        heard = await asyncio.to_thread(_converse, way, opened)
        async with operator.delete(f"/rollouts/{opened['id']}", json={"score": 1.0}) as response:
            [rollout] = group_from_record(await response.json()).rollouts
        assert rollout.failure or (heard and len(heard) == 1 + bool(heard[0].calls)), heard
        plays.append(Play(way, heard, rollout))
    return plays


class _Way:
    """A rollout's address and key, as its agent has them."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self._held = ExitStack()

    def openai(self) -> openai.OpenAI:
        client = openai.OpenAI(base_url=f"{self._url}/v1", api_key=self._key, max_retries=0, timeout=SECONDS)
        return self._held.enter_context(client)

    def anthropic(self) -> anthropic.Anthropic:
        client = anthropic.Anthropic(base_url=self._url, api_key=self._key, max_retries=0, timeout=SECONDS)
        return self._held.enter_context(client)

    def google(self) -> genai.Client:
        options = genai.types.HttpOptions(base_url=self._url, timeout=int(SECONDS * 1000))
        return self._held.enter_context(genai.Client(api_key=self._key, http_options=options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.close()


def _converse(way: tuple[str, bool], opened: dict[str, Any]) -> tuple[Heard, ...]:
    dialect, streamed = way
    heard: list[Heard] = []
    with _Way(opened["url"], opened["key"]) as provider:
        agent = _with_history(AGENTS[dialect], provider, streamed)
        try:
            heard.append(agent.ask(ASKED))
            for call, _, _ in heard[0].calls:
                agent.give(call, RESULT)
            if heard[0].calls:
                heard.append(agent.go_on())
        except (openai.APIError, anthropic.APIError, genai.errors.APIError):
            # The record of the rollout has to say why.
            pass
    return tuple(heard)


def _with_history(
    kind: type[ChatAgent] | type[ResponsesAgent] | type[AnthropicAgent] | type[GoogleAgent],
    provider: _Way,
    streamed: bool,
) -> Agent:
    body = BODIES[kind.dialect.name](HISTORY)
    if issubclass(kind, ResponsesAgent):
        responses = kind(provider, stream=streamed)
        responses.items = body["input"]
        return responses
    if issubclass(kind, AnthropicAgent):
        messages = kind(provider, stream=streamed, system=body["system"])
        messages.messages = body["messages"]
        return messages
    if issubclass(kind, GoogleAgent):
        contents = kind(provider, stream=streamed, system_instruction=body.get("systemInstruction"))
        contents.contents = body["contents"]
        return contents
    chat = kind(provider, stream=streamed)
    chat.messages = body["messages"]
    return chat
