"""Every HTTP surface as a process of its own, and requests to it: those of its schema, right and wrong, and raw ones.

`python -m tests.fuzz.servers NAME` serves one on loopback, prints where as JSON, and ends with its standard input.
A request is bytes (JSON), so that one that fails can be kept as a file. No request may end the process, take longer
than REQUEST_SECONDS or get a status of 500 or more.
"""

import asyncio
import base64
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import aiohttp
from hypothesis import strategies as st

from tests.fuzz.inputs import documents, dumps, edited
from tests.fuzz.schemas import GATEWAY, MCP, VIEWER
from tests.fuzz.surface import DefectError, Kind, NotSentError, Run, Surface

REQUEST_SECONDS = 20.0
START_SECONDS = 120.0
# A server that has seen this many requests is replaced, so that its database and its memory stay small.
REQUESTS_PER_SERVER = 3_000
# The longest that a request may ask to wait.
WAIT_SECONDS = 0.05
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
HEADERS = ("Content-Type", "Content-Encoding", "Accept", "Accept-Encoding", "Idempotency-Key", "Range", "Cookie")
HEADER_VALUES = (
    *("", "gzip", "identity", "application/json", "application/octet-stream", "text/event-stream", "*/*"),
    *("a" * 300, "bytes=0-", "é", "=;=", "0", "utf-16"),
)

# --- the processes ---


def _command(*words: str) -> Callable[[Path], AbstractAsyncContextManager[dict[str, Any]]]:
    """A command of hermes-rl that prints its URL with --json."""

    @asynccontextmanager
    async def serve(home: Path) -> AsyncIterator[dict[str, Any]]:
        arguments = [word.replace("HOME", str(home)) for word in words]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hermes_rl", *arguments, "--json", stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            address = urlsplit(json.loads(await process.stdout.readline())["url"])
            token = address.query.removeprefix("token=")
            yield {
                "url": f"{address.scheme}://{address.netloc}",
                "headers": {"Authorization": f"Bearer {token}"} if token else {},
                "pid": process.pid,
            }
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    return serve


@asynccontextmanager
async def _viewer(home: Path) -> AsyncIterator[dict[str, Any]]:
    from tests.viewer.recording import group, rollout, write_evaluation, write_lines

    odd = b'{"rollouts": [{"score": NaN, "messages": [{"role": "user", "content": "\\ud800"}]}]}\n'
    write_lines(home / "groups.jsonl", group(0), group(1, rollout(0, None), rollout(1, 0.25, "\0\u202e")), b"no\n", odd)
    write_evaluation(home / "evaluation", [0.0, 1.0, 0.5])
    async with (
        _command("view", "HOME/groups.jsonl", "HOME/evaluation", "--port", "0")(home) as served,
        aiohttp.ClientSession(served["url"], headers=served["headers"]) as session,
        session.get("/api/home") as answer,
    ):
        # Ids depend on where a source is.
        sources = {one["name"].partition(".")[0]: one["id"] for one in (await answer.json())["sources"]}
        yield {**served, "sources": sources}


@asynccontextmanager
async def _gateway(_: Path) -> AsyncIterator[dict[str, Any]]:
    from tests.support.gateway import CALL, gateway, says

    async with gateway(says("Yes.", CALL)) as running, running.visit() as visit:
        # An agent that floods the gateway is delayed, which would leave little to see.
        visit.rollout.used.refusals = -(10**9)
        yield {"url": running.server.url, "headers": {"Authorization": f"Bearer {visit.opened.key}"}}


@asynccontextmanager
async def _inference(_: Path) -> AsyncIterator[dict[str, Any]]:
    from tests.support.inference import inference, saying

    async with inference(saying("Yes.", "<think>hm</think>No.")) as running:
        yield {"url": running.url, "headers": {}}


SERVERS: dict[str, Callable[[Path], AbstractAsyncContextManager[dict[str, Any]]]] = {
    "api": _command("api", "--port", "0", "--database", "HOME/store.db", "--max-body", "1"),
    "gateway": _gateway,
    "viewer": _viewer,
    "inference": _inference,
    "mcp": _command("mcp", "--http", "--port", "0"),
}


async def _serve(name: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["HERMES_HOME"] = home
        async with SERVERS[name](Path(home)) as served:
            print(json.dumps({"pid": os.getpid(), **served}), flush=True)
            await asyncio.to_thread(sys.stdin.read)


class Client:
    """Sends requests over one connection. `sources` are ids by the names that requests use."""

    def __init__(self, url: str, headers: Mapping[str, str], sources: Mapping[str, str]) -> None:
        self.sent = 0
        self._address, self._headers, self._sources = urlsplit(url).netloc, headers, sources
        self._line = self._connect()

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """The status. HTTPException or ConnectionError without a complete answer, TimeoutError without any."""
        self.sent += 1
        for name, source in self._sources.items():
            path = path.replace(f"/api/s/{name}", f"/api/s/{source}")
        try:
            return self._send(method, path, {**self._headers, **headers}, body)
        except (ConnectionError, http.client.HTTPException, TimeoutError):
            self.close()
            self._line = self._connect()
            raise

    def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> int:
        self._line.request(method, path, body or None, headers)
        answer = self._line.getresponse()
        if method == "GET" and answer.headers.get_content_type() == "text/event-stream":
            # Events come until the client goes.
            self._line.close()
        else:
            answer.read()
        return answer.status

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address, timeout=REQUEST_SECONDS)

    def close(self) -> None:
        self._line.close()


class Server:
    """One of SERVERS as a process, with its client."""

    def __init__(self, name: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.servers", name],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._end()
            raise RuntimeError(f"the server {name} did not start: {self.log}")
        served = json.loads(line)
        self._pid = int(served["pid"])
        self.client = Client(served["url"], served["headers"], served.get("sources", {}))

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-1500:]

    @property
    def alive(self) -> bool:
        if self._process.poll() is not None:
            return False
        # A child that has ended is a zombie until its parent looks.
        with suppress(OSError):
            return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        return False

    def close(self) -> None:
        self.client.close()
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


# --- requests ---


def pack(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    text = base64.b64encode(body).decode()
    return json.dumps({"method": method, "path": path, "headers": dict(headers), "body": text}).encode()


def unpack(data: bytes) -> tuple[str, str, dict[str, str], bytes]:
    try:
        request = json.loads(data)
        body = base64.b64decode(request["body"])
        return str(request["method"]), str(request["path"]), dict(request["headers"]), body
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NotSentError from None


def _limit_wait(body: bytes) -> bytes:
    """A request for a batch may wait a minute for groups, as it should."""
    with suppress(ValueError):
        value = json.loads(body)
        if isinstance(value, dict) and isinstance(value.get("wait"), int | float) and value["wait"] > WAIT_SECONDS:
            return dumps({**value, "wait": WAIT_SECONDS})
    return body


def from_schema(schema: Mapping[str, Any]) -> st.SearchStrategy[bytes]:
    """Requests that a schema describes, and some that break it."""
    import requests
    import schemathesis
    from schemathesis import GenerationMode

    loaded = schemathesis.openapi.from_dict(dict(schema))

    def prepared(case: Any) -> bytes | None:
        try:
            made = requests.Request(**case.as_transport_kwargs(base_url="http://127.0.0.1")).prepare()
        except (ValueError, TypeError, requests.RequestException):
            return None
        body = made.body or b""
        if not isinstance(body, bytes | str):
            return None
        sent = body.encode("utf-8", "replace") if isinstance(body, str) else body
        left_out = {"content-length", "user-agent", "x-schemathesis-testcaseid"}
        headers = {
            _text(name): _text(value) for name, value in made.headers.items() if _text(name).lower() not in left_out
        }
        return pack(str(made.method), made.path_url, headers, _limit_wait(sent))

    operations = [cast("Any", result).ok() for result in loaded.get_all_operations()]
    cases = [
        operation.as_strategy(mode).map(prepared).filter(lambda made: made is not None)
        for operation in operations
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    ]
    return st.one_of(cases)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


@st.composite
def raw(draw: st.DrawFn, paths: Sequence[str], bodies: st.SearchStrategy[bytes]) -> bytes:
    """Requests that no schema describes: another method, a damaged path, odd headers, any body."""
    path = draw(st.sampled_from(paths))
    if draw(st.integers(0, 2)) == 0:
        path = "/" + draw(
            edited([path.encode()], (b"/", b"..", b"%00", b"%ff", b"//", b"?", b"&", b"=", b"%2e%2e/"))
        ).decode("latin-1")
    headers = draw(st.dictionaries(st.sampled_from(HEADERS), st.sampled_from(HEADER_VALUES), max_size=3))
    method = draw(st.sampled_from(METHODS) if draw(st.integers(0, 3)) == 0 else st.sampled_from(["GET", "POST"]))
    return pack(method, path, headers, _limit_wait(draw(bodies)) if method not in {"GET", "HEAD"} else b"")


class Target(Protocol):
    @property
    def client(self) -> Client: ...

    @property
    def alive(self) -> bool: ...

    @property
    def log(self) -> str: ...


def sender(target: Callable[[], Target]) -> Run:
    def run(data: bytes) -> None:
        method, path, headers, body = unpack(data)
        about, route, used = f"{method} {path.partition('?')[0][:80]}", _route(path), target()
        try:
            status = _status(used.client, method, path, headers, body)
        except TimeoutError:
            message = f"{about}: no answer in {REQUEST_SECONDS:g} s"
            raise DefectError(Kind.HANG, f"hang {route}", message) from None
        except (ConnectionError, http.client.HTTPException) as error:
            reason = type(error).__name__ if used.alive else "ended"
            raise DefectError(Kind.CRASH, f"{reason} {route}", f"{about}: {reason}\n{used.log}") from None
        if status >= 500:
            raise DefectError(Kind.SERVER_ERROR, f"{status} {method} {route}", f"{about}: HTTP {status}\n{used.log}")

    return run


def _status(client: Client, method: str, path: str, headers: Mapping[str, str], body: bytes) -> int:
    for last in (False, True):
        try:
            return client.send(method, path, headers, body)
        except (http.client.InvalidURL, ValueError):
            raise NotSentError from None
        except (ConnectionError, http.client.HTTPException):
            # It may have closed a connection that was idle, or refused the body of the request before.
            if last:
                raise
    raise AssertionError


def _route(path: str) -> str:
    """The path without what identifies one thing."""
    parts = path.partition("?")[0].split("/")[:4]
    return "/".join(
        part if part.isascii() and part.replace("_", "").isalnum() and not part.isdigit() else "*" for part in parts
    )


@contextmanager
def _running(name: str) -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(name, Path(folder, "log"))

        def current() -> Server:
            nonlocal server
            if server.client.sent >= REQUESTS_PER_SERVER or not server.alive:
                server.close()
                server = Server(name, Path(folder, "log"))
            return server

        try:
            yield sender(current)
        finally:
            server.close()


def _api_inputs() -> st.SearchStrategy[bytes]:
    from hermes_rl.api.server import ApiSettings, create_app
    from tests.fuzz.readers import SCORED, groups

    # Nothing is asked of the store before the first request.
    schema = create_app(cast("Any", None), ApiSettings()).openapi()
    bodies = groups() | documents(SCORED, {"name": "e"}, {"trainer": "t", "wait": 0, "seconds": 60})
    paths = (
        "/v1/environments /v1/environments/1/groups /v1/batches /scored_data /register /register-env /batch /metrics"
    )
    return from_schema(schema) | raw(paths.split(), bodies)


def _inference_inputs() -> st.SearchStrategy[bytes]:
    from hermes_rl.training.inference_server.config import InferenceSettings
    from hermes_rl.training.inference_server.server import create_app

    schema = create_app(cast("Any", None), cast("Any", None), InferenceSettings(model="policy")).openapi()
    user = {"role": "user", "content": "hi"}
    bodies = documents(
        {
            "model": "policy",
            "messages": [user],
            "max_tokens": 8,
            "stop": ["x"],
            "n": 2,
            "logprobs": True,
            "stream": True,
        },
        {"model": "policy", "prompt": [1, 2, 3], "max_tokens": 4, "logprobs": 0, "stop_token_ids": [1]},
        {"token_ids": [1, 2, 3], "sampling_params": {"n": 1, "max_tokens": 4, "temperature": 0.5}},
        {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 4}},
    )
    paths = "/v1/chat/completions /v1/completions /inference/v1/generate /generate /v1/models /health /metrics"
    return from_schema(schema) | raw(paths.split(), bodies)


def _gateway_inputs() -> st.SearchStrategy[bytes]:
    from tests.fuzz.readers import MESSAGES
    from tests.support.dialects import BODIES, LOOK

    bodies = documents(*(make(MESSAGES, [LOOK]) for make in BODIES.values()))
    return from_schema(GATEWAY) | raw([*GATEWAY["paths"], "/rollouts/1/v1/messages"], bodies)


def _viewer_inputs() -> st.SearchStrategy[bytes]:
    return from_schema(VIEWER) | raw([*VIEWER["paths"], "/", "/index.html", "/?token=a"], st.just(b""))


def _mcp_inputs() -> st.SearchStrategy[bytes]:
    calls = [
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        for method, params in (
            (
                "initialize",
                {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
            ),
            ("ping", {}),
            ("tools/list", {}),
            ("resources/list", {}),
            ("tools/call", {"name": "rl_list_runs", "arguments": {}}),
            ("tools/call", {"name": "rl_get_current_config", "arguments": {"fields": "tokens", "draft": "d"}}),
            ("tools/call", {"name": "rl_check_status", "arguments": {"run_id": "r1"}}),
            ("resources/read", {"uri": "hermes-rl://runs/r1"}),
        )
    ]
    return from_schema(MCP) | raw(["/mcp"], documents(*calls, calls[:2]))


HTTP = {
    name: Surface(name, inputs, partial(_running, name))
    for name, inputs in (
        ("api", _api_inputs),
        ("gateway", _gateway_inputs),
        ("viewer", _viewer_inputs),
        ("inference", _inference_inputs),
        ("mcp", _mcp_inputs),
    )
}

if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
