"""OpenEnv's contract (0.10): one WebSocket connection is one environment, and a reset begins an episode on it.

Always true: what the server does wrong is a PackageError. Only an action that the server calls invalid is an error for
the model.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from hermes_rl.core import fast_json
from hermes_rl.interop.package_error import PackageError, PackageFault
from hermes_rl.tools.tool import ToolUseError

INVALID_ACTION = "VALIDATION_ERROR"


@dataclass(frozen=True, slots=True)
class Observed:
    """What the environment shows after a reset or an action. `reward` is None where it gave none."""

    observation: Mapping[str, Any]
    reward: float | None
    done: bool
    metadata: Mapping[str, Any]


class OpenEnvClient:
    """The HTTP side of a server, and its connections."""

    def __init__(self, url: str, http: aiohttp.ClientSession, timeout: float) -> None:
        self.url = url.rstrip("/")
        self._http, self._timeout = http, timeout

    async def get(self, path: str) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(self._timeout), self._http.get(f"{self.url}{path}") as answer:
                answer.raise_for_status()
                value = fast_json.loads(await answer.read())
        except TimeoutError:
            raise self._hung(f"GET {path}") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise PackageError(PackageFault.DIED, f"{self.url}{path} failed: {error}") from error
        return value if isinstance(value, dict) else {}

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["Connection"]:
        address = f"ws{self.url.removeprefix('http')}/ws"
        try:
            async with asyncio.timeout(self._timeout):
                socket = await self._http.ws_connect(address, max_msg_size=0)
        except TimeoutError:
            raise self._hung("a connection") from None
        except aiohttp.ClientError as error:
            raise PackageError(PackageFault.DIED, f"{address} cannot be reached: {error}") from error
        async with socket:
            yield Connection(self, socket, self._timeout)

    def _hung(self, what: str) -> PackageError:
        return PackageError(PackageFault.HUNG, f"{self.url} did not answer {what} within {self._timeout:g} s")


class Connection:
    """One environment of the server."""

    def __init__(self, client: OpenEnvClient, socket: aiohttp.ClientWebSocketResponse, timeout: float) -> None:
        self._url, self._socket, self._timeout = client.url, socket, timeout
        self._lock = asyncio.Lock()

    async def reset(self, arguments: Mapping[str, Any]) -> Observed:
        return _observed(await self._ask("reset", arguments))

    async def step(self, action: Mapping[str, Any]) -> Observed:
        """ToolUseError when the server says that the action is not one."""
        return _observed(await self._ask("step", action))

    async def state(self) -> Mapping[str, Any]:
        return await self._ask("state", None)

    async def _ask(self, kind: str, data: Mapping[str, Any] | None) -> Mapping[str, Any]:
        request = {"type": kind} if data is None else {"type": kind, "data": dict(data)}
        async with self._lock:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._socket.send_str(fast_json.dumps(request).decode())
                    answer = fast_json.loads(await self._socket.receive_str())
                    answered, value = answer["type"], answer["data"]
            except TimeoutError:
                message = f"{self._url} did not answer `{kind}` within {self._timeout:g} s"
                raise PackageError(PackageFault.HUNG, message) from None
            except (aiohttp.ClientError, ConnectionError, TypeError, ValueError, KeyError) as error:
                message = f"{self._url} closed the connection, or answered `{kind}` with something else: {error}"
                raise PackageError(PackageFault.DIED, message) from error
        if answered == "error":
            message = str(value.get("message"))
            if value.get("code") == INVALID_ACTION and kind == "step":
                raise ToolUseError(message)
            raise PackageError(PackageFault.RAISED, f"{self._url} answered `{kind}` with an error: {message}")
        return dict(value)


def _observed(data: Mapping[str, Any]) -> Observed:
    reward = data.get("reward")
    return Observed(
        observation=data.get("observation") or {},
        reward=None if reward is None else float(reward),
        done=bool(data.get("done")),
        metadata=data.get("metadata") or (data.get("observation") or {}).get("metadata") or {},
    )
