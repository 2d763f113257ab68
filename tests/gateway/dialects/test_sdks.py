"""The official SDKs read every answer, whole or as a stream, and what they send back is what the policy said."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from hermes_rl.core import fast_json
from hermes_rl.core.messages import ToolCall
from hermes_rl.core.trajectory import Sampling
from hermes_rl.gateway.dialects import ANTHROPIC, DIALECTS, GOOGLE, RESPONSES, Dialect
from hermes_rl.gateway.dialects.reply import INVALID, AgentReply
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.inference.completion import ChatCompletion
from hermes_rl.inference.tokens.recorder import Recorder, same_message
from tests.support.dialects import Line, answers, told
from tests.support.letter_format import LetterFormat, said
from tests.support.sdk_agents import AGENTS, Heard, ResponsesAgent

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
# An SDK builds its types when they are first used, which takes seconds on a busy machine.
patient = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])

FINISHES = {
    "chat": {"context_full": "length"},
    "responses": {
        "stop": "completed",
        "tool_calls": "completed",
        "length": "max_output_tokens",
        "context_full": "max_output_tokens",
    },
    "anthropic": {
        "stop": "end_turn",
        "tool_calls": "tool_use",
        "length": "max_tokens",
        "context_full": "model_context_window_exceeded",
        "content_filter": "refusal",
    },
    "google": {
        "stop": "STOP",
        "tool_calls": "STOP",
        "length": "MAX_TOKENS",
        "context_full": "MAX_TOKENS",
        "content_filter": "SAFETY",
    },
}


def expected(dialect: Dialect, answer: ChatCompletion) -> Heard:
    choice = answer.choices[0]
    message, finish = choice.message, str(choice.finish_reason)
    calls: list[tuple[str, str, Any]] = [
        (call.id, call.name, _object(call) if dialect in {ANTHROPIC, GOOGLE} else call.arguments)
        for call in message.tool_calls
    ]
    told_finish = FINISHES[dialect.name].get(finish, finish)
    return Heard(message.content or "", message.reasoning_content or "", calls, told_finish, (11, 7))


def _object(call: ToolCall) -> dict[str, Any]:
    try:
        read = fast_json.loads(call.arguments)
    except ValueError:
        read = None
    return read if isinstance(read, dict) and set(read) != {INVALID} else {INVALID: call.arguments}


@streaming
@each_dialect
@given(answer=answers())
@patient
def test_the_sdk_reads_what_the_policy_said(dialect: Dialect, stream: bool, answer: ChatCompletion) -> None:
    heard = AGENTS[dialect.name](Line(dialect, [answer]), stream=stream).ask("hello")
    assert heard == expected(dialect, answer)


@streaming
@each_dialect
@given(answer=answers())
@patient
def test_what_the_sdk_sends_back_is_what_the_policy_said(
    dialect: Dialect, stream: bool, answer: ChatCompletion
) -> None:
    line = Line(dialect, [answer, told("done", number=1)])
    agent = AGENTS[dialect.name](line, stream=stream)
    heard = agent.ask("hello")
    for call, _, _ in heard.calls:
        agent.give(call, "seen")
    agent.ask("and now?")
    sent, kept = line.asked[1].messages[1], AgentReply.from_choice(line.asked[0], answer.choices[0]).message
    assert same_message(sent, kept)
    assert [one["role"] for one in line.asked[1].messages[2:]] == [*["tool"] * len(heard.calls), "user"]


@given(answer=answers())
@patient
def test_an_answer_that_is_only_named_is_what_the_policy_said(answer: ChatCompletion) -> None:
    line = Line(RESPONSES, [answer, told("done", number=1)])
    agent = ResponsesAgent(line, by_id=True)
    heard = agent.ask("hello")
    for call, _, _ in heard.calls:
        agent.give(call, "seen")
    agent.ask("and now?")
    assert line.asked[1].messages[1] == AgentReply.from_choice(line.asked[0], answer.choices[0]).message
    assert line.asked[1].messages[0] == line.asked[0].messages[0]


class Policy:
    """A policy with a recorder; it says what is scripted."""

    def __init__(self, *script: str) -> None:
        self.recorder, self._script = Recorder(LetterFormat()), list(script)

    def answer(self, asked: AgentRequest, number: int) -> ChatCompletion:
        ask = self.recorder.prepare(asked.messages, asked.tools)
        reply = self.recorder.record(ask, [said(self._script.pop(0))], Sampling(1.0))[0]
        return told(reply.content, *reply.calls, thinking=reply.reasoning, number=number)


class PolicyLine(Line):
    """A line whose answers come from a policy, once it knows what was asked."""

    def __init__(self, dialect: Dialect, policy: Policy) -> None:
        super().__init__(dialect, ())
        self._policy = policy

    def answer_to(self, asked: AgentRequest) -> ChatCompletion:
        return self._policy.answer(asked, len(self.asked))


SCRIPT = ("(hm)well[look]|", "(so)[look]|", "here|", "(last) that was all |")


@streaming
@pytest.mark.parametrize("name", [*AGENTS, "by_id"])
def test_all_turns_of_an_agent_are_one_sequence(name: str, stream: bool) -> None:
    policy = Policy(*SCRIPT)
    dialect = RESPONSES if name == "by_id" else AGENTS[name].dialect
    line = PolicyLine(dialect, policy)
    agent = ResponsesAgent(line, stream=stream, by_id=True) if name == "by_id" else AGENTS[name](line, stream=stream)
    heard = agent.ask("find it")
    while heard.calls:
        agent.give(heard.calls[0][0], "nothing")
        heard = agent.go_on()
    agent.ask("thanks")
    (recorded,) = policy.recorder.sequences()
    sampled = [chr(token) for token, mask in zip(recorded.sequence.tokens, recorded.sequence.mask, strict=True) if mask]
    assert "".join(sampled) == "".join(SCRIPT)
