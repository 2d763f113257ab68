"""Response parts that several APIs share.

Always true: sampling stops when the client disconnects.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import groupby
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from hermes_rl.core import fast_json
from hermes_rl.inference.policy_pin import VERSION_HEADER
from hermes_rl.inference.tokens.chat_format import ChatFormat
from hermes_rl.inference.tokens.sampled import Sampled
from hermes_rl.training.inference_server.errors import InvalidRequestError
from hermes_rl.training.inference_server.sampling import PromptSamples
from hermes_rl.training.inference_server.schemas import StreamOptions

T = TypeVar("T")
# Decoded from bytes that are not a complete character.
PARTIAL_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def json_response(value: Any) -> Response:
    return Response(fast_json.dumps(value), media_type="application/json")


def sse_response(answer: dict[str, Any], options: StreamOptions | None) -> Response:
    """Server-sent events in OpenAI's form, one per choice, sent together: engines return complete completions."""
    total = answer.pop("usage")
    chunks = [{**answer, "choices": [choice]} for choice in answer["choices"]]
    if options is not None and options.include_usage:
        chunks.append({**answer, "choices": [], "usage": total})
    lines = b"".join(b"data: " + fast_json.dumps(chunk) + b"\n\n" for chunk in chunks)
    return Response(lines + b"data: [DONE]\n\n", media_type="text/event-stream")


def requested_version(request: Request) -> int | None:
    """The policy version that the request asks for in a header; None for the newest."""
    value = request.headers.get(VERSION_HEADER)
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    raise InvalidRequestError(f"{VERSION_HEADER}: {value!r} is not a policy version", param=VERSION_HEADER)


async def run_until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it when the client disconnects."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def usage(results: Sequence[PromptSamples]) -> dict[str, int]:
    prompt = sum(len(result.prompt) for result in results)
    sampled = sum(result.sampled_tokens for result in results)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def oldest_version(results: Sequence[PromptSamples]) -> int | None:
    return min((result.version for result in results if result.version is not None), default=None)


def version_spans(sampled: Sampled) -> list[dict[str, Any]]:
    """The version of each token range, in the form of vLLM and SGLang."""
    spans: list[dict[str, Any]] = []
    start = 0
    for version, tokens in groupby(sampled.versions):
        end = start + len(list(tokens))
        if version is not None:
            spans.append({"version": str(version), "start": start, "end": end})
        start = end
    return spans


def chat_logprobs(sampled: Sampled, chat_format: ChatFormat) -> dict[str, Any]:
    """Logprobs in OpenAI's form. A token that is only part of a character has no `bytes`."""
    texts = [chat_format.decode([token]) for token in sampled.tokens]
    content = [
        {
            "token": text,
            "bytes": None if PARTIAL_CHARACTER in text else list(text.encode()),
            "logprob": logprob,
            "top_logprobs": [],
        }
        for text, logprob in zip(texts, sampled.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}
