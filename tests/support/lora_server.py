"""A scripted vLLM that takes adapters while it runs, with the real one's routes and words: for faults and for order.

Each completion is the number that its model's name ends in, or BASE for the base model, so that a test sees which
weights answered.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from tests.support.scripted_model import MODEL_NAME, Status
from tests.support.token_servers import Asked, TokenReply, Tokens, VLLMServer, logprob_of

BASE = 999
LENGTH = 5


class LoraServer(VLLMServer):
    """`fault` answers requests for tokens, `load_fault` those to load.

    While `answering` or `loading` is clear, the one or the other wait.
    """

    def __init__(self, *, port: int = 0) -> None:
        super().__init__(self._reply)
        self._port = port
        self.adapters: dict[str, str] = {}
        self.told: list[tuple[str, str]] = []
        """Each load and unload, in order."""
        self.fault: Callable[[Asked], TokenReply | None] = lambda _asked: None
        self.load_fault: Status | None = None
        self.answering = asyncio.Event()
        self.answering.set()
        self.loading = asyncio.Event()
        self.loading.set()

    @property
    def port(self) -> int:
        return self._port

    @property
    def versions(self) -> set[int]:
        return {_number(name) for name in self.adapters}

    def refusal(self, asked: Asked) -> Status | None:
        model = asked.body["model"]
        if model != MODEL_NAME and model not in self.adapters:
            said = f"The model `{model}` does not exist. Valid aliases: {MODEL_NAME}."
            return Status(404, {"error": {"message": said, "type": "NotFoundError", "param": "model", "code": 404}})
        return super().refusal(asked)

    def answer(self, asked: Asked, completions: Any) -> Any:
        answer = super().answer(asked, completions)
        if "prompt_logprobs" in asked.body:
            rows = [{str(token): {"logprob": logprob_of(token), "rank": 1}} for token in asked.prompt[1:]]
            answer["choices"][0]["prompt_logprobs"] = [None, *rows]
        return answer

    def asked(self, body: Mapping[str, Any]) -> Asked:
        return super().asked({"n": 1, **body})

    def _reply(self, asked: Asked) -> TokenReply:
        model = asked.body["model"]
        written = BASE if model == MODEL_NAME else _number(model)
        return self.fault(asked) or Tokens((written,) * LENGTH)

    async def _send(self, request: web.BaseRequest, body: dict[str, Any], reply: Any) -> web.StreamResponse:
        await self.answering.wait()
        return await super()._send(request, body, reply)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.method, request.path:
            case "POST", "/v1/load_lora_adapter":
                return await self._load(await request.json())
            case "POST", "/v1/unload_lora_adapter":
                return self._unload(await request.json())
            case "GET", "/v1/models":
                base = {"id": MODEL_NAME, "parent": None, "max_model_len": self.context}
                return web.json_response(
                    {"data": [base, *({"id": one, "parent": MODEL_NAME} for one in self.adapters)]}
                )
        return await super()._handle(request)

    async def _load(self, body: Mapping[str, str]) -> web.Response:
        name = body["lora_name"]
        self.told.append(("load", name))
        await self.loading.wait()
        if self.load_fault is not None:
            return web.json_response(self.load_fault.body, status=self.load_fault.status)
        if name in self.adapters:
            said = f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set"
            return web.json_response({"error": {"message": said, "type": "InvalidUserInput", "code": 400}}, status=400)
        self.adapters[name] = body["lora_path"]
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    def _unload(self, body: Mapping[str, str]) -> web.Response:
        name = body["lora_name"]
        self.told.append(("unload", name))
        if self.adapters.pop(name, None) is None:
            said = f"The lora adapter '{name}' cannot be found."
            return web.json_response({"error": {"message": said, "type": "NotFoundError", "code": 404}}, status=404)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


def _number(name: str) -> int:
    found = re.search(r"\d+$", name)
    assert found, name
    return int(found[0])
