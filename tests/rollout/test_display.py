"""A run in which nothing finishes says so regularly: for how long, what it waits for, and what to check."""

import asyncio
import re
import socket
import time

import pytest

from hermes_rl import APIServerConfig, ServerManager
from hermes_rl.core.errors import EndpointError
from hermes_rl.inference import readiness
from hermes_rl.rollout import display
from hermes_rl.rollout.metrics import RolloutCounts
from tests.support.scripted_model import Delayed, ScriptedModel, Text


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "SILENCE", 0.3)
    monkeypatch.setattr(readiness, "READY_ANSWER", 0.1)
    monkeypatch.setattr(readiness, "REPORT_SECONDS", 0.3)


async def until_printed(capsys: pytest.CaptureFixture[str], pattern: str, times: int) -> str:
    """What was printed once the pattern has occurred so often."""
    printed, end = "", time.monotonic() + 60
    while len(re.findall(pattern, printed)) < times:
        assert time.monotonic() < end, printed
        await asyncio.sleep(0.05)
        printed += capsys.readouterr().err
    return printed


async def test_the_wait_for_an_endpoint_is_reported_until_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    async with ScriptedModel(lambda _: Delayed(60, Text("late"))) as model:
        server = ServerManager([APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0)])
        with display.progress("process", 10, RolloutCounts(), waiting=server.waiting_text) as progress:
            asking = asyncio.create_task(server.chat_completion(messages=[{"role": "user", "content": "hello"}]))
            printed = await until_printed(capsys, r"process 0/10  none finished for \d+ s", 2)
            assert f"requests wait for an answer: 1 at {model.base_url}; if none comes, check" in printed
            asking.cancel()
            await asyncio.wait([asking])
            await until_printed(capsys, "no request is at an endpoint", 1)
            progress.advance()
        await server.close()
    await asyncio.sleep(0.5)
    assert "none finished" not in capsys.readouterr().err.rpartition("process 1/10")[2]


async def test_an_endpoint_that_accepts_and_never_answers_is_reported_while_it_is_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        async with ServerManager([APIServerConfig(base_url=url, model_name="m")]) as server:
            waiting = asyncio.create_task(server.wait_until_ready(2.5))
            await until_printed(capsys, rf"warning: waiting for {url} for \d+ s of 2.5 s \(timeout\); check that", 2)
            with pytest.raises(EndpointError, match="Start the model server"):
                await waiting
