"""A chat endpoint that answers a prompt as recorded, streamed or not, by the last user message."""

import json
from collections.abc import Mapping

from aiohttp import web


def make_app(answers: Mapping[str, str]) -> web.Application:
    """`answers` has the answer to each prompt."""

    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        last = [message["content"] for message in body["messages"] if message["role"] == "user"][-1]
        prompt = last if isinstance(last, str) else "".join(part["text"] for part in last)
        about = {"id": "recorded", "created": 0, "model": "recorded"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        message = {"role": "assistant", "content": answers[prompt]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response({**about, "object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunk = {**about, "object": "chat.completion.chunk"}
        for part in (
            {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**chunk, "choices": [], "usage": usage},
        ):
            await response.write(f"data: {json.dumps(part)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", chat)])
    return app
