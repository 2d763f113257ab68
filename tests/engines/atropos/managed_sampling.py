"""atroposlib's own servers and the official openai client against an inference server: what they made of its answers.

managed_sampling.py URL TOKENIZER

Run where atroposlib is. Prints one JSON object.
"""

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

MESSAGES = [{"role": "user", "content": "Make a directory named hello."}]
TOOL = {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object", "properties": {}}}}


def endpoint(kind: str) -> dict[str, Any]:
    url, folder = sys.argv[1:]
    named = {"base_url": f"{url}/v1", "model_name": "policy", "tokenizer_name": folder, "api_key": "x"}
    return {**named, "server_type": kind, "timeout": 30, "health_check": False}


async def managed() -> Any:
    handling = import_module("atroposlib.envs.server_handling.server_manager")
    tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(sys.argv[2])
    server = handling.ServerManager(configs=[handling.APIServerConfig(**endpoint("sglang"))])
    async with server.managed_server(tokenizer=tokenizer) as one:
        answer = await one.chat_completion(messages=MESSAGES, n=4, max_tokens=40, temperature=1.0)
        nodes = one.get_state()["nodes"]
    return {
        "contents": [choice.message.content for choice in answer.choices],
        "finish_reasons": [choice.finish_reason for choice in answer.choices],
        "nodes": [[node.tokens, node.masked_tokens, node.logprobs] for node in nodes],
    }


async def official() -> Any:
    openai = import_module("openai")
    async with openai.AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="x", max_retries=0) as client:
        asked = {"model": "policy", "messages": MESSAGES, "tools": [TOOL], "max_tokens": 60}
        whole = await client.chat.completions.create(**asked, logprobs=True)
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
        text = await client.completions.create(model="policy", prompt="Say:", max_tokens=60, logprobs=1)
        models = await client.models.list()
        refused = {}
        try:
            await client.chat.completions.create(**{**asked, "temperature": -1})
        except openai.BadRequestError as error:
            refused = {"param": error.param, "type": error.type}
    return {
        "whole": whole.model_dump(),
        "chunks": [chunk.model_dump() for chunk in chunks],
        "text": text.model_dump(),
        "models": [model.id for model in models.data],
        "refused": refused,
    }


async def main() -> None:
    print(json.dumps({"managed": await managed(), "official": await official()}))


if __name__ == "__main__":
    asyncio.run(main())
