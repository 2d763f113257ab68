import asyncio
import signal
from typing import Any

import aiohttp
import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.training.inference_server.config import ChatFormats, InferenceSettings
from hermes_rl.training.inference_server.server import inference_server
from hermes_rl.training.live_policy import SamplingPolicy
from tests.support.inference import CHATML, USER, inference, saying

CHAT = "/v1/chat/completions"
SAID = {"messages": [USER]}
FORMATS = ChatFormats(CHATML.tokenizer, FormatSettings())


async def test_others_cannot_reach_it_without_a_token() -> None:
    with pytest.raises(ConfigError, match="inference_token"):
        async with inference_server(SamplingPolicy(), FORMATS, InferenceSettings("m"), host="0.0.0.0"):
            pass


async def test_a_token_opens_it_to_others() -> None:
    settings = InferenceSettings("m", token="secret")
    policy = SamplingPolicy()
    policy.publish(0, saying("Yes."))
    async with inference_server(policy, FORMATS, settings, host="0.0.0.0") as url:
        port = url.rpartition(":")[2]
        headers = {"Authorization": "Bearer secret"}
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session,
            session.post(CHAT, json=SAID) as response,
        ):
            assert response.status == 200


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}])
async def test_nobody_comes_in_without_the_token(header: dict[str, str]) -> None:
    async with inference(saying("Yes."), token="secret", headers=header) as server:
        status, answer = await server(CHAT, SAID)
    assert (status, answer["error"]["type"]) == (401, "unauthorised")


async def test_whoever_watches_over_the_process_needs_no_token() -> None:
    async with inference(saying("Yes."), token="secret") as server:
        assert [(await server(path))[0] for path in ("/health", "/ping", "/metrics")] == [200, 200, 401]


@pytest.mark.parametrize("header", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
async def test_a_page_in_a_browser_cannot_use_a_server_without_a_token(header: dict[str, str]) -> None:
    async with inference(saying("Yes.")) as server:
        assert (await server(CHAT, SAID, headers=header))[0] == 403


async def test_a_port_that_is_taken_is_an_error_with_a_next_step() -> None:
    async with inference(saying("Yes.")) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match="another --port"):
            async with inference_server(SamplingPolicy(), FORMATS, InferenceSettings("m"), port=port):
                pass


async def test_signals_stay_with_the_process_it_runs_in() -> None:
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, heard.set)
    before: Any = signal.getsignal(signal.SIGTERM)
    try:
        async with inference(saying("Yes.")):
            assert signal.getsignal(signal.SIGTERM) is before
            signal.raise_signal(signal.SIGUSR1)
            async with asyncio.timeout(5):
                await heard.wait()
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


def test_formats_are_made_once_and_the_few_used_last_are_kept() -> None:
    formats = ChatFormats(CHATML.tokenizer, FormatSettings())
    plain = formats({})
    assert formats({}) is plain
    for place in range(formats.max_cached):
        formats({"place": place})
    assert formats({}) is not plain
