"""A real llama.cpp as an engine of token ids: its /completion in the words of vLLM's /inference/v1/generate.

Always true: every id and logprob is llama.cpp's own. It tells no logprob of a token that is half a letter; such an
answer is passed on without logprobs, and is then refused as one that cannot be trained on.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from hermes_rl.core.trajectory import Sequence as TokenSequence

SECONDS = 300.0
# Far above any logit: the token is drawn whatever its odds, and what is told of it is the model's own.
CERTAIN = 1e6


@asynccontextmanager
async def token_engine(root: str) -> AsyncIterator[str]:
    """The base_url of an engine that has the llama.cpp server at `root` behind it."""

    async def generate(request: web.Request) -> web.Response:
        asked = await request.json()
        return web.json_response(_generated(await post(session, f"{root}/completion", _completion(asked))))

    async def models(_: web.Request) -> web.Response:
        async with session.get(f"{root}/v1/models") as response:
            return web.json_response(await response.json())

    app = web.Application()
    app.add_routes([web.post("/inference/v1/generate", generate), web.get("/v1/models", models)])
    runner = web.AppRunner(app, access_log=None)
    async with llama_cpp_session() as session:
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()


def llama_cpp_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS))


async def rescored(root: str, sequences: Sequence[TokenSequence], every: int = 1) -> list[dict[int, float]]:
    """What llama.cpp gives the sampled tokens of each sequence when it is handed that: {place: logprob}.

    `every` 3 asks for the last of them and each third before it. The last is asked for first: for that the
    sequence is read at once, and not token by token as when it was sampled. The others are asked of what was read.
    """
    scores: list[dict[int, float]] = []
    async with llama_cpp_session() as session:
        for sequence in sequences:
            places = [place for place, kept in enumerate(sequence.mask) if kept][::-every]
            # What the server still has from sampling is not used; prompts that are alike are read once.
            told = {
                place: await _score(
                    session, root, sequence.tokens[: place + 1], cached=bool(scores) or place != places[0]
                )
                for place in places
            }
            scores.append(told)
    return scores


async def _score(session: aiohttp.ClientSession, root: str, tokens: Sequence[int], *, cached: bool) -> float:
    """The logprob of the last of these tokens."""
    *prompt, token = tokens
    forced = {"temperature": 0.0, "logit_bias": [[token, CERTAIN]], "id_slot": 0, "cache_prompt": cached}
    [told] = (await post(session, f"{root}/completion", _drawn(prompt, 1) | forced))["completion_probabilities"]
    assert told["id"] == token
    return float(told["logprob"])


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(url, json=body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


def _drawn(prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    return {"prompt": list(prompt), "n_predict": tokens, "n_probs": 1, "return_tokens": True}


def _completion(asked: dict[str, Any]) -> dict[str, Any]:
    drawn = asked["sampling_params"]
    same = ("temperature", "top_p", "min_p", "seed")
    assert drawn["n"] == 1 and "stop" not in drawn, "not translated"
    body = {**_drawn(asked["token_ids"], drawn["max_tokens"]), **{name: drawn[name] for name in same}}
    return body | {"top_k": max(drawn["top_k"], 0)}


def _generated(answer: dict[str, Any]) -> dict[str, Any]:
    told = answer["completion_probabilities"]
    content = [{"token_id": one["id"], "logprob": one["logprob"]} for one in told]
    whole = len(content) == len(answer["tokens"])
    choice = {
        "token_ids": answer["tokens"],
        "logprobs": {"content": content} if whole else None,
        "finish_reason": "length" if answer["stop_type"] == "limit" else "stop",
    }
    return {"choices": [choice], "usage": {"prompt_tokens": answer["tokens_evaluated"]}}
