"""A gateway on a free port of this machine over a scripted engine of token ids, and the SDKs of the providers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from hermes_rl.gateway.api_keys import ApiKey, ApiKeys
from hermes_rl.gateway.app import PING_SECONDS, GatewayApp
from hermes_rl.gateway.limits import GatewayLimits
from hermes_rl.gateway.rollout import GatewayRollout, RunSampling
from hermes_rl.gateway.server import GatewayServer
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.inference.server_manager import RetryPolicy, ServerManager
from hermes_rl.inference.tokens.token_check import Checked
from tests.support.inference import CHATML, ids
from tests.support.token_servers import Tokens, TokenScript, VLLMServer

CALL = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>'


@dataclass(frozen=True, slots=True)
class Visit:
    """One rollout's agent: its pass, and clients that have its key."""

    opened: ApiKey
    managed: ManagedServer
    url: str
    openai: AsyncOpenAI
    anthropic: AsyncAnthropic
    session: aiohttp.ClientSession

    @property
    def rollout(self) -> GatewayRollout:
        return self.opened.rollout

    def checked(self) -> Checked:
        return self.managed.checked()

    async def chat(self, *texts: str, **options: Any) -> str:
        """The policy's word on what a user says, by the SDK."""
        messages: Any = [{"role": "user", "content": text} for text in texts]
        answer = await self.openai.chat.completions.create(model="policy", messages=messages, **options)
        return str(answer.choices[0].message.content)

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        """Status and JSON of a request that no SDK would make."""
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.session.post(path, **sent, **options) as response:
            return response.status, await response.json()


@dataclass(frozen=True, slots=True)
class Gateway:
    engine: VLLMServer
    manager: ServerManager
    server: GatewayServer

    @asynccontextmanager
    async def visit(
        self, *, sampling: RunSampling | None = None, bounds: GatewayLimits | None = None, retries: int = 0
    ) -> AsyncIterator[Visit]:
        """A rollout whose agent knocks at the gateway's port."""
        async with self.manager.managed_server(CHATML.tokenizer) as managed:
            terms, context = sampling or RunSampling(max_tokens=256), self.manager.context_tokens
            opened = self.server.keys.open(GatewayRollout(managed, terms, bounds, context_tokens=context))
            url = self.server.rollout_url(opened)
            headers = {"Authorization": f"Bearer {opened.key}"}
            async with (
                opened,
                AsyncOpenAI(base_url=f"{url}/v1", api_key=opened.key, max_retries=retries, timeout=60) as openai,
                AsyncAnthropic(base_url=url, api_key=opened.key, max_retries=retries, timeout=60) as anthropic,
                aiohttp.ClientSession(
                    self.server.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)
                ) as session,
            ):
                yield Visit(opened, managed, url, openai, anthropic, session)


@asynccontextmanager
async def gateway(
    script: TokenScript, *, context: int = 4096, ping_seconds: float = PING_SECONDS, timeout: float = 60
) -> AsyncIterator[Gateway]:
    keys = ApiKeys()
    async with VLLMServer(script, context=context) as engine:
        config = APIServerConfig.model_validate(
            {"base_url": engine.base_url, "model_name": "scripted", "server_type": "vllm", "timeout": timeout}
            | {"max_retries": 0, "num_max_requests_at_once": 2048}
        )
        app = GatewayApp(keys, ping_seconds=ping_seconds)
        async with (
            ServerManager([config], retries=RetryPolicy(0.01, 0.02, 0.05)) as manager,
            GatewayServer(keys=keys, app=app) as server,
        ):
            await manager.wait_until_ready(30)
            yield Gateway(engine, manager, server)


def says(*texts: str) -> TokenScript:
    """An engine that says these in turn, by how often the policy spoke in the conversation before."""
    said = [ids(text) for text in texts]

    def script(asked: Any) -> Tokens:
        written = CHATML.tokenizer.decode(asked.prompt, skip_special_tokens=False)
        return Tokens(said[(written.count("<|im_start|>assistant") - 1) % len(said)])

    return script


def heard(asked: Any) -> str:
    """What an engine was asked, as text."""
    return str(CHATML.tokenizer.decode(asked.prompt, skip_special_tokens=False))
