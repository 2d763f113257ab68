"""One of our environments as an OpenEnv server (0.10): a WebSocket connection plays an episode, as do its MCP tools.

Always true: a connection has an episode of its own, which ends with it. Other websites cannot reach a server without a
token.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from aiohttp import WSMsgType, web
from starlette.datastructures import Headers

from hermes_rl.console.live_display import write_line
from hermes_rl.core import fast_json
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.secrets import resolve_key
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.prebuild import without_health_checks
from hermes_rl.environment.resolve_config import Settings
from hermes_rl.http.auth import OPEN_PATHS, AccessRule, check_access
from hermes_rl.http.server import allowed_hosts, listen, socket_url
from hermes_rl.interop.openenv.episode import ANSWER_TOOL, Episode, check_playable, tools_of
from hermes_rl.version import __version__

MAX_MESSAGE = 16 * 2**20
# A client that does not answer a ping is gone.
HEARTBEAT = 30.0
# Sessions that a client made over HTTP, whether or not a connection belongs to them.
MAX_SESSIONS = 1024
# Messages of a connection that wait for the answer to an earlier one.
MAX_WAITING = 16
ACTION = {
    "type": "object",
    "description": "Call a tool: see list_tools.",
    "properties": {
        "type": {"type": "string", "enum": ["list_tools", "call_tool"]},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["type"],
}
Finished = Callable[[str, float | None, int], object]
"""Told the item, the score and the number of actions of each episode that ends with a score."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    split: str
    max_episodes: int
    host: str
    port: int
    token: str | None
    """Literal or a reference."""


@dataclass(frozen=True, slots=True)
class Access:
    token: str | None
    hosts: frozenset[str] | None


class RequestError(Exception):
    """A message that is not one of the contract."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Session:
    """What one client plays: no episode until its first reset."""

    def __init__(self, server: "OpenEnvServer") -> None:
        self._server, self._id = server, secrets.token_hex(8)
        self.episode: Episode | None = None
        self._told = False
        self.connected = False

    async def answer(self, kind: str, data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The answer to a message of the WebSocket: its type and its data."""
        if kind == "reset":
            return "observation", await self._reset(data)
        if kind == "step":
            return "observation", await self._step(data)
        if kind == "state":
            return "state", self._state()
        if kind == "mcp":
            return "mcp", await self.rpc(data)
        raise RequestError("UNKNOWN_TYPE", f"{kind!r} is not a type of message: send reset, step, state, mcp or close")

    async def _reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        seed = data.get("seed")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise RequestError("VALIDATION_ERROR", "seed must be an integer from 0 on")
        await self.close()
        self.episode, self._told = await self._server.begin(seed), False
        self._id = str(data.get("episode_id") or secrets.token_hex(8))
        messages = [dict(message) for message in self.episode.result.messages] if not self.episode.over else []
        prompt = messages[-1]["content"] if messages else ""
        return self._observation({"prompt": prompt, "messages": messages})

    async def _step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        kind = data.get("type")
        if kind == "list_tools":
            return self._observation({"tools": self._tools()})
        if kind != "call_tool":
            raise RequestError("VALIDATION_ERROR", "an action has the type list_tools or call_tool")
        name, text, failed = await self._call(data.get("tool_name"), data.get("arguments"))
        error = {"error_type": "execution_error", "message": text} if failed else None
        return self._observation({"tool_name": name, "result": _tool_result(text, failed=failed), "error": error})

    def _tools(self) -> list[dict[str, Any]]:
        return self.episode.tools if self.episode else self._server.tools

    async def _call(self, name: object, arguments: object) -> tuple[str, str, bool]:
        if self.episode is None:
            raise RequestError("VALIDATION_ERROR", "send reset first")
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RequestError("VALIDATION_ERROR", "call_tool needs a tool_name and arguments as an object")
        return name, *await self.episode.act(name, arguments)

    def _observation(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What the client sees; with the score once the episode is over, however often it asks."""
        episode = self.episode
        over = episode is not None and episode.over
        score = episode.score if episode is not None else None
        if episode is not None and over and not self._told:
            self._told = True
            self._server.finished(episode.item_id, score, episode.steps)
        about = {} if episode is None else {"item_id": episode.item_id}
        return {"observation": dict(fields), "reward": score, "done": over, "metadata": about}

    def _state(self) -> dict[str, Any]:
        episode = self.episode
        return {"episode_id": self._id, "step_count": 0 if episode is None else episode.steps}

    async def rpc(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a JSON-RPC request for the tools; rewards are told by the next step of the WebSocket."""
        parameters = request.get("params") or {}
        if request.get("method") == "tools/list":
            tools = [{**one, "inputSchema": one["input_schema"]} for one in self._tools()]
            return _rpc_result(request, {"tools": tools})
        if request.get("method") != "tools/call" or not isinstance(parameters, dict):
            return _rpc_error(request, -32601, "the methods are tools/list and tools/call, with an object as params")
        try:
            _, text, failed = await self._call(parameters.get("name"), parameters.get("arguments"))
        except RequestError as error:
            return _rpc_error(request, -32602, str(error))
        return _rpc_result(request, _tool_result(text, failed=failed))

    async def close(self) -> None:
        if self.episode is not None:
            episode, self.episode = self.episode, None
            await episode.close()


class OpenEnvServer:
    """The episodes of an open environment, and the addresses at which clients play them."""

    def __init__(
        self, env: HermesAgentBaseEnv, rule: AccessRule, *, split: str, max_episodes: int, finished: Finished
    ) -> None:
        check_playable(env)
        items = env.eval_items() if split == "eval" else env.train_items()
        if not items:
            raise ConfigError(f"{env.display_name()} has no list of {split} items; a seed chooses one of them")
        self.tools, self.finished = [*tools_of(env.group_tools()[0]), ANSWER_TOOL], finished
        self._env, self._rule, self._split, self._items = env, rule, split, items
        self._max_episodes, self._episodes = max_episodes, 0
        self._unseeded = count()
        self._sessions: dict[str, Session] = {}

    async def begin(self, seed: int | None) -> Episode:
        """A new episode on the item of the seed; without a seed, on the next item."""
        number = next(self._unseeded) if seed is None else seed
        return await Episode.begin(self._env, self._items[number % len(self._items)], number, self._split)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._check_access], client_max_size=MAX_MESSAGE)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metadata", self._metadata),
                web.get("/schema", self._schema),
                web.get("/ws", self._socket),
                web.post("/mcp", self._mcp),
                *(web.route("*", path, self._needs_socket) for path in ("/reset", "/step", "/state")),
            ]
        )
        return app

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        refusal = None if request.path in OPEN_PATHS else check_access(Headers(dict(request.headers)), self._rule)
        if refusal is None:
            response: web.StreamResponse = await handler(request)
            return response
        status, problem = refusal
        return web.json_response({"detail": problem.message}, status=status)

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def _metadata(self, _: web.Request) -> web.Response:
        about = (type(self._env).__doc__ or "").strip().partition("\n")[0]
        return web.json_response({"name": self._env.display_name(), "description": about, "version": __version__})

    async def _schema(self, _: web.Request) -> web.Response:
        return web.json_response({"action": ACTION, "observation": {"type": "object"}, "state": {"type": "object"}})

    async def _needs_socket(self, _: web.Request) -> web.Response:
        return web.json_response({"detail": "an episode needs a connection: use the WebSocket at /ws"}, status=400)

    async def _mcp(self, request: web.Request) -> web.Response:
        """MCP tools over HTTP, for a session that is made here and played through `/ws?session_id=ID`."""
        try:
            asked = fast_json.loads(await request.read())
        except ValueError:
            asked = None
        parameters = asked.get("params") or {} if isinstance(asked, dict) else None
        if not isinstance(asked, dict) or not isinstance(parameters, dict):
            return web.json_response(_rpc_error({}, -32600, "send a JSON-RPC request with an object as params"))
        if asked.get("method") == "openenv/session/create":
            return web.json_response(_rpc_result(asked, {"session_id": self._new_session()}))
        name = str(parameters.get("session_id"))
        if asked.get("method") == "openenv/session/close":
            session = self._sessions.pop(name, None)
            if session is not None:
                await session.close()
            return web.json_response(_rpc_result(asked, {"session_id": name, "closed": session is not None}))
        session = self._sessions.get(name) or Session(self)
        try:
            return web.json_response(await session.rpc(asked))
        except Exception as error:  # noqa: BLE001 (told to the client)
            return web.json_response(_rpc_error(asked, -32000, describe_error(error)))

    def _new_session(self) -> str:
        if len(self._sessions) >= MAX_SESSIONS:
            # One that nobody is connected to has no episode.
            unused = next((name for name, one in self._sessions.items() if not one.connected), None)
            self._sessions.pop(unused or next(iter(self._sessions)))
        name = secrets.token_urlsafe(16)
        self._sessions[name] = Session(self)
        return name

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE, heartbeat=HEARTBEAT)
        await socket.prepare(request)
        name = request.query.get("session_id")
        session = Session(self) if name is None else self._sessions.get(name)
        refusal = None
        if session is None or session.connected:
            refusal = ("SESSION_ERROR", f"session {name} does not exist, or has a connection")
        elif self._episodes >= self._max_episodes:
            refusal = ("CAPACITY_REACHED", f"{self._max_episodes} episodes are played already (--max-episodes)")
        if session is None or refusal is not None:
            await socket.send_json(_error(*(refusal or ("SESSION_ERROR", ""))))
            await socket.close()
            return socket
        session.connected = True
        self._episodes += 1
        waiting: asyncio.Queue[str] = asyncio.Queue(MAX_WAITING)
        answering = asyncio.create_task(self._answer_all(session, socket, waiting))
        try:
            # Pings are answered, and a client that left is noticed, also while a tool runs.
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                await waiting.put(message.data)
        finally:
            await asyncio.shield(self._end(session, answering))
        return socket

    async def _end(self, session: Session, answering: asyncio.Task[None]) -> None:
        """End what a connection began, also where it is in the middle of a reset."""
        answering.cancel()
        await asyncio.wait((answering,))
        await session.close()
        session.connected = False
        self._episodes -= 1

    async def _answer_all(self, session: Session, socket: web.WebSocketResponse, waiting: "asyncio.Queue[str]") -> None:
        with suppress(ConnectionError):
            while await self._answer(session, socket, await waiting.get()):
                pass
            await socket.close()

    async def _answer(self, session: Session, socket: web.WebSocketResponse, text: str) -> bool:
        """Answer one message; False for the last."""
        try:
            asked = fast_json.loads(text)
        except ValueError as error:
            await socket.send_json(_error("INVALID_JSON", f"invalid JSON: {error}"))
            return True
        kind, data = (asked.get("type"), asked.get("data") or {}) if isinstance(asked, dict) else (None, {})
        if kind == "close":
            return False
        try:
            if not isinstance(data, dict):
                raise RequestError("VALIDATION_ERROR", "data must be an object")
            answered, value = await session.answer(str(kind), data)
            answer = {"type": answered, "data": value}
        except RequestError as error:
            answer = _error(error.code, str(error))
        except HermesRLError as error:
            answer = _error("EXECUTION_ERROR", str(error))
        except Exception as error:  # noqa: BLE001 (told to the client, who can reset)
            answer = _error("EXECUTION_ERROR", describe_error(error))
        await socket.send_str(fast_json.dumps(answer).decode())
        return True


@asynccontextmanager
async def serving(server: OpenEnvServer, host: str, port: int) -> AsyncIterator[str]:
    """Serve until the end of the block; gives the URL."""
    listening = listen(host, port)
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield socket_url(listening)
    finally:
        await runner.cleanup()


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


def _tool_result(text: str, *, failed: bool) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "structured_content": None, "data": text, "is_error": failed}


def _rpc_result(request: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.get("id"), "result": dict(result)}


def _rpc_error(request: Mapping[str, Any], code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.get("id"), "error": {"code": code, "message": message}}


async def serve_openenv(
    environment: type[HermesAgentBaseEnv], settings: Settings, serve: ServeSettings, ready: Callable[[str], None]
) -> None:
    """Serve until a signal."""
    token = None if serve.token is None else resolve_key(serve.token, "--token")
    rule = Access(token, allowed_hosts(serve.host, token))
    if token is None and settings.env.terminal_backend == "local":
        raise ConfigError(
            "with terminal_backend local, anyone who reaches the server runs commands as you: pass --token env:NAME, "
            "or use a sandbox"
        )
    env = environment(settings.env, without_health_checks(settings.endpoints))
    stop = StopSignal(0)
    with suppress(asyncio.CancelledError), stop.on_signals():
        async with env.opened():
            server = OpenEnvServer(
                env, rule, split=serve.split, max_episodes=serve.max_episodes, finished=_show_finished
            )
            async with serving(server, serve.host, serve.port) as url:
                with stop.graceful():
                    ready(url)
                    await stop.wait()


def _show_finished(item_id: str, score: float | None, steps: int) -> None:
    write_line(f"{item_id}: {score:g} after {steps} action{'' if steps == 1 else 's'}")
