"""Runs an agent that lives elsewhere, behind `agent_url`: it gets a task and a way to the model, and says how it ended.

    POST agent_url      the task, a `Task` as JSON            200 an outcome, or 202 {status_url}
    GET status_url      202 or {"status": "running"}, or      200 an outcome
    DELETE status_url   the rollout is over: stop

An outcome is {"status": "completed" or "failed", "output": text, "files": {path: text}}. The agent reaches the model
through the gateway only, with a key that is valid while it runs. It is scored however it ended after the model's first
answer; an agent that never asked the model is the environment's failure.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from hermes_rl.agent.result import AgentResult, ProgramEnd
from hermes_rl.core import fast_json
from hermes_rl.core.backoff import backoff_seconds
from hermes_rl.core.messages import Message
from hermes_rl.core.secrets import resolve_key
from hermes_rl.gateway.api_keys import ApiKey
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.external.program import prompt_text
from hermes_rl.rollout.external.run import GatewayAgent, stop_reason, truncate_output
from hermes_rl.tools.files import sandbox_path

POLL_SECONDS, MAX_POLL_SECONDS = 1.0, 30.0
# Of a task that was not accepted, and of a status that cannot be read.
ATTEMPTS = 4
BUSY = (429, 502, 503, 504)
CONNECT_SECONDS, STATUS_SECONDS, STOP_SECONDS = 10.0, 60.0, 5.0
MAX_ANSWER_BYTES = 32 * 2**20
COMPLETED, FAILED = 0, 1
"""How the two outcomes are recorded, as exit codes of a program."""


@dataclass(frozen=True, slots=True)
class Task:
    """What the agent is sent. `base_url` is for OpenAI's clients, `url` for Anthropic's; `key` is for both.

    `seconds` is the time of the agent's own work and of the model's tokens; `max_calls` limits the model calls.
    """

    rollout: str
    prompt: str
    messages: Sequence[Message]
    base_url: str
    url: str
    key: str
    model: str
    context_tokens: int | None
    max_calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Service:
    """Where the agent lives, and where it finds our gateway, if that is not the address that the gateway listens on."""

    url: URL
    headers: Mapping[str, str]
    gateway_url: str | None

    @classmethod
    def from_config(cls, config: HermesAgentEnvConfig) -> "Service":
        """ConfigError when the token cannot be read."""
        token = config.agent_token
        headers = {"Authorization": f"Bearer {resolve_key(token, '--env.agent_token')}"} if token else {}
        return cls(URL(str(config.agent_url)), headers, config.gateway_url)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the agent ended. `files` are those it made, by their path in the workspace."""

    completed: bool
    output: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


class ServiceError(Exception):
    """The service was not reached, refused, or broke off. `retryable`: the request had no effect, or reads only."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ServiceAgent(GatewayAgent):
    """Runs the agent of a service."""

    def __init__(self, service: Service, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._service = service

    async def run(self, messages: Sequence[Message]) -> AgentResult:
        """Run until the agent ends or is stopped. `messages` is not modified."""
        rollout = self._begin(messages)
        async with self._gateway.keys.open(rollout) as api_key:
            try:
                end, files = await self._play(api_key, messages)
            finally:
                # Before the key is revoked, which cancels calls in flight: that must not be recorded as their outcome.
                self._record_transcript(rollout)
        self.result.program = end
        stop = stop_reason(rollout, end, remote=True)
        await self._place(files)
        return self._end(end, stop)

    async def _play(self, api_key: ApiKey, messages: Sequence[Message]) -> tuple[ProgramEnd, Mapping[str, str]]:
        service, limits, began = self._service, self._limits, time.monotonic()
        url = (service.gateway_url or self._gateway.url).rstrip("/") + api_key.path
        task = Task(
            rollout=self._session.task_id,
            prompt=prompt_text(messages),
            messages=messages,
            base_url=f"{url}/v1",
            url=url,
            key=api_key.key,
            model=limits.model,
            context_tokens=limits.context_tokens,
            max_calls=limits.calls,
            seconds=limits.deadline,
        )
        async with aiohttp.ClientSession(headers=service.headers) as http:
            play = _Play(http, service.url)
            running = asyncio.ensure_future(play.outcome(task))
            try:
                stopped = await self._wait_for_stop(running, api_key.rollout)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                if running.cancelled():
                    await play.stop()
        outcome = None if running.cancelled() else running.result()
        output = "" if outcome is None else outcome.output
        exit_code = None if outcome is None else COMPLETED if outcome.completed else FAILED
        end = ProgramEnd(
            exit_code=exit_code,
            output=truncate_output(output, truncated=False),
            seconds=round(time.monotonic() - began, 6),
            ended_for=stopped,
        )
        return end, {} if outcome is None else outcome.files

    async def _place(self, files: Mapping[str, str]) -> None:
        """Write the agent's files to the rollout's sandbox, where the reward looks for them."""
        if not files:
            return
        sandbox = await self._session.sandbox()
        for name, content in files.items():
            # A path that cannot be written is the agent's doing: the reward sees that the file is not there.
            with suppress(OSError):
                await sandbox.write(sandbox_path(sandbox, name), content.encode(errors="replace"))


class _Play:
    """One task at the service, from its start to its outcome."""

    def __init__(self, http: aiohttp.ClientSession, url: URL) -> None:
        self._http = http
        self._url = url
        self._status_url: URL | None = None

    async def outcome(self, task: Task) -> Outcome:
        try:
            body = fast_json.dumps(asdict(task))
            status, answer, wait = await self._repeated("POST", self._url, body)
            while status == 202 or answer.get("status") == "running":
                self._status_url = self._status_url or self._find_status_url(answer)
                await asyncio.sleep(wait)
                status, answer, wait = await self._repeated("GET", self._status_url)
            return _read_outcome(answer)
        except ServiceError as error:
            return Outcome(completed=False, output=str(error))

    async def stop(self) -> None:
        """Tell the service that nobody waits for the outcome. A request that waits for it is broken off anyway."""
        if self._status_url is not None:
            with suppress(ServiceError, TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._request("DELETE", self._status_url)

    def _find_status_url(self, answer: Mapping[str, Any]) -> URL:
        given = answer.get("status_url")
        if not isinstance(given, str):
            raise ServiceError(f"{self._url} accepted the task, and its answer has no status_url")
        found = self._url.join(URL(given))
        if found.origin() != self._url.origin():
            raise ServiceError(f"the status_url {found} is not on the server of agent_url")
        return found

    async def _repeated(self, method: str, url: URL, body: bytes | None = None) -> tuple[int, dict[str, Any], float]:
        for attempt in range(ATTEMPTS):
            try:
                return await self._request(method, url, body)
            except ServiceError as error:
                if not error.retryable or attempt == ATTEMPTS - 1:
                    raise
            await asyncio.sleep(backoff_seconds(attempt, initial=0.5, maximum=5.0))
        raise AssertionError("the last attempt returns or raises")

    async def _request(self, method: str, url: URL, body: bytes | None = None) -> tuple[int, dict[str, Any], float]:
        """The status, the JSON object, and the seconds to wait before the next request."""
        # A POST may take as long as the agent does; nothing else may.
        total = None if method == "POST" else STATUS_SECONDS
        limits = aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json"} if body else None
        try:
            # Redirects are not followed: they could lead the task's key elsewhere.
            async with self._http.request(
                method, url, data=body, headers=headers, timeout=limits, allow_redirects=False
            ) as response:
                raw = bytearray()
                async for piece in response.content.iter_any():
                    raw += piece
                    if len(raw) > MAX_ANSWER_BYTES:
                        raise ServiceError(f"{method} {url} answered with more than {MAX_ANSWER_BYTES} bytes")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            raise ServiceError(
                f"{method} {url} failed: {str(error) or type(error).__name__}", retryable=unsent or method == "GET"
            ) from error
        if not 200 <= response.status < 300:
            raise ServiceError(
                f"{method} {url} answered HTTP {response.status}: {raw[:500].decode(errors='replace').strip()}",
                retryable=response.status in BUSY,
            )
        return response.status, _json_object(bytes(raw), f"{method} {url}"), _poll_seconds(response.headers)


def _read_outcome(answer: Mapping[str, Any]) -> Outcome:
    status, output, files = answer.get("status", "completed"), answer.get("output") or "", answer.get("files") or {}
    if status not in ("completed", "failed"):
        raise ServiceError(f"the agent's status is {status!r}; it must be completed, failed or running")
    texts = isinstance(files, dict) and all(isinstance(text, str) for text in files.values())
    if not isinstance(output, str) or not texts:
        raise ServiceError("the agent's output must be text, and its files texts by their paths")
    return Outcome(status == "completed", output, files)


def _json_object(raw: bytes, request: str) -> dict[str, Any]:
    try:
        answer = fast_json.loads(raw) if raw.strip() else {}
    except ValueError as error:
        raise ServiceError(f"{request} answered with broken JSON: {error}") from None
    if not isinstance(answer, dict):
        raise ServiceError(f"{request} answered with JSON that is not an object")
    return answer


def _poll_seconds(headers: Mapping[str, str]) -> float:
    try:
        return min(max(float(headers.get("Retry-After", POLL_SECONDS)), 0.05), MAX_POLL_SECONDS)
    except ValueError:
        return POLL_SECONDS
