"""A contract server for the `daytona` backend: Daytona's API and the agent in its sandboxes, on loopback.

It has the routes that the real SDK calls on its way, with Daytona's own rules where they bite: names are unique, a
terminal session outlives its connection, one that takes its output too slowly is closed, and so is one that sends more
than 64 KiB at once. Every sandbox is a Machine, every shell a real one. `minute` is how long one of this cloud takes.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import socketio
from aiohttp import WSMsgType, web

from hermes_rl.sandbox.spec import Limits
from tests.support.cloud_machine import Machine

KEY = "a-key-of-the-contract-server"
IMAGES = frozenset({"debian:12-slim", "python:3.11-slim"})

_READ_LIMIT = 64 * 1024
_QUEUE = 256
_PIECE = 32 * 1024


@dataclass
class CloudSandbox:
    """A sandbox as the customer ordered it."""

    order: Mapping[str, Any]
    machine: Machine
    id: str = field(default_factory=lambda: f"sb-{secrets.token_hex(8)}")
    state: str = "creating"
    reason: str | None = None
    active: float = field(default_factory=time.monotonic)
    born: float = field(default_factory=time.monotonic)
    terminals: "dict[str, Terminal]" = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.order.get("name") or self.id


class DaytonaCloud:
    """Use as `async with`. `quota` bounds the sandboxes, `slow_start` delays each, `broken` fails every request.

    `lacking` is a program that no image has. `sandboxes` are the living ones, `ordered` all that there ever were.
    """

    def __init__(self) -> None:
        self.quota = 1000
        self.slow_start = 0.0
        self.broken = False
        self.lacking = ""
        self.minute = 60.0
        self.sandboxes: dict[str, CloudSandbox] = {}
        self.ordered: list[CloudSandbox] = []
        self._events = socketio.AsyncServer(async_mode="aiohttp", cors_allowed_origins="*")
        self._runner: web.AppRunner | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        """What the SDK needs to find this server."""
        return {"DAYTONA_API_URL": self.url, "DAYTONA_API_KEY": KEY}

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._admitted], client_max_size=2**30)
        self._events.attach(app, socketio_path="/api/socket.io")
        app.add_routes(
            [
                web.post("/api/sandbox", self._create),
                web.get("/api/sandbox", self._list),
                web.get("/api/sandbox/{id}", self._get),
                web.delete("/api/sandbox/{id}", self._delete),
                web.post("/api/sandbox/{id}/last-activity", self._refresh),
                web.post("/toolbox/{id}/files/bulk-upload", self._upload),
                web.get("/toolbox/{id}/process/pty/create-connect", self._terminal),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}/api"
        self._toolbox = f"http://127.0.0.1:{port}/toolbox"
        self._spawn(self._tidy())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sandbox in tuple(self.sandboxes.values()):
            await self._destroy(sandbox)
        await self._events.shutdown()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.broken:
            return _refusal(500, "Internal server error")
        if "socket.io" not in request.path and request.headers.get("Authorization") != f"Bearer {KEY}":
            return _refusal(401, "Invalid credentials")
        answer: web.StreamResponse = await handler(request)
        return answer

    # --- the API ---

    async def _create(self, request: web.Request) -> web.Response:
        order = await request.json()
        if len(self.sandboxes) >= self.quota:
            return _refusal(403, f"Sandbox limit of the organization exceeded ({self.quota})")
        if any(one.name == order.get("name") for one in self.sandboxes.values()):
            return _refusal(409, f"Sandbox with name {order['name']} already exists")
        memory, disk = order.get("memory"), order.get("disk")
        limits = Limits(
            memory_mb=memory and memory * 1024, cpus=order.get("cpu"), disk_mb=disk and min(disk * 1024, 512)
        )
        machine = Machine(
            limits, network=not order.get("networkBlockAll"), env=order.get("env") or {}, lacking=self.lacking
        )
        sandbox = CloudSandbox(order, machine)
        self.sandboxes[sandbox.id] = sandbox
        self.ordered.append(sandbox)
        self._spawn(self._start(sandbox))
        return web.json_response(self._shown(sandbox))

    async def _start(self, sandbox: CloudSandbox) -> None:
        image = sandbox.order["buildInfo"]["dockerfileContent"].removeprefix("FROM ").strip()
        await asyncio.sleep(self.slow_start)
        if image not in IMAGES:
            sandbox.reason = f"failed to pull image {image}: manifest unknown"
            await self._become(sandbox, "build_failed")
            return
        await sandbox.machine.start()
        if sandbox.machine.running:
            await self._become(sandbox, "started")

    async def _list(self, request: web.Request) -> web.Response:
        labels = json.loads(request.query.get("labels", "{}"))
        found = [one for one in self.sandboxes.values() if labels.items() <= one.order["labels"].items()]
        return web.json_response({"items": [self._shown(one) for one in found], "nextCursor": None})

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(self._named(request)))

    async def _delete(self, request: web.Request) -> web.Response:
        sandbox = self._named(request)
        if sandbox.state != "destroying":
            sandbox.state = "destroying"
            self._spawn(self._destroy(sandbox))
        return web.json_response(self._shown(sandbox))

    async def _refresh(self, request: web.Request) -> web.Response:
        self._named(request).active = time.monotonic()
        return web.Response(status=201)

    # --- the agent in a sandbox ---

    async def _upload(self, request: web.Request) -> web.Response:
        sandbox = self._running(request)
        form = await request.post()
        for index in range(len(form) // 2):
            file = form[f"files[{index}].file"]
            assert isinstance(file, web.FileField)
            await sandbox.machine.write(str(form[f"files[{index}].path"]), file.file.read())
        return web.Response()

    async def _terminal(self, request: web.Request) -> web.WebSocketResponse:
        sandbox = self._running(request)
        name = request.query["id"]
        if name in sandbox.terminals:
            raise web.HTTPConflict
        connection = web.WebSocketResponse(max_msg_size=_READ_LIMIT, protocols=["X-Daytona-Pty-Exit-Control"])
        await connection.prepare(request)
        terminal = sandbox.terminals[name] = Terminal(sandbox.machine)
        await terminal.start()
        await connection.send_json({"type": "control", "status": "connected"})
        sending = asyncio.ensure_future(terminal.send_to(connection))
        try:
            async for message in connection:
                sandbox.active = time.monotonic()
                if message.type == WSMsgType.BINARY:
                    await terminal.write(message.data)
        finally:
            # The session itself goes on, for the customer to connect to again.
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return connection

    # --- its life ---

    async def _become(self, sandbox: CloudSandbox, state: str) -> None:
        sandbox.state = state
        await self._events.emit("sandbox.state.updated", {"sandbox": self._shown(sandbox), "newState": state})

    async def _destroy(self, sandbox: CloudSandbox) -> None:
        await sandbox.machine.end()
        for terminal in sandbox.terminals.values():
            terminal.close()
        self.sandboxes.pop(sandbox.id, None)
        await self._become(sandbox, "destroyed")

    async def _tidy(self) -> None:
        """Delete what was idle, or has lived, for as long as its order says."""
        while True:
            await asyncio.sleep(min(self.minute / 4, 0.2))
            now = time.monotonic()
            for sandbox in tuple(self.sandboxes.values()):
                idle, life = sandbox.order.get("autoStopInterval"), sandbox.order.get("ttlMinutes")
                over = idle and now - sandbox.active > idle * self.minute
                if sandbox.state == "started" and (over or (life and now - sandbox.born > life * self.minute)):
                    sandbox.state = "destroying"
                    await self._destroy(sandbox)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _named(self, request: web.Request) -> CloudSandbox:
        wanted = request.match_info["id"]
        for sandbox in self.sandboxes.values():
            if wanted in {sandbox.id, sandbox.name}:
                return sandbox
        text = json.dumps({"statusCode": 404, "message": f"Sandbox with ID or name {wanted} not found"})
        raise web.HTTPNotFound(text=text, content_type="application/json")

    def _running(self, request: web.Request) -> CloudSandbox:
        sandbox = self._named(request)
        if sandbox.state != "started":
            raise web.HTTPBadRequest(text=json.dumps({"message": f"sandbox is {sandbox.state}"}))
        sandbox.active = time.monotonic()
        return sandbox

    def _shown(self, sandbox: CloudSandbox) -> dict[str, Any]:
        order = sandbox.order
        return {
            "id": sandbox.id,
            "organizationId": "organization",
            "name": sandbox.name,
            "user": order.get("user") or "daytona",
            "env": order.get("env") or {},
            "labels": order.get("labels") or {},
            "public": False,
            "networkBlockAll": bool(order.get("networkBlockAll")),
            "kvm": False,
            "target": order.get("target") or "us",
            "cpu": order.get("cpu") or 1,
            "gpu": 0,
            "memory": order.get("memory") or 1,
            "disk": order.get("disk") or 3,
            "state": sandbox.state,
            "errorReason": sandbox.reason,
            "autoStopInterval": order.get("autoStopInterval"),
            "autoDeleteInterval": order.get("autoDeleteInterval"),
            "toolboxProxyUrl": self._toolbox,
        }


class Terminal:
    """A shell on a terminal of its own, in a machine, as Daytona's agent keeps it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._master = -1
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUE)
        self._slow = False

    async def start(self) -> None:
        self._master, slave = os.openpty()
        fcntl.fcntl(self._master, fcntl.F_SETFL, fcntl.fcntl(self._master, fcntl.F_GETFL) | os.O_NONBLOCK)
        try:
            shell = ["setsid", "--ctty", "--wait", "bash", "-i", "-l"]
            await self._machine.run(shell, env={"TERM": "xterm-256color"}, fds=(slave, slave, slave))
        finally:
            os.close(slave)
        asyncio.get_running_loop().add_reader(self._master, self._hear)

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._master >= 0:
            try:
                view = view[os.write(self._master, view) :]
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError:
                return

    async def send_to(self, connection: web.WebSocketResponse) -> None:
        with contextlib.suppress(ConnectionError):
            while (data := await self._said.get()) is not None:
                if self._slow:
                    await connection.close(code=1008, message=b"slow consumer")
                    return
                await connection.send_bytes(data)
            await connection.send_json({"type": "control", "status": "exited", "exitCode": 0})
            await connection.close(code=1000, message=b'{"exitCode": 0}')

    def close(self) -> None:
        if self._master >= 0:
            asyncio.get_running_loop().remove_reader(self._master)
            os.close(self._master)
            self._master = -1
            self._tell(None)

    def _hear(self) -> None:
        try:
            data = os.read(self._master, _PIECE)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                self.close()
            return
        self._tell(data)

    def _tell(self, data: bytes | None) -> None:
        try:
            self._said.put_nowait(data)
        except asyncio.QueueFull:
            self._slow = True


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"statusCode": status, "message": message, "code": "REFUSED"}, status=status)
