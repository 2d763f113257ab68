"""A contract server for the `modal` backend: Modal's API and the command router of its workers, on loopback.

It speaks gRPC with the stubs that come with the real SDK and has the calls that the SDK makes on its way; any other is
answered as unimplemented, so that a new SDK which needs more is noticed. Every sandbox is a Machine, every command in
it a real process. `second` is how long a second of this cloud takes.
"""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server, Stream
from modal_proto import api_pb2, task_command_router_pb2

from hermes_rl.sandbox.spec import Limits
from tests.support.cloud_machine import Machine

TOKEN = ("ak-of-the-contract-server", "as-of-the-contract-server")
IMAGES = frozenset({"debian:12-slim", "python:3.11-slim"})

_PIECE = 64 * 1024
# What was sent may be asked for again, after a connection that broke.
_KEPT = 4 * 1024 * 1024
_LONGEST_WAIT = 10.0
_STATUS = api_pb2.GenericResult


@dataclass
class CloudSandbox:
    """A sandbox as the customer ordered it."""

    order: Any
    tags: Mapping[str, str]
    machine: Machine
    id: str = field(default_factory=lambda: f"sb-{secrets.token_hex(10)}-V")
    task: str = field(default_factory=lambda: f"ta-{secrets.token_hex(10)}V")
    commands: "dict[str, RunningCommand]" = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    active: float = field(default_factory=time.monotonic)
    born: float = field(default_factory=time.monotonic)
    starting: "asyncio.Future[None] | None" = None


@dataclass
class RunningCommand:
    process: asyncio.subprocess.Process
    written: int = 0
    output: "dict[int, Output]" = field(default_factory=dict)


@dataclass
class Output:
    """What a command has said on one stream, from an offset on; read from it only as fast as it is sent."""

    stream: asyncio.StreamReader
    begin: int = 0
    kept: bytearray = field(default_factory=bytearray)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def after(self, offset: int) -> bytes:
        async with self.turn:
            if offset < self.begin:
                raise GRPCError(Status.DATA_LOSS, f"output before {self.begin} is not kept")
            if offset == self.begin + len(self.kept):
                self.kept += await self.stream.read(_PIECE)
            found = bytes(self.kept[offset - self.begin : offset - self.begin + _PIECE])
            if len(self.kept) > 2 * _KEPT:
                self.begin += _KEPT
                del self.kept[:_KEPT]
            return found


class ModalCloud:
    """Use as `async with`. `quota` bounds the sandboxes, `slow_start` delays each, `broken` fails every call.

    `lacking` is a program that no image has. `sandboxes` are the living ones, `ordered` all that there ever were.
    """

    def __init__(self) -> None:
        self.quota = 1000
        self.slow_start = 0.0
        self.broken = False
        self.lacking = ""
        self.second = 1.0
        self.sandboxes: dict[str, CloudSandbox] = {}
        self.ordered: list[CloudSandbox] = []
        self.url = ""
        self._gone: dict[str, CloudSandbox] = {}
        self._images: dict[str, str] = {}
        self._tidying: asyncio.Task[None] | None = None
        self._server = Server([_Service(self, service) for service in _SERVICES])

    @property
    def environment(self) -> dict[str, str]:
        """What the SDK needs to find this server."""
        return {"MODAL_SERVER_URL": self.url, "MODAL_TOKEN_ID": TOKEN[0], "MODAL_TOKEN_SECRET": TOKEN[1]}

    async def __aenter__(self) -> Self:
        await self._server.start("127.0.0.1", 0)
        listener: Any = self._server._server
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        self._tidying = asyncio.create_task(self._tidy())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)
        for sandbox in tuple(self.sandboxes.values()):
            await self._end(sandbox)
        self._server.close()
        await self._server.wait_closed()

    # --- accounts, apps, images ---

    async def client_hello(self, _: Any) -> Any:
        return api_pb2.ClientHelloResponse()

    async def auth_token_get(self, _: Any) -> Any:
        return api_pb2.AuthTokenGetResponse(token=_jwt())

    async def app_get_or_create(self, request: Any) -> Any:
        return api_pb2.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}")

    async def environment_get_or_create(self, _: Any) -> Any:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-main", metadata=metadata)

    async def image_get_or_create(self, request: Any) -> Any:
        name = request.image.dockerfile_commands[0].removeprefix("FROM ").strip()
        number = self._images.setdefault(name, f"im-{secrets.token_hex(8)}")
        if name in IMAGES:
            result = _STATUS(status=_STATUS.GENERIC_STATUS_SUCCESS)
        else:
            result = _STATUS(status=_STATUS.GENERIC_STATUS_FAILURE, exception=f"{name}: manifest unknown")
        return api_pb2.ImageGetOrCreateResponse(image_id=number, result=result, metadata=api_pb2.ImageMetadata())

    # --- sandboxes ---

    async def sandbox_create_v2(self, request: Any) -> Any:
        order = request.definition
        if len(self.sandboxes) >= self.quota:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"the workspace's limit of {self.quota} sandboxes is reached")
        if any(one.order.name == order.name for one in self.sandboxes.values()):
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox {order.name!r} already exists")
        sizes = order.resources
        limits = Limits(memory_mb=sizes.memory_mb_max or None, cpus=sizes.milli_cpu_max / 1000 or None)
        blocked = order.network_access.network_access_type == api_pb2.NetworkAccess.NetworkAccessType.BLOCKED
        machine = Machine(limits, network=not blocked, env={"MODAL_TASK_ID": "of-the-provider"}, lacking=self.lacking)
        sandbox = CloudSandbox(order, {tag.tag_name: tag.tag_value for tag in request.tags}, machine)
        self.sandboxes[sandbox.id] = sandbox
        self.ordered.append(sandbox)
        # It is made, also for a customer who went away.
        sandbox.starting = asyncio.ensure_future(self._start(sandbox))
        await asyncio.shield(sandbox.starting)
        return api_pb2.SandboxCreateV2Response(sandbox_id=sandbox.id, task_id=sandbox.task)

    async def _start(self, sandbox: CloudSandbox) -> None:
        await asyncio.sleep(self.slow_start)
        await sandbox.machine.start()

    async def sandbox_get_command_router_access(self, request: Any) -> Any:
        self._living(request.sandbox_id, request.task_id)
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=self.url, jwt=_jwt())

    async def sandbox_get_from_name(self, request: Any) -> Any:
        raise GRPCError(Status.NOT_FOUND, f"no sandbox {request.sandbox_name!r} of the first version")

    async def sandbox_get_from_name_v2(self, request: Any) -> Any:
        for sandbox in self.sandboxes.values():
            if sandbox.order.name == request.sandbox_name:
                return api_pb2.SandboxGetFromNameResponse(sandbox_id=sandbox.id)
        raise GRPCError(Status.NOT_FOUND, f"Sandbox {request.sandbox_name!r} not found")

    async def sandbox_wait_v2(self, request: Any) -> Any:
        sandbox = self._known(request.sandbox_id)
        try:
            async with asyncio.timeout(min(request.timeout, _LONGEST_WAIT)):
                await sandbox.ended.wait()
        except TimeoutError:
            return api_pb2.SandboxWaitResponse()
        return api_pb2.SandboxWaitResponse(result=_STATUS(status=_STATUS.GENERIC_STATUS_TERMINATED))

    async def sandbox_terminate_v2(self, request: Any) -> Any:
        sandbox = self._known(request.sandbox_id)
        if not sandbox.ended.is_set():
            await self._end(sandbox)
        return api_pb2.SandboxTerminateResponse()

    # --- the command router of a worker ---

    async def task_exec_start(self, request: Any) -> Any:
        sandbox = self._living(None, request.task_id)
        process = await sandbox.machine.run(list(request.command_args))
        assert process.stdout is not None
        assert process.stderr is not None
        output: dict[int, Output] = {
            task_command_router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT: Output(process.stdout),
            task_command_router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR: Output(process.stderr),
        }
        sandbox.commands[request.exec_id] = RunningCommand(process, output=output)
        return task_command_router_pb2.TaskExecStartResponse()

    async def task_exec_stdin_write(self, request: Any) -> Any:
        command = self._command(request)
        new = request.data[max(command.written - request.offset, 0) :]
        stdin = command.process.stdin
        assert stdin is not None
        try:
            stdin.write(new)
            # Before the wait: the SDK sends a request again that takes long, and its bytes must not be written twice.
            command.written += len(new)
            await stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise GRPCError(Status.FAILED_PRECONDITION, "the command has closed its input") from error
        if request.eof:
            stdin.close()
        return task_command_router_pb2.TaskExecStdinWriteResponse()

    async def task_exec_stdio_read(self, request: Any, stream: Any) -> None:
        output = self._command(request).output[request.file_descriptor]
        offset = request.offset
        while data := await output.after(offset):
            await stream.send_message(task_command_router_pb2.TaskExecStdioReadResponse(data=data))
            offset += len(data)

    # --- their life ---

    async def _end(self, sandbox: CloudSandbox) -> None:
        self._gone[sandbox.id] = sandbox
        await sandbox.machine.end()
        if sandbox.starting is not None:
            await asyncio.gather(sandbox.starting, return_exceptions=True)
        self.sandboxes.pop(sandbox.id, None)
        sandbox.ended.set()

    async def _tidy(self) -> None:
        """End what was idle, with no command in it, or has lived, for as long as its order says."""
        while True:
            await asyncio.sleep(min(self.second / 4, 0.2))
            now = time.monotonic()
            for sandbox in tuple(self.sandboxes.values()):
                if not sandbox.machine.running:
                    continue
                if any(command.process.returncode is None for command in sandbox.commands.values()):
                    sandbox.active = now
                order = sandbox.order
                over = order.idle_timeout_secs and now - sandbox.active > order.idle_timeout_secs * self.second
                if over or now - sandbox.born > order.timeout_secs * self.second:
                    await self._end(sandbox)

    def _known(self, number: str) -> CloudSandbox:
        found = self.sandboxes.get(number) or self._gone.get(number)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {number!r} not found")
        return found

    def _living(self, number: str | None, task: str) -> CloudSandbox:
        for sandbox in self.sandboxes.values():
            if number == sandbox.id or task == sandbox.task:
                return sandbox
        raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")

    def _command(self, request: Any) -> RunningCommand:
        command = self._living(None, request.task_id).commands.get(request.exec_id)
        if command is None:
            raise GRPCError(Status.NOT_FOUND, f"no command {request.exec_id}")
        return command


class _Service:
    """A gRPC service by its description: each call is the method of that name of the cloud's, if there is one."""

    def __init__(self, cloud: ModalCloud, service: ServiceDescriptor) -> None:
        self._cloud = cloud
        self._service = service

    def __mapping__(self) -> dict[str, Handler]:
        calls = {}
        for call in self._service.methods:
            work = getattr(self._cloud, _method_name(call.name), None)
            if work is not None:
                cardinality = Cardinality.UNARY_STREAM if call.server_streaming else Cardinality.UNARY_UNARY
                types = (GetMessageClass(call.input_type), GetMessageClass(call.output_type))
                handler = self._streaming(work) if call.server_streaming else self._single(work)
                calls[f"/{self._service.full_name}/{call.name}"] = Handler(handler, cardinality, *types)
        return calls

    def _single(self, work: Any) -> Any:
        async def handle(stream: "Stream[Any, Any]") -> None:
            request = await stream.recv_message()
            self._check(stream)
            await stream.send_message(await work(request))

        return handle

    def _streaming(self, work: Any) -> Any:
        async def handle(stream: "Stream[Any, Any]") -> None:
            request = await stream.recv_message()
            self._check(stream)
            await work(request, stream)

        return handle

    def _check(self, stream: "Stream[Any, Any]") -> None:
        if self._cloud.broken:
            raise GRPCError(Status.FAILED_PRECONDITION, "out of order")
        given: Any = stream.metadata or {}
        token = (given.get("x-modal-token-id"), given.get("x-modal-token-secret"))
        if self._service.name == "ModalClient" and token != TOKEN:
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID or secret is wrong")


_SERVICES = (
    api_pb2.DESCRIPTOR.services_by_name["ModalClient"],
    task_command_router_pb2.DESCRIPTOR.services_by_name["TaskCommandRouter"],
)


def _method_name(call: str) -> str:
    """`SandboxCreateV2` as `sandbox_create_v2`."""
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in call)
    return name.lstrip("_")


def _jwt() -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + 3600}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.signature"
