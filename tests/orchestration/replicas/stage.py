"""A real trajectory API, a scripted model, a trainer that wants everything, and the command under test.

Everything is a process of its own but the model, so that workers on any node of this machine reach it.
"""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
from aiohttp import web

from tests.orchestration.replicas.balancer import balanced
from tests.serving.counting_env import MODEL, says_it
from tests.support.api_process import ApiProcess
from tests.support.token_servers import VLLMServer

ENVIRONMENT = Path(__file__).with_name("numbers_env.py")
NAME = "numbers"
TOKEN = "STAGE_TOKEN"  # a variable's name
SETTINGS: dict[str, Any] = {
    "group_size": 2,
    "max_num_workers": 2,
    "stop_timeout": 10,
    "use_wandb": False,
    "ensure_scores_are_not_same": False,
    "steps_per_eval": 10**9,
}


@dataclass
class Stage:
    """`home` is where the command under test and its workers keep their files; `api` is where all APIs are reached."""

    folder: Path
    database: str
    api: str
    model: "PacedModel"
    apis: "Apis"
    token: str | None = None
    commands: list["Command"] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def serve(self, *options: str, items: int = 60, home: Path | None = None, **settings: Any) -> "Command":
        """`hermes-rl serve` on the numbers, with these options; as from another machine with another home."""
        values = {
            **SETTINGS,
            "items": items,
            "tokenizer_name": self.folder / "tokenizer",
            "rollout_server_url": self.api,
            **settings,
        }
        words = [word for name, value in values.items() for word in (f"--env.{name}", str(value))]
        endpoint = {"base_url": self.model.base_url, "model_name": "scripted", "server_type": "vllm", "timeout": 30}
        words += [word for name, value in endpoint.items() for word in (f"--openai.{name}", str(value))]
        if self.token:
            words += ["--env.rollout_server_token", f"env:{TOKEN}", "--replica-key", TOKEN]
        return self.run([sys.executable, "-m", "hermes_rl", "serve", str(ENVIRONMENT), *options, *words], home)

    def run(self, words: list[str], home: Path | None = None) -> "Command":
        """Any command, ended with the stage."""
        command = Command(words, self, home or self.home)
        self.commands.append(command)
        return command

    def replicas(self, *words: str) -> Any:
        """What `hermes-rl replicas … --json` answers."""
        done = subprocess.run(
            [sys.executable, "-m", "hermes_rl", "replicas", *words, "--json"],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def standing(self) -> dict[str, Any] | None:
        try:
            told: dict[str, Any] = json.loads((self.home / "rl" / "replicas" / NAME / "state.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return told

    @property
    def environ(self) -> dict[str, str]:
        token = {TOKEN: self.token} if self.token else {}
        return {**os.environ, "HERMES_HOME": str(self.home), "RAY_USAGE_STATS_ENABLED": "0", **token}

    def draws(self) -> Counter[int]:
        """How many groups of each draw are in the store."""
        if self.database.startswith("postgresql:"):
            with psycopg.connect(self.database) as connection:
                return Counter(draw for (draw,) in connection.execute("SELECT draw FROM groups"))
        # Beside the API, which holds the database: reading only, and by the groups themselves.
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=30)) as database:
            return Counter(draw for (draw,) in database.execute("SELECT draw FROM groups"))

    def groups(self) -> int:
        return self.draws().total()


class Command:
    """The command under test. What it says is in `log`."""

    def __init__(self, words: list[str], stage: Stage, home: Path) -> None:
        self.log = stage.folder / f"command-{len(stage.commands)}.log"
        environ = {**stage.environ, "HERMES_HOME": str(home)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environ, cwd=stage.folder)

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 120.0) -> int:
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10.0)


class PacedModel(VLLMServer):
    """Where workers on other machines reach it; as slow as `seconds_a_turn` says at any moment."""

    def __init__(self, seconds_a_turn: float, host: str) -> None:
        super().__init__(says_it)
        self.seconds_a_turn = seconds_a_turn
        self._host = host

    async def _send(self, request: web.BaseRequest, body: dict[str, Any], reply: Any) -> web.StreamResponse:
        began = time.monotonic()
        # In small steps, so that a faster pace is that of those who wait already.
        while time.monotonic() - began < self.seconds_a_turn:
            await asyncio.sleep(min(0.1, self.seconds_a_turn))
        return await super()._send(request, body, reply)


class Apis:
    """So many `hermes-rl api` over one database, each of which can be killed and started again where it was."""

    def __init__(self, database: str, count: int, options: tuple[str, ...], environment: dict[str, str]) -> None:
        self._database, self._options, self._environment = database, options, environment
        self._all: list[ApiProcess] = []
        for _ in range(count):
            self._all.append(self._begun(0))

    @property
    def urls(self) -> list[str]:
        return [api.url for api in self._all]

    @property
    def ports(self) -> list[int]:
        return [api.port for api in self._all]

    def kill(self, number: int) -> None:
        self._all[number].kill()

    def start(self, number: int) -> None:
        self._all[number] = self._begun(self._all[number].port)

    def close(self) -> None:
        for api in self._all:
            if api.process.poll() is None:
                api.kill()

    def _begun(self, port: int) -> ApiProcess:
        return ApiProcess(self._database, *self._options, port=port, environment=self._environment)


@asynccontextmanager
async def staged(
    folder: Path,
    seconds_a_turn: float = 0.1,
    host: str = "127.0.0.1",
    database: str | None = None,
    apis: int = 1,
) -> AsyncIterator[Stage]:
    """At another address than this machine's own the API wants a token, as it does of everybody.

    Over SQLite unless the address of a PostgreSQL is given; several APIs are behind one address.
    """
    MODEL.save(folder / "tokenizer")
    token = None if host == "127.0.0.1" else "of-the-stage"
    shown = () if token is None else ("--host", host, "--token", f"env:{TOKEN}")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    place = database or str(folder / "store.db")
    async with AsyncExitStack() as stack:
        processes = Apis(place, apis, shown, {TOKEN: token or ""})
        stack.callback(processes.close)
        [url] = processes.urls if apis == 1 else [await stack.enter_async_context(balanced(processes.ports, host))]
        model = await stack.enter_async_context(PacedModel(seconds_a_turn, host))
        async with aiohttp.ClientSession(headers=headers) as session:
            trainer = {"name": "trainer", "batch_size": 4, "max_staleness": 1_000_000}
            async with session.post(f"{url}/v1/trainers", json=trainer) as answer:
                assert answer.status < 300, await answer.text()
        stage = Stage(folder, place, url, model, processes, token)
        try:
            yield stage
        finally:
            for command in stage.commands:
                command.close()


async def until(true: Callable[[], object], seconds: float = 120.0, what: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(0.1)
