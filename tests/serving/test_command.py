"""`hermes-rl serve` as a process: signals, kills, what it prints, and what it refuses to begin with."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.store.database.store import Store
from tests.serving import counting_env
from tests.serving.counting_env import ITEMS, says_it, slowly
from tests.serving.parts import draws, tokenizer, trainer, until
from tests.support.scripted_model import Hang
from tests.support.token_servers import VLLMServer

# Each starts processes that import much, which takes a machine with other work many seconds.
pytestmark = pytest.mark.timeout(400)

FILE = Path(counting_env.__file__)
FLAGS = ("--env.group_size", "2", "--env.max_num_workers", "3", "--env.terminal_backend", "bubblewrap", "--json")


@asynccontextmanager
async def started(
    folder: Path, api: str, model: str, *flags: str, name: str = "Ending", server: str = "vllm"
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command in a process of its own, killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hermes_rl", "serve", f"{FILE}:{name}", *FLAGS),
        *("--env.rollout_server_url", api, "--env.tokenizer_name", str(tokenizer(folder))),
        *("--openai.base_url", model, "--openai.model_name", "scripted", "--openai.server_type", server, *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(FILE.parents[3]), "HERMES_HOME": str(folder / "home")},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether the process has been sent the signal and has not received it yet."""
    fields = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return any(int(fields[name], 16) >> (number - 1) & 1 for name in ("SigPnd", "ShdPnd"))


async def ended(process: asyncio.subprocess.Process) -> tuple[int, dict[str, Any], str]:
    """Its exit code, what it printed as JSON, and what it said."""
    async with asyncio.timeout(120):
        out, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(out or b"{}"), said.decode()


async def test_it_serves_to_the_end_of_the_items_and_prints_what_it_did(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with VLLMServer(says_it) as model, started(tmp_path, api, model.base_url) as process:
        code, told, said = await ended(process)
    assert code == 0, said
    assert await draws(store) == list(range(ITEMS))
    assert (told["groups"], told["posted"], told["left_in_spool"]) == (ITEMS, ITEMS, 0)
    assert told["ended"] == "there are no more items"
    assert Path(told["metrics_path"]).exists()
    assert "Traceback" not in said


async def test_sigterm_lets_what_is_in_flight_finish_and_the_next_run_makes_the_rest(
    tmp_path: Path, store: Store, api: str
) -> None:
    await trainer(store, max_staleness=100)
    async with VLLMServer(slowly(0.3)) as model, started(tmp_path, api, model.base_url) as process:
        await until(lambda: model.requests > 8)
        process.send_signal(signal.SIGTERM)
        code, told, said = await ended(process)
    assert (code, told["ended"], told["given_up"]) == (0, "SIGTERM", 0), said
    kept = await draws(store)
    assert kept == list(range(told["groups"]))
    async with VLLMServer(says_it) as model, started(tmp_path, api, model.base_url) as process:
        code, told, said = await ended(process)
    assert (code, told["groups"]) == (0, ITEMS - len(kept)), said
    assert await draws(store) == list(range(ITEMS))


async def test_after_kills_at_any_moment_no_draw_is_lost_or_made_twice(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    for kill in range(4):
        async with VLLMServer(slowly(0.05)) as model, started(tmp_path, api, model.base_url) as process:
            await until(partial(asked_more_than, model, 1 + 3 * kill))
            process.kill()
            await ended_by_a_kill(process)
    async with VLLMServer(says_it) as model, started(tmp_path, api, model.base_url) as process:
        code, _, said = await ended(process)
    assert code == 0, said
    assert await draws(store) == list(range(ITEMS))


async def test_a_second_signal_gives_up_what_is_in_flight(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with VLLMServer(lambda _: Hang()) as model, started(tmp_path, api, model.base_url) as process:
        await until(lambda: model.open == 6)
        process.send_signal(signal.SIGINT)
        # A second one that came before the first was received would be one with it.
        await until(lambda: not is_pending(process.pid, signal.SIGINT))
        assert process.returncode is None
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            code, _, said = await ended(process)
    assert code == 130
    assert "Traceback" not in said


async def test_a_signal_while_the_model_is_waited_for_ends_it(tmp_path: Path, api: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        async with started(tmp_path, api, f"http://127.0.0.1:{silent.getsockname()[1]}/v1") as process:
            async with asyncio.timeout(90):
                connection, _ = await asyncio.get_running_loop().sock_accept(silent)
            with connection:
                process.send_signal(signal.SIGTERM)
                code, told, said = await ended(process)
    assert (code, told["ended"]) == (0, "a signal before it was open"), said
    assert "Traceback" not in said


async def test_an_endpoint_that_gives_no_tokens_is_refused_before_anything_begins(tmp_path: Path, api: str) -> None:
    async with VLLMServer(says_it) as model, started(tmp_path, api, model.base_url, server="openai") as process:
        code, _, said = await ended(process)
    assert code == 2
    assert "--openai.server_type vllm" in said
    assert model.requests == 0


async def test_a_literal_token_is_warned_of_and_not_shown(tmp_path: Path, api: str) -> None:
    token = ("--env.rollout_server_token", "sesame")
    async with VLLMServer(says_it) as model, started(tmp_path, api, model.base_url, *token, server="openai") as process:
        _, _, said = await ended(process)
    assert "--env.rollout_server_token holds a literal secret" in said
    assert "sesame" not in said


async def ended_by_a_kill(process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        await process.communicate()
    assert process.returncode == -signal.SIGKILL


def asked_more_than(model: VLLMServer, count: int) -> bool:
    return model.requests > count
