"""The inference server on a free port of this machine, in this process, over a scripted sampler."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.training.inference_server.config import ChatFormats, InferenceSettings
from hermes_rl.training.inference_server.server import inference_server
from hermes_rl.training.live_policy import SamplingPolicy
from tests.support.chat_models import ChatModel, chat_model
from tests.support.scripted_sampler import ScriptedSampler

CONTEXT = 512
CHATML = chat_model("chatml")
USER = {"role": "user", "content": "Make a directory named hello."}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Inference:
    """A server, its policy, and somebody who calls it: status and JSON of each answer, or its bytes."""

    url: str
    policy: SamplingPolicy
    session: aiohttp.ClientSession

    async def __call__(self, path: str, body: Any = None, **request: Any) -> tuple[int, Any]:
        method = "GET" if body is None and not request.get("data") else "POST"
        async with self.session.request(method, path, json=body, **request) as response:
            json = response.content_type == "application/json"
            return response.status, await response.json() if json else await response.read()

    async def right(self, path: str, body: Any) -> Any:
        """The answer to a request that is to be had."""
        status, answer = await self(path, body)
        assert status == 200, answer
        return answer


def ids(text: str, model: ChatModel = CHATML, *, stop: bool = True) -> tuple[int, ...]:
    encoded = model.tokenizer.encode(text, add_special_tokens=False)
    return (*encoded, model.stop_ids[0]) if stop else tuple(encoded)


def saying(*texts: str, model: ChatModel = CHATML, seconds: float = 0.0) -> ScriptedSampler:
    """A sampler that says these in turn, each to its end."""
    said = [ids(text, model) for text in texts]

    def script(_: Sequence[int], __: SamplingRequest, place: int) -> Sequence[int]:
        return said[place % len(said)]

    return ScriptedSampler(script, seconds=seconds)


@asynccontextmanager
async def inference(
    sampler: ScriptedSampler | None,
    *,
    model: ChatModel = CHATML,
    version: int = 3,
    policy: SamplingPolicy | None = None,
    headers: dict[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Inference]:
    """A server whose policy has this sampler; None: no weights yet."""
    policy = policy or SamplingPolicy(patience=0.2)
    if sampler is not None:
        policy.publish(version, sampler)
    formats = ChatFormats(model.tokenizer, FormatSettings(parser=model.parser))
    chosen = InferenceSettings(
        **{"model": "policy", "context_tokens": CONTEXT, "vocabulary": len(model.tokenizer), **settings}
    )
    async with (
        inference_server(policy, formats, chosen) as url,
        aiohttp.ClientSession(url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield Inference(url, policy, session)
