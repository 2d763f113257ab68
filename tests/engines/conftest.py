"""The real parts of tests/engines, each started once a session; one that does not start fails its tests."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import aiohttp
import pytest
from aiohttp import web

from scripts.hf_model import model_folder, vllm_python
from tests.support.ports import free_port

SCRIPT = Path(__file__).parents[2] / "scripts" / "small_model.py"
# The first start downloads 93 MB.
READY_DEADLINE_S = 110.0
# 29 to 87 seconds were measured, on two cores that others used too.
VLLM_DEADLINE_S = 300.0
VLLM_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model answers, and its name there."""

    base_url: str
    model_name: str


@dataclass(frozen=True, slots=True)
class TokenEndpoint(Endpoint):
    """An endpoint that takes and gives token ids; `folder` has its model and tokenizer."""

    folder: Path

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    errors = tmp_path_factory.mktemp("small_model") / "stderr.txt"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--port", "0"], stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        line = first_line(process.stdout, READY_DEADLINE_S)
        if not line.startswith("ready: "):
            pytest.fail(f"{SCRIPT.name} said {line!r} within {READY_DEADLINE_S:g} s; stderr: {errors.read_text()}")
        url, name = line.removeprefix("ready: ").split(" model=")
        yield Endpoint(url, name.strip())
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
    assert process.returncode == 0


def first_line(stream: IO[str], deadline: float) -> str:
    """The stream's first line, or nothing when it does not come in time."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
    try:
        return lines.get(timeout=deadline)
    except queue.Empty:
        return ""


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenEndpoint]:
    """A real vLLM on the CPU, in float32, with its token route and the weight updates of a trainer."""
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with running_vllm(model_folder("smollm2"), log) as (served, _):
        yield served


@pytest.fixture(scope="session")
def lora_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenEndpoint]:
    """A real vLLM with the tiny model, that takes adapters while it runs."""
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with running_vllm(model_folder("tiny"), log, name="tiny", lora=True) as (served, _):
        yield served


@contextlib.contextmanager
def running_vllm(
    folder: Path, log: Path, *, name: str = "smollm2", port: int = 0, lora: bool = False
) -> Iterator[tuple[TokenEndpoint, subprocess.Popen[bytes]]]:
    """Where the model of that folder answers, and the process, whose workers are in its group. `lora`: as a fleet's."""
    port = port or free_port()
    options = f"--host 127.0.0.1 --port {port} --dtype float32 --max-model-len {VLLM_CONTEXT} --max-num-seqs 16"
    options += f" --enforce-eager --enable-scale-out --enable-prompt-tokens-details --served-model-name {name}"
    # On a CPU vLLM 0.32 dies when it splits the prompt of a request that has a seed.
    options += " --max-num-batched-tokens 16384"
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if lora:
        options += " --enable-lora --max-lora-rank 16 --max-loras 4"
        settings["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    command = [str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), *options.split()]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | settings | {"HF_HUB_OFFLINE": "1"},
            # Its workers are processes of their own; they are ended with it.
            start_new_session=True,
        )
    served = TokenEndpoint(f"http://127.0.0.1:{port}/v1", name, folder)
    try:
        if not answers(f"{served.root}/health", process, VLLM_DEADLINE_S):
            pytest.fail(f"vLLM does not answer, exit status {process.poll()}; its log ends: {log.read_text()[-4000:]}")
        yield served, process
    finally:
        end_group(process)


@pytest.fixture
async def vllm_without_generate(vllm_server: TokenEndpoint) -> AsyncIterator[TokenEndpoint]:
    """The same vLLM as a server started without --enable-scale-out shows itself."""

    async def pass_on(request: web.BaseRequest) -> web.Response:
        if request.path == "/inference/v1/generate":
            return web.json_response({"error": {"message": "Forbidden", "code": 403}}, status=403)
        async with session.request(
            request.method,
            vllm_server.root + request.path_qs,
            data=await request.read(),
            headers={"Content-Type": "application/json"},
        ) as response:
            return web.Response(status=response.status, body=await response.read(), content_type=response.content_type)

    runner = web.ServerRunner(web.Server(pass_on, access_log=None))
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield replace(vllm_server, base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        finally:
            await runner.cleanup()


def answers(url: str, process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the process's server answers within that time; not when the process ends before."""
    deadline = time.monotonic() + seconds
    # No proxy stands between us and our own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with opener.open(url, timeout=5):
                return True
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    return False


def end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
    # What outlived it, or would not end.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
