"""`mcp:NAME` toolsets: the tools of an MCP server, started as a program or reached by streamable HTTP.

Each rollout has its own connection (for a program, its own process), so rollouts cannot see each other's state;
`shared: true` is for stateless servers. The server runs outside the sandbox and gets only the environment variables it
needs to start and those in `env`. If it dies or hangs, the rollout is unscored and the next call reconnects.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TextIO

from pydantic import Field, model_validator

from hermes_rl.core import fast_json, secrets
from hermes_rl.core.errors import ConfigError, ToolHostError
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import CheckType, Tool, ToolUseError, invalid_arguments
from hermes_rl.tools.toolset import OpenToolset, Toolset, ToolsetSettings
from hermes_rl.tools.truncate import truncate_middle

if TYPE_CHECKING:
    import mcp
    from mcp.client._transport import TransportStreams
    from mcp_types import CallToolResult, ContentBlock

PREFIX = "mcp:"
MAX_RESULT_CHARS = 100_000
MAX_PROBLEM_CHARS = 300
STDERR_TAIL_BYTES = 2_000
# Seconds to wait for the stderr of a server that died.
STDERR_WAIT = 0.1
# The SDK gives a program 2 s to exit, 2 s after SIGTERM and 2 s after SIGKILL.
CLOSE_TIMEOUT = 10.0
CONNECT_TIMEOUT = 10.0
MAX_CONCURRENT_STARTS = 8
MAX_PAGES = 100
MAX_NAME_CHARS = 64
# A schema with only these keywords lists all of its parameters.
CLOSED_SCHEMA = {"$schema", "$defs", "type", "properties", "required", "title", "description", "definitions"}


class McpSettings(ToolsetSettings):
    command: list[str] | None = Field(default=None, min_length=1, description="Program to start, with its arguments.")
    env: dict[str, str] = Field(
        default_factory=dict, description="Its environment variables; env:NAME or file:PATH for secrets."
    )
    cwd: str | None = Field(default=None, description="Its working directory. Default: ours.")
    url: str | None = Field(default=None, description="URL of a streamable HTTP server.")
    headers: dict[str, str] = Field(default_factory=dict, description="Its headers; env:NAME or file:PATH for secrets.")
    shared: bool = Field(default=False, description="Share one connection between rollouts, for stateless servers.")
    tools: list[str] | None = Field(default=None, description="Tools to offer, by the server's names. Default: all.")
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_-]*$", description="Prefix of each tool's name.")
    timeout: float = Field(default=60, gt=0, description="Timeout of a call in seconds.")
    start_timeout: float = Field(default=30, gt=0, description="Maximum seconds for the server to become ready.")

    @model_validator(mode="after")
    def _check_server_kind(self) -> Self:
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
    """The toolset `mcp:NAME`; `tool_settings` under that name configures its server."""
    if not re.fullmatch(r"mcp:[A-Za-z0-9_.-]+", name):
        raise ConfigError(
            f"{name!r} is not the name of an MCP toolset: use mcp: followed by letters, digits, '_', '.' or '-'"
        )
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
            offered = await client.tools()
        except (ToolHostError, ToolUseError) as error:
            raise ConfigError(f"the toolset {name} failed: {error}. Fix tool_settings of {name}") from error
        if not settings.shared:
            await opened.aclose()
        selected = _select_tools(name, settings, offered)
        yield OpenToolset(tuple(_make_tool(server, client, tool) for tool in selected), server)


class McpServer:
    """Connection settings of one server, including secrets, which are redacted from errors and results."""

    def __init__(self, name: str, settings: McpSettings) -> None:
        self.name = name
        self.settings = settings
        self.start_slots = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        # A server has either variables or headers.
        values = settings.env or settings.headers
        self._values = {
            key: secrets.resolve_secret(value, f"tool_settings of {name}: {key}") for key, value in values.items()
        }
        self._secrets = [self._values[key] for key, value in values.items() if not secrets.is_literal(value)]

    @asynccontextmanager
    async def client(self) -> AsyncIterator["McpClient"]:
        client = McpClient(self)
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def transport(self, errors: TextIO) -> AsyncIterator["TransportStreams"]:
        """The SDK's streams to the server. A program gets the variables the SDK considers safe, and `env`."""
        settings = self.settings
        if settings.command is not None:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            program, *arguments = settings.command
            started = StdioServerParameters(command=program, args=arguments, env=self._values, cwd=settings.cwd)
            async with stdio_client(started, errlog=errors) as streams:
                yield streams
        else:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            # Each call has its own deadline; until then a stream may be silent.
            timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=None)
            async with (
                # The author named this host; a redirect could lead to any other.
                httpx2.AsyncClient(headers=self._values, timeout=timeout, follow_redirects=False) as http,
                streamable_http_client(str(settings.url), http_client=http) as streams,
            ):
                yield streams

    def redact(self, text: str) -> str:
        return secrets.redact(text, self._secrets)

    def error(self, cause: str, what: str) -> ToolHostError:
        return ToolHostError(cause, self.redact(f"the MCP server {self.name.removeprefix(PREFIX)} {what}"))


class McpClient:
    """Calls a server, reconnecting after a failure. Calls on the old connection may still finish."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._connecting = asyncio.Lock()
        self._connection: McpConnection | None = None
        self._alive: set[McpConnection] = set()

    async def tools(self) -> "list[mcp.Tool]":
        """Every tool that the server lists."""
        tools: list[mcp.Tool] = await self._request(_list_all_tools, self._server.settings.start_timeout)
        return tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The result of a server's tool; ToolUseError when it is an error for the model."""
        timeout = self._server.settings.timeout
        result: CallToolResult = await self._request(lambda client: client.call_tool(tool, dict(arguments)), timeout)
        text = truncate_middle(self._server.redact(_result_text(result)), MAX_RESULT_CHARS)
        if result.is_error:
            raise ToolUseError(text)
        return text

    async def close(self) -> None:
        self._connection = None
        await asyncio.gather(*(connection.close() for connection in self._alive))

    async def _request(self, operation: Callable[["mcp.Client"], Any], timeout: float) -> Any:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS

        connection = await self._ensure_connected()
        try:
            async with connection.use() as client, asyncio.timeout(timeout):
                return await operation(client)
        except TimeoutError:
            self._retire(connection)
            raise self._server.error("hang", f"did not answer within {timeout:g} s") from None
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolUseError(self._server.redact(error.message)) from None
            self._retire(connection)
            tail = await connection.stderr_tail()
            if error.code == CONNECTION_CLOSED:
                raise self._server.error("died", f"closed the connection{tail}") from None
            raise self._server.error("error", f"failed: {error.message}{tail}") from None
        except Exception as error:
            # A result that violates the protocol or its schema, or a broken stream.
            self._retire(connection)
            raise self._server.error("error", f"failed: {_first_cause(error)}") from error

    async def _ensure_connected(self) -> "McpConnection":
        async with self._connecting:
            if self._connection is None:
                async with self._server.start_slots:
                    connection = McpConnection(self._server)
                    self._alive = {other for other in self._alive if not other.closed} | {connection}
                    await connection.wait_until_ready()
                    self._connection = connection
            return self._connection

    def _retire(self, connection: "McpConnection") -> None:
        if self._connection is connection:
            self._connection = None
        connection.retire()


class McpConnection:
    """One connection. It runs in its own task, which enters and exits the SDK's cancel scopes."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._ready: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._in_use = 0
        self._is_retired = False
        self._stderr = StderrTail()
        self._task = asyncio.create_task(self._run())

    async def wait_until_ready(self) -> None:
        """Wait for the handshake; ToolHostError, with the connection closed, when the server is not ready in time."""
        seconds = self._server.settings.start_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._ready
        except TimeoutError:
            raise self._server.error("hang", f"was not ready within {seconds:g} s{self._stderr.describe()}") from None
        except Exception as error:
            tail = await self.stderr_tail()
            raise self._server.error("unreachable", f"cannot be reached: {_first_cause(error)}{tail}") from error
        finally:
            if self._ready.cancelled():
                self._stop_now()

    @property
    def closed(self) -> bool:
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
        """Close in the background when the last call is done."""
        self._is_retired = True
        if self._in_use == 0:
            self._stop.set()

    async def close(self) -> None:
        """Close now, and wait until the server's process is gone."""
        self._stop_now()
        _, pending = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
        if pending:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)

    async def stderr_tail(self) -> str:
        await asyncio.sleep(STDERR_WAIT)
        return self._stderr.describe()

    def _stop_now(self) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        self._ready.cancel()
        if self._ready.cancelled():
            # The only way to abort the handshake. Only once: a second cancel would abort the closing.
            self._task.cancel()

    async def _run(self) -> None:
        from mcp import Client

        try:
            async with (
                self._stderr.listening() as errors,
                Client(self._server.transport(errors)) as client,
            ):
                if not self._ready.done():
                    self._ready.set_result(client)
                    await self._stop.wait()
        except Exception as error:  # noqa: BLE001 (raised to the waiter of the connection)
            if not self._ready.done():
                self._ready.set_exception(error)


class StderrTail(asyncio.Protocol):
    """The end of a program's standard error, for error messages."""

    def __init__(self) -> None:
        self._tail = b""

    def data_received(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-STDERR_TAIL_BYTES:]

    def describe(self) -> str:
        text = self._tail.decode(errors="replace").strip()
        return f"; its stderr: {text}" if text else ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[TextIO]:
        """The file to pass to the program as standard error."""
        readable, writable = os.pipe()
        with os.fdopen(writable, "w") as errors, os.fdopen(readable, "rb", 0) as pipe:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, pipe)
            try:
                yield errors
            finally:
                transport.close()


def _select_tools(name: str, settings: McpSettings, offered: "list[mcp.Tool]") -> "list[mcp.Tool]":
    if settings.tools is None:
        return offered
    by_name = {tool.name: tool for tool in offered}
    missing = [wanted for wanted in settings.tools if wanted not in by_name]
    if missing:
        raise ConfigError(
            f"tool_settings of {name}: the server has no tool {', '.join(missing)}; it has {', '.join(by_name)}"
        )
    return [by_name[wanted] for wanted in dict.fromkeys(settings.tools)]


def _make_tool(server: McpServer, shared: McpClient, offered: "mcp.Tool") -> Tool:
    # Restricted to the characters and length that OpenAI allows.
    name = re.sub(r"[^A-Za-z0-9_-]", "_", server.settings.prefix + offered.name)[:MAX_NAME_CHARS]
    parameters = {"type": "object", "properties": {}, **offered.input_schema}

    async def call(session: ToolSession, /, **arguments: Any) -> str:
        client = shared if server.settings.shared else await session.resource(server.name, server.client)
        return await client.call(offered.name, arguments)

    description = offered.description or offered.title or ""
    return Tool(name, description, parameters, argument_checker(parameters, name, server), call, sandboxed=False)


def argument_checker(schema: dict[str, Any], name: str, server: McpServer) -> CheckType:
    """A function that validates arguments against a server's schema; ConfigError when the schema is invalid."""
    from jsonschema import Draft202012Validator, SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(
            f"the toolset {server.name}: the schema of {name} is invalid ({error.message[:MAX_PROBLEM_CHARS]}); "
            f"exclude that tool with tool_settings of {server.name}: tools"
        ) from None
    # An empty registry: the default one would fetch a remote $ref over the network.
    validator = Draft202012Validator(schema, registry=Registry())
    known = list(schema["properties"])

    def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(arguments)
        try:
            problems = [
                f"{'.'.join(map(str, problem.absolute_path)) or 'arguments'}: {problem.message[:MAX_PROBLEM_CHARS]}"
                for problem in validator.iter_errors(given)
            ]
        except Unresolvable:
            # The server can resolve the reference and validates the arguments itself.
            problems = []
        if set(schema) <= CLOSED_SCHEMA:
            problems += [f"{unknown}: there is no such parameter" for unknown in given if unknown not in known]
        if problems:
            raise invalid_arguments(name, problems, known)
        return given

    return check


async def _list_all_tools(client: "mcp.Client") -> "list[mcp.Tool]":
    tools: list[mcp.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _result_text(result: "CallToolResult") -> str:
    """The result as text. By protocol, text repeats structured content, so that is used only without text."""
    text = "\n".join(_block_text(block) for block in result.content)
    if not any(block.type == "text" for block in result.content) and result.structured_content is not None:
        structured = fast_json.dumps(result.structured_content).decode()
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


def _first_cause(error: BaseException) -> str:
    """The first cause in the exception groups that the SDK raises."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
