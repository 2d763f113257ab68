"""One rollout's agent at the gateway: what it is refused, what it cannot change, and what becomes of its calls."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import anthropic
import openai
import pytest

from hermes_rl.core.errors import EnvironmentCodeError, FailureSource
from hermes_rl.core.trajectory import Span, StopReason
from hermes_rl.gateway.dialects.chat import Chat
from hermes_rl.gateway.limits import GatewayLimits
from hermes_rl.gateway.rollout import RunSampling
from tests.support.gateway import Visit, gateway, heard, says
from tests.support.inference import TOOL, ids
from tests.support.scripted_model import Delayed, Status
from tests.support.token_servers import Asked, Tokens

CHAT = "/v1/chat/completions"
PATHS = [CHAT, "/v1/responses", "/v1/messages"]
SLOW = 0.4


def body(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def slowly(text: str, seconds: float = SLOW) -> Any:
    return lambda _: Delayed(seconds, Tokens(ids(text)))  # type: ignore[arg-type]


async def until(true: Any) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


# --- who may ask ---


async def test_two_rollouts_at_once_never_meet() -> None:
    def script(asked: Asked) -> Tokens:
        return Tokens(ids("red" if "red?" in heard(asked) else "blue"))

    async def converse(agent: Visit, colour: str) -> None:
        messages: list[Any] = []
        for _ in range(5):
            messages.append({"role": "user", "content": f"{colour}?"})
            answer = await agent.openai.chat.completions.create(model="m", messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})

    async with gateway(script) as at, at.visit() as one, at.visit() as other:
        await asyncio.gather(converse(one, "red"), converse(other, "blue"))
        for agent, own, others in ((one, "red", "blue"), (other, "blue", "red")):
            said = str(agent.rollout.transcript().messages)
            assert said.count(f"'{own}'") == 5
            assert others not in said
            [sequence] = agent.checked().sequences
            assert sum(sequence.mask) == 5 * len(ids(own))


async def test_a_key_is_worth_nothing_once_its_rollout_is_closed() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        assert await agent.chat("Are you there?") == "Yes."
        agent.opened.close()
        with pytest.raises(openai.AuthenticationError):
            await agent.chat("And now?")
        with pytest.raises(anthropic.AuthenticationError):
            await agent.anthropic.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "?"}])
        assert at.engine.requests == 1


async def test_a_key_opens_no_url_of_another_rollout() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as one, at.visit() as other:
        status, _ = await one.post(f"{other.opened.path}{CHAT}", body())
        assert status == 401
        assert not other.rollout.calls


@pytest.mark.parametrize("key", ["", "sk-rl-wrong", "sk-rl-" + "x" * 43, "\udcff"])
async def test_a_wrong_key_is_refused(key: str) -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        headers = {"Authorization": f"Bearer {key}".encode("latin-1", "replace").decode("latin-1")}
        status, answer = await agent.post(CHAT, body(), headers=headers)
        assert status == 401
        assert answer["error"]["code"] == "invalid_api_key"


async def test_no_record_of_a_rollout_holds_its_key() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        await agent.chat("hello")
        assert agent.opened.key not in repr(agent.opened)
        assert agent.opened.key not in repr(agent.rollout.transcript())


# --- what may be asked ---


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/files", "/", "/v1/chat", "/metrics", "/v1/messages/batches"])
async def test_other_paths_are_not_found(path: str) -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        status, answer = await agent.post(path, body())
        assert status == 404
        assert answer["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"messages": 1}'])
async def test_garbage_is_a_bad_request_and_costs_a_call(path: str, garbage: bytes) -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        status, answer = await agent.post(path, garbage)
        assert status == 400
        assert answer["error"]["type"] == "invalid_request_error"
        assert (agent.rollout.used.calls, agent.rollout.used.bytes, agent.rollout.failure) == (1, 0, None)
        assert await agent.chat("hello") == "Yes."


async def test_a_body_that_is_too_large_is_cut_off() -> None:
    async with gateway(says("Yes.")) as at, at.visit(bounds=GatewayLimits(call_bytes=200_000)) as agent:
        status, _ = await agent.post(CHAT, body("x" * 300_000))
        assert status == 413
        assert agent.rollout.used.bytes == 0
        assert await agent.chat("hello") == "Yes."


async def test_sampling_is_the_runs_whatever_the_agent_asks_for() -> None:
    sampling = RunSampling(temperature=0.75, max_tokens=64, seed=100, extra_body={"top_k": 7})
    async with gateway(says("Yes.")) as at, at.visit(sampling=sampling) as agent:
        wild: Any = {"temperature": 0.1, "top_p": 0.2, "max_tokens": 5000, "seed": 1, "presence_penalty": 2.0}
        await agent.chat("hello", **wild)
        asked = at.engine.bodies[-1]["sampling_params"]
        assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.75, 1.0, 7)
        assert (asked["max_tokens"], asked["seed"], asked["presence_penalty"]) == (64, 101, 0.0)
        await agent.chat("hello", max_tokens=3)
        asked = at.engine.bodies[-1]["sampling_params"]
        assert (asked["max_tokens"], asked["seed"]) == (3, 102)


async def test_an_agent_may_end_an_answer_at_words_of_its_own() -> None:
    async with gateway(says("one STOP two")) as at, at.visit() as agent:
        assert (await agent.chat("hello", stop=["STOP"])).strip() == "one"
        assert at.engine.bodies[-1]["sampling_params"]["stop"] == ["STOP"]
        [sequence] = agent.checked().sequences
        assert sum(sequence.mask) == len(ids("one STOP two"))


async def test_an_agent_that_wants_no_calls_gets_none() -> None:
    async with gateway(says("Fine.")) as at, at.visit() as agent:
        await agent.chat("hello", tools=[TOOL], tool_choice="none")
        assert "terminal" not in heard(at.engine.asked(at.engine.bodies[-1]))


# --- contexts ---


async def test_every_context_is_a_sequence_and_the_longest_is_the_transcript() -> None:
    async with gateway(says("One.", "Two.", "Three.")) as at, at.visit() as agent:
        await agent.chat("a title for this, please")
        messages: list[Any] = [{"role": "user", "content": "count"}]
        for _ in range(3):
            answer = await agent.openai.chat.completions.create(model="m", messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            messages.append({"role": "user", "content": "go on"})
        compacted = [{"role": "user", "content": "summary: you counted"}, *messages[-1:]]
        await agent.openai.chat.completions.create(model="m", messages=compacted)
        result = agent.rollout.transcript()
        assert [one["content"] for one in result.messages] == ["count", "One.", "go on", "Two.", "go on", "Three."]
        assert [len(context.answers) for context in agent.rollout.conversations] == [1, 3, 1]
        assert len(agent.checked().sequences) == 3
        assert result.turns_used == 5
        assert [timing.span for timing in result.timings] == [Span.MODEL] * 5
        assert result.usage.completion_tokens == sum(map(len, map(ids, ("One.", "One.", "Two.", "Three.", "One."))))


async def test_calls_that_are_alike_and_at_once_are_sampled_apart() -> None:
    async with gateway(slowly("Yes.", 0.2)) as at, at.visit() as agent:
        assert await asyncio.gather(*(agent.chat("again") for _ in range(8))) == ["Yes."] * 8
        assert at.engine.requests == 8
        seeds = {one["sampling_params"].get("seed") for one in at.engine.bodies}
        assert seeds == {None}
        assert len(agent.checked().sequences) == 8


async def test_a_hundred_calls_at_once_are_all_answered_and_bounded() -> None:
    async with gateway(slowly("Yes.", 0.1)) as at, at.visit() as agent:
        said = await asyncio.gather(*(agent.post(CHAT, body(f"number {place}")) for place in range(100)))
        assert [status for status, _ in said] == [200] * 100
        assert at.engine.peak <= 64
        assert len(agent.rollout.conversations) == len(agent.checked().sequences) == 100
        assert (agent.rollout.used.bytes, agent.rollout.used.callers, agent.rollout.used.running_calls) == (0, 0, 0)


# --- callers that leave ---


async def hung_up(calling: asyncio.Task[str]) -> None:
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_an_answer_whose_caller_hung_up_is_recorded_and_given_to_the_second_try() -> None:
    async with gateway(slowly("Yes.")) as at, at.visit() as agent:
        calling = asyncio.create_task(agent.chat("hello"))
        await until(lambda: at.engine.requests)
        await hung_up(calling)
        assert await agent.chat("hello") == "Yes."
        assert at.engine.requests == 1
        assert len(agent.checked().sequences) == 1
        await until(lambda: agent.rollout.used.bytes == 0)


async def test_the_sdks_own_retry_after_a_timeout_shares_the_answer() -> None:
    async with gateway(slowly("Yes.", 1.0)) as at, at.visit(retries=5) as agent:
        assert await agent.chat("hello", timeout=0.6) == "Yes."
        assert at.engine.requests == 1


async def test_a_second_try_after_the_answer_was_sampled_still_gets_it() -> None:
    async with gateway(slowly("Yes.")) as at, at.visit() as agent:
        calling = asyncio.create_task(agent.chat("hello"))
        await until(lambda: at.engine.requests)
        await hung_up(calling)
        await until(lambda: agent.rollout.answered)
        assert await agent.chat("hello") == "Yes."
        assert await agent.chat("hello") == "Yes."
        assert at.engine.requests == 2


async def test_a_caller_that_hangs_up_in_mid_stream_leaves_a_whole_record() -> None:
    async with gateway(slowly("Yes."), ping_seconds=0.05) as at, at.visit() as agent:
        async with agent.session.post(CHAT, json=body(stream=True)) as response:
            assert (await response.content.readline()).startswith(b": ping")
            response.close()
        await until(lambda: agent.rollout.answered and not agent.rollout.used.callers)
        assert agent.rollout.transcript().final_response == "Yes."
        [sequence] = agent.checked().sequences
        assert sum(sequence.mask) == len(ids("Yes."))
        assert agent.rollout.failure is None


async def test_a_stream_that_waits_is_kept_alive_and_then_whole() -> None:
    async with gateway(slowly("Yes."), ping_seconds=0.05) as at, at.visit() as agent:
        stream = await agent.openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        assert "".join([part.choices[0].delta.content or "" async for part in stream if part.choices]) == "Yes."
        given: Any = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
        async with agent.anthropic.messages.stream(**given) as events:
            assert await events.get_final_text() == "Yes."


async def test_closing_ends_the_calls_under_way() -> None:
    async with gateway(slowly("Yes.", 30)) as at, at.visit() as agent:
        calling = asyncio.create_task(agent.post(CHAT, body()))
        await until(lambda: at.engine.requests)
        agent.opened.close()
        status, _ = await calling
        assert status == 503
        await agent.rollout.wait_closed()
        assert agent.rollout.used.running_calls == 0
        assert agent.rollout.failure is None


# --- bounds ---


async def test_the_last_call_allowed_is_answered_and_the_next_is_refused_for_good() -> None:
    async with gateway(says("Yes.")) as at, at.visit(bounds=GatewayLimits(calls=2), retries=5) as agent:
        assert [await agent.chat("hello"), await agent.chat("hello")] == ["Yes."] * 2
        assert agent.rollout.stop is None
        with pytest.raises(openai.RateLimitError):
            await agent.chat("hello")
        assert at.engine.requests == 2
        assert agent.rollout.stop is StopReason.MAX_TURNS


async def test_tokens_beyond_the_deadline_end_the_rollout() -> None:
    bounds = GatewayLimits(deadline=0.05, seconds_per_token=0.02)
    async with gateway(says("Yes, and more of it.")) as at, at.visit(bounds=bounds) as agent:
        await agent.chat("hello")
        with pytest.raises(openai.RateLimitError):
            await agent.chat("hello")
        assert agent.rollout.stop is StopReason.DEADLINE


async def test_calls_that_waited_while_others_used_the_time_up_are_not_sampled() -> None:
    bounds = GatewayLimits(calls_at_once=1, deadline=0.05, seconds_per_token=0.02)
    async with gateway(says("Yes, and more of it.")) as at, at.visit(bounds=bounds) as agent:
        said = await asyncio.gather(*(agent.post(CHAT, body(f"number {place}")) for place in range(5)))
        assert sorted(status for status, _ in said) == [200, 429, 429, 429, 429]
        assert (at.engine.requests, agent.rollout.stop) == (1, StopReason.DEADLINE)


async def test_a_flood_is_refused_and_another_rollout_is_answered_meanwhile() -> None:
    async def knock(agent: Visit, place: int) -> int:
        async with agent.session.post(CHAT, json=body(f"number {place}")) as response:
            return response.status

    bounds = GatewayLimits(calls_at_once=4, calls_waiting=12)
    async with gateway(slowly("Yes.", 0.2)) as at, at.visit(bounds=bounds) as wild, at.visit() as calm:
        flood = [asyncio.create_task(knock(wild, place)) for place in range(500)]
        await until(lambda: wild.rollout.used.refusals > 50)
        assert await calm.chat("hello") == "Yes."
        statuses = await asyncio.gather(*flood)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) < 250
        assert wild.rollout.failure is None
        assert calm.rollout.used.refusals == 0
        assert at.engine.peak <= 4 + 1


# --- faults of the world, and full contexts ---


async def test_a_fault_of_the_endpoint_fails_the_rollout_even_if_the_agent_goes_on() -> None:
    answers: Iterator[Tokens | Status] = iter([Tokens(ids("Yes.")), Status(500)])
    async with gateway(lambda _: next(answers)) as at, at.visit() as agent:
        await agent.chat("hello")
        with pytest.raises(openai.InternalServerError):
            await agent.chat("hello")
        with pytest.raises(anthropic.InternalServerError):
            await agent.anthropic.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "?"}])
        assert at.engine.requests == 2
        failure = agent.rollout.final_failure()
        assert failure
        assert (failure.whose, failure.cause) == (FailureSource.ENDPOINT, "http_500")
        assert agent.rollout.failed.is_set()


async def test_a_fault_after_the_stream_began_is_an_event_of_it() -> None:
    async with gateway(lambda _: Delayed(SLOW, Status(500)), ping_seconds=0.05) as at, at.visit() as agent:
        stream = await agent.openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        with pytest.raises(openai.APIError):
            [part async for part in stream]
        assert agent.rollout.final_failure()


async def test_a_policy_that_raises_is_a_failure_of_the_framework() -> None:
    class Broken:
        async def chat_completion(self, messages: Any, **parameters: Any) -> Any:
            raise RuntimeError("secret detail")

    async with gateway(says("Yes.")) as at, at.visit() as agent:
        agent.rollout.policy = Broken()
        status, answer = await agent.post(CHAT, body())
        assert status == 500
        assert "secret" not in str(answer)
        failure = agent.rollout.final_failure()
        assert failure
        assert failure.whose is FailureSource.FRAMEWORK


async def test_a_conversation_that_the_template_cannot_write_is_a_bad_request() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        right, wrong = agent.managed.chat_completion, EnvironmentCodeError("template", "roles must alternate")
        agent.rollout.policy = SimpleNamespace(chat_completion=AsyncMock(side_effect=wrong))
        status, answer = await agent.post(CHAT, body())
        assert (status, agent.rollout.failure) == (400, None)
        assert "alternate" in answer["error"]["message"]
        assert agent.rollout.final_failure()
        agent.rollout.policy = SimpleNamespace(chat_completion=right)
        assert await agent.chat("hello") == "Yes."
        assert agent.rollout.final_failure() is None


async def test_what_is_no_http_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        host, port = at.server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x00\xff nonsense\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        assert await agent.chat("hello") == "Yes."
        assert not caplog.records


async def test_an_answer_that_cannot_be_told_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        monkeypatch.setattr(Chat, "answer", lambda *_: 1 / 0)
        status, _ = await agent.post(CHAT, body())
        assert status == 500
        assert agent.rollout.final_failure()


async def test_a_request_that_breaks_its_reader_is_a_bad_one_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        monkeypatch.setattr(Chat, "parse_request", lambda *_: 1 / 0)
        status, _ = await agent.post(CHAT, body())
        assert (status, agent.rollout.failure, agent.rollout.used.bytes) == (400, None, 0)


async def test_a_full_context_is_told_in_the_providers_words_and_the_agent_may_compact() -> None:
    async with gateway(says("Yes."), context=120) as at, at.visit() as agent:
        assert await agent.chat("hello") == "Yes."
        with pytest.raises(openai.BadRequestError) as caught:
            await agent.chat("word " * 200)
        assert caught.value.code == "context_length_exceeded"
        long: Any = [{"role": "user", "content": "word " * 200}]
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await agent.anthropic.messages.create(model="m", max_tokens=5, messages=long)
        stopped = agent.rollout.stop
        assert await agent.chat("shorter") == "Yes."
        assert (stopped, agent.rollout.stop, agent.rollout.final_failure()) == (StopReason.CONTEXT_FULL, None, None)


async def test_a_first_request_that_does_not_fit_is_nobodys_play() -> None:
    async with gateway(says("Yes."), context=64) as at, at.visit() as agent:
        with pytest.raises(openai.BadRequestError):
            await agent.chat("word " * 200)
        failure = agent.rollout.final_failure()
        assert failure
        assert (failure.whose, failure.cause) == (FailureSource.ENVIRONMENT, "prompt_too_long")


async def test_what_cannot_fit_is_not_even_encoded() -> None:
    async with gateway(says("Yes."), context=120) as at, at.visit() as agent:
        status, answer = await agent.post(CHAT, body("x" * 100_000))
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert at.engine.requests == 0


async def test_an_answer_cut_by_the_runs_length_is_the_reason_to_stop() -> None:
    async with gateway(says("a long answer that goes on")) as at, at.visit(sampling=RunSampling(max_tokens=3)) as agent:
        await agent.chat("hello")
        assert agent.rollout.stop is StopReason.LENGTH


async def test_an_answer_that_the_agent_wanted_short_is_none() -> None:
    async with gateway(says("a long answer that goes on")) as at, at.visit() as agent:
        await agent.chat("hello", max_tokens=3)
        assert agent.rollout.stop is None
