"""Answers: the pieces that several forms of them share, and how they are sent.

Always true: nothing is sampled for a caller who has gone.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from hermes_rl import jsontext
from hermes_rl.tokens.chat_format import ChatFormat
from hermes_rl.tokens.exchange import Sampled
from hermes_rl.training.inference_server.drawing import Drawn

T = TypeVar("T")
# What stands for bytes that are no whole character.
PART_OF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def as_json(value: Any) -> Response:
    return Response(jsontext.dumps(value), media_type="application/json")


def as_events(chunks: Iterable[Mapping[str, Any]]) -> Response:
    """Server-sent events in OpenAI's form, all at once: engines give whole completions."""
    lines = b"".join(b"data: " + jsontext.dumps(chunk) + b"\n\n" for chunk in chunks)
    return Response(lines + b"data: [DONE]\n\n", media_type="text/event-stream")


async def attended(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What comes of the work; it ends with its caller, whose connection tells."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def usage(drawn: Sequence[Drawn]) -> dict[str, int]:
    prompt = sum(len(one.prompt) for one in drawn)
    sampled = sum(one.sampled_tokens for one in drawn)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def oldest_version(drawn: Sequence[Drawn]) -> int | None:
    return min((one.version for one in drawn if one.version is not None), default=None)


def version_spans(sampled: Sampled) -> list[dict[str, Any]]:
    """Which weights drew which tokens, as vLLM and SGLang say it."""
    spans: list[dict[str, Any]] = []
    start = 0
    for version, tokens in groupby(sampled.versions):
        end = start + len(list(tokens))
        if version is not None:
            spans.append({"version": str(version), "start": start, "end": end})
        start = end
    return spans


def chat_logprobs(sampled: Sampled, chat_format: ChatFormat) -> dict[str, Any]:
    """In OpenAI's form. A token that is only part of a character has no bytes that a text could be made of."""
    texts = [chat_format.decode([token]) for token in sampled.tokens]
    content = [
        {
            "token": text,
            "bytes": None if PART_OF_A_CHARACTER in text else list(text.encode()),
            "logprob": logprob,
            "top_logprobs": [],
        }
        for text, logprob in zip(texts, sampled.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}
