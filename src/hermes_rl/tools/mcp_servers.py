"""`mcp:NAME` toolsets: the tools of any MCP server, started as a program or reached by streamable HTTP.

Each rollout has a connection of its own (for a program: a process of its own), so that none sees what another left in
the server; `shared: true` is for servers that keep nothing between calls. The server runs outside the sandbox and gets
of our environment only what it needs to start and what `env` names. A server that dies or hangs leaves the rollout
unscored, and the next call connects anew.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TextIO

from pydantic import Field, model_validator

from hermes_rl import jsontext, secrets
from hermes_rl.errors import ConfigError, ToolHostError
from hermes_rl.tools.excerpt import excerpt
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import CheckType, Tool, ToolUseError, invalid_arguments
from hermes_rl.tools.toolset import OpenToolset, Toolset, ToolsetSettings

if TYPE_CHECKING:
    import mcp
    from mcp.client._transport import TransportStreams
    from mcp_types import CallToolResult, ContentBlock

PREFIX = "mcp:"
RESULT_SHOWN = 100_000
PROBLEM_SHOWN = 300
LAST_WORDS_KEPT = 2_000
# Seconds for the last words of a server that died to arrive.
LAST_WORDS_WAIT = 0.1
# The SDK allows a program 2 s to leave by itself, 2 s after SIGTERM and 2 s after SIGKILL.
CLOSE_TIMEOUT = 10.0
CONNECT_TIMEOUT = 10.0
STARTS_AT_ONCE = 8
MOST_PAGES = 100
LONGEST_NAME = 64
# A schema of these words alone names every parameter there is.
CLOSED_SCHEMA = {"$schema", "$defs", "type", "properties", "required", "title", "description", "definitions"}


class McpSettings(ToolsetSettings):
    command: list[str] | None = Field(None, min_length=1, description="Program to start, with its arguments.")
    env: dict[str, str] = Field(default_factory=dict, description="Its variables; env:NAME or file:PATH for secrets.")
    cwd: str | None = Field(None, description="Directory it starts in; ours when left out.")
    url: str | None = Field(None, description="Address of a server that speaks streamable HTTP.")
    headers: dict[str, str] = Field(default_factory=dict, description="Its headers; env:NAME or file:PATH for secrets.")
    shared: bool = Field(False, description="One connection for all rollouts: for servers that keep no state.")
    tools: list[str] | None = Field(None, description="The tools to offer, by the server's names; all when left out.")
    prefix: str = Field("", pattern=r"^[A-Za-z0-9_-]*$", description="Put before each tool's name.")
    timeout: float = Field(60, gt=0, description="Seconds one call may take.")
    start_timeout: float = Field(30, gt=0, description="Seconds until the server must be ready.")

    @model_validator(mode="after")
    def _is_one_kind_of_server(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("set either command (a program) or url (streamable HTTP)")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError("a url starts with http:// or https://")
        if (self.env or self.cwd) and self.command is None:
            raise ValueError("env and cwd go with command")
        if self.headers and self.url is None:
            raise ValueError("headers go with url")
        return self


def mcp_toolset(name: str) -> Toolset:
    """The toolset `mcp:NAME`; its server is what `tool_settings` says under that name."""
    if not re.fullmatch(r"mcp:[A-Za-z0-9_.-]+", name):
        raise ConfigError(f"{name!r} is no name of an MCP toolset: write mcp: and letters, digits, '_', '.' or '-'")
    return Toolset(name, (), McpSettings, partial(_open, name))


@asynccontextmanager
async def _open(name: str, settings: McpSettings) -> AsyncIterator[OpenToolset]:
    try:
        import jsonschema  # noqa: F401 (comes with the SDK)
        import mcp  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the toolset {name} needs the MCP SDK: pip install 'hermes-rl[mcp]' ({error})") from None
    server = McpServer(name, settings)
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(server.client())
        try:
            offered = await client.offered()
        except (ToolHostError, ToolUseError) as error:
            raise ConfigError(f"the toolset {name} cannot work: {error}. Mend tool_settings of {name}") from error
        if not settings.shared:
            await opened.aclose()
        chosen = _chosen(name, settings, offered)
        yield OpenToolset(tuple(_tool(server, client, one) for one in chosen), server)


class McpServer:
    """How to reach one server; the settings with their secrets, which no error or result repeats."""

    def __init__(self, name: str, settings: McpSettings) -> None:
        self.name = name
        self.settings = settings
        self.starts = asyncio.Semaphore(STARTS_AT_ONCE)
        # Variables or headers: a server takes one of them.
        values = settings.env or settings.headers
        self._given = {key: secrets.resolved(value, f"tool_settings of {name}: {key}") for key, value in values.items()}
        self._secrets = [self._given[key] for key, value in values.items() if not secrets.is_literal(value)]

    @asynccontextmanager
    async def client(self) -> AsyncIterator["McpClient"]:
        client = McpClient(self)
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def transport(self, errors: TextIO) -> AsyncIterator["TransportStreams"]:
        """The SDK's streams to the server. A program gets the few variables that the SDK holds safe, and `env`."""
        settings = self.settings
        if settings.command is not None:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            program, *arguments = settings.command
            started = StdioServerParameters(command=program, args=arguments, env=self._given, cwd=settings.cwd)
            async with stdio_client(started, errlog=errors) as streams:
                yield streams
        else:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            # Each call has its own deadline; a stream may be silent for as long as that.
            timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=None)
            async with (
                httpx2.AsyncClient(headers=self._given, timeout=timeout) as http,
                streamable_http_client(str(settings.url), http_client=http) as streams,
            ):
                yield streams

    def shown(self, text: str) -> str:
        return secrets.without(text, self._secrets)

    def error(self, cause: str, what: str) -> ToolHostError:
        return ToolHostError(cause, self.shown(f"the MCP server {self.name.removeprefix(PREFIX)} {what}"))


class McpClient:
    """Calls a server, over a new connection after one that failed. Calls on the old one may still end."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._alive: set[Connection] = set()

    async def offered(self) -> "list[mcp.Tool]":
        """Every tool that the server lists."""
        tools: list[mcp.Tool] = await self._ask(_all_tools, self._server.settings.start_timeout)
        return tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """What the server's tool says; ToolUseError when that is an error the model should see."""
        timeout = self._server.settings.timeout
        result: CallToolResult = await self._ask(lambda client: client.call_tool(tool, dict(arguments)), timeout)
        text = excerpt(self._server.shown(_text_of(result)), RESULT_SHOWN)
        if result.is_error:
            raise ToolUseError(text)
        return text

    async def close(self) -> None:
        self._connection = None
        await asyncio.gather(*(connection.close() for connection in self._alive))

    async def _ask(self, question: Callable[["mcp.Client"], Any], timeout: float) -> Any:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS

        connection = await self._connected()
        try:
            async with connection.use() as client, asyncio.timeout(timeout):
                return await question(client)
        except TimeoutError:
            self._retire(connection)
            raise self._server.error("hang", f"did not answer within {timeout:g} s") from None
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolUseError(self._server.shown(error.message)) from None
            self._retire(connection)
            words = await connection.last_words()
            if error.code == CONNECTION_CLOSED:
                raise self._server.error("died", f"closed the connection{words}") from None
            raise self._server.error("error", f"failed: {error.message}{words}") from None
        except Exception as error:
            # A result that breaks the protocol or its own schema, a stream that broke.
            self._retire(connection)
            raise self._server.error("error", f"failed: {_reason(error)}") from error

    async def _connected(self) -> "Connection":
        async with self._connecting:
            if self._connection is None:
                async with self._server.starts:
                    connection = Connection(self._server)
                    self._alive = {one for one in self._alive if not one.gone} | {connection}
                    await connection.wait_until_ready()
                    self._connection = connection
            return self._connection

    def _retire(self, connection: "Connection") -> None:
        if self._connection is connection:
            self._connection = None
        connection.retire()


class Connection:
    """One connection. It lives in a task of its own, where the SDK's cancel scopes are entered and left."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._ready: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._in_use = 0
        self._is_retired = False
        self._last_words = LastWords()
        self._task = asyncio.create_task(self._live())

    async def wait_until_ready(self) -> None:
        """ToolHostError when the server does not answer in time; it is then no longer connected."""
        allowed = self._server.settings.start_timeout
        try:
            async with asyncio.timeout(allowed):
                await self._ready
        except TimeoutError:
            raise self._server.error("hang", f"was not ready within {allowed:g} s{self._last_words.shown()}") from None
        except Exception as error:
            words = await self.last_words()
            raise self._server.error("unreachable", f"cannot be reached: {_reason(error)}{words}") from error
        finally:
            if self._ready.cancelled():
                self._stop_now()

    @property
    def gone(self) -> bool:
        return self._task.done()

    @asynccontextmanager
    async def use(self) -> AsyncIterator["mcp.Client"]:
        self._in_use += 1
        try:
            yield self._ready.result()
        finally:
            self._in_use -= 1
            if self._is_retired:
                self.retire()

    def retire(self) -> None:
        """Close when the last of those who use it is done; nobody waits for that."""
        self._is_retired = True
        if self._in_use == 0:
            self._stop.set()

    async def close(self) -> None:
        """Close now; return when the server's process is gone."""
        self._stop_now()
        _, pending = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
        if pending:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)

    async def last_words(self) -> str:
        await asyncio.sleep(LAST_WORDS_WAIT)
        return self._last_words.shown()

    def _stop_now(self) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        self._ready.cancel()
        if self._ready.cancelled():
            # There is no other way to break off the handshake. Once only: a second time would break off the closing.
            self._task.cancel()

    async def _live(self) -> None:
        from mcp import Client

        try:
            async with (
                self._last_words.listening() as errors,
                Client(self._server.transport(errors)) as client,
            ):
                if not self._ready.done():
                    self._ready.set_result(client)
                    await self._stop.wait()
        except Exception as error:  # noqa: BLE001 (whoever waits for the connection is told)
            if not self._ready.done():
                self._ready.set_exception(error)


class LastWords(asyncio.Protocol):
    """The end of what a program writes to standard error, for the message that it failed."""

    def __init__(self) -> None:
        self._kept = b""

    def data_received(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-LAST_WORDS_KEPT:]

    def shown(self) -> str:
        text = self._kept.decode(errors="replace").strip()
        return f"; it said: {text}" if text else ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[TextIO]:
        """The file that the program writes to."""
        readable, writable = os.pipe()
        with os.fdopen(writable, "w") as errors, os.fdopen(readable, "rb", 0) as pipe:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, pipe)
            try:
                yield errors
            finally:
                transport.close()


def _chosen(name: str, settings: McpSettings, offered: "list[mcp.Tool]") -> "list[mcp.Tool]":
    if settings.tools is None:
        return offered
    by_name = {one.name: one for one in offered}
    missing = [tool for tool in settings.tools if tool not in by_name]
    if missing:
        raise ConfigError(
            f"tool_settings of {name}: the server has no tool {', '.join(missing)}; it has {', '.join(by_name)}"
        )
    return [by_name[tool] for tool in dict.fromkeys(settings.tools)]


def _tool(server: McpServer, shared: McpClient, offered: "mcp.Tool") -> Tool:
    # The characters and the length that OpenAI's form allows.
    name = re.sub(r"[^A-Za-z0-9_-]", "_", server.settings.prefix + offered.name)[:LONGEST_NAME]
    parameters = {"type": "object", "properties": {}, **offered.input_schema}

    async def call(session: ToolSession, /, **arguments: Any) -> str:
        client = shared if server.settings.shared else await session.resource(server.name, server.client)
        return await client.call(offered.name, arguments)

    description = offered.description or offered.title or ""
    return Tool(name, description, parameters, check_against(parameters, name, server), call, sandboxed=False)


def check_against(schema: dict[str, Any], name: str, server: McpServer) -> CheckType:
    """The check of arguments by a server's schema; ConfigError when that is none."""
    from jsonschema import Draft202012Validator, SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(
            f"the toolset {server.name}: the schema of {name} is broken ({error.message[:PROBLEM_SHOWN]}); "
            f"leave that tool out with tool_settings of {server.name}: tools"
        ) from None
    # A registry of its own: the default one would fetch a foreign $ref over the network.
    validator = Draft202012Validator(schema, registry=Registry())
    known = list(schema["properties"])

    def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(arguments)
        try:
            problems = [
                f"{'.'.join(map(str, problem.absolute_path)) or 'arguments'}: {problem.message[:PROBLEM_SHOWN]}"
                for problem in validator.iter_errors(given)
            ]
        except Unresolvable:
            # The server, which knows what it refers to, checks them itself.
            problems = []
        if set(schema) <= CLOSED_SCHEMA:
            problems += [f"{unknown}: there is no such parameter" for unknown in given if unknown not in known]
        if problems:
            raise invalid_arguments(name, problems, known)
        return given

    return check


async def _all_tools(client: "mcp.Client") -> "list[mcp.Tool]":
    tools: list[mcp.Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _text_of(result: "CallToolResult") -> str:
    """What the model is told. Structured content is told when there is no text, which repeats it by the protocol."""
    text = "\n".join(_block_text(block) for block in result.content)
    if not any(block.type == "text" for block in result.content) and result.structured_content is not None:
        structured = jsontext.dumps(result.structured_content).decode()
        return f"{structured}\n{text}" if text else structured
    return text or "(no content)"


def _block_text(block: "ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.mime_type}: {len(block.data) * 3 // 4} bytes that cannot be shown here]"
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource":
            text = getattr(block.resource, "text", None)
            return f"[resource {block.resource.uri}]" if text is None else str(text)


def _reason(error: BaseException) -> str:
    """The first cause within the groups that the SDK's tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
