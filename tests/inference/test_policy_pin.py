"""Evaluations that ask for one policy version: against the trainer's inference server, and against others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hermes_rl.inference import policy_pin
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.policy_pin import PolicyPin, SampledVersions
from hermes_rl.inference.server_manager import ServerManager
from tests.support.inference import CHATML, USER, Inference, inference, saying
from tests.support.scripted_model import ScriptedModel, Text
from tests.support.token_servers import Tokens, VLLMServer


@asynccontextmanager
async def managing(*addresses: str, kind: str = "vllm") -> AsyncIterator[ServerManager]:
    fields = {"model_name": "policy", "server_type": kind, "timeout": 10}
    async with ServerManager([APIServerConfig.model_validate({"base_url": at, **fields}) for at in addresses]) as made:
        yield made


async def ask(server: ServerManager) -> None:
    if not server.returns_tokens:
        await server.chat_completion([USER])
        return
    async with server.managed_server(CHATML.tokenizer) as managed:
        await managed.chat_completion([USER])


def pin_of(server: ServerManager) -> PolicyPin:
    assert server.pin is not None
    return server.pin


def url(server: Inference) -> str:
    return f"{server.url}/v1"


def test_several_versions_are_mixed_and_have_no_single_one() -> None:
    sampled = SampledVersions()
    sampled.note(3, 3)
    assert (sampled.only, sampled.mixed) == (3, False)
    sampled.note(5)
    assert (sampled.only, sampled.low, sampled.high, sampled.mixed) == (None, 3, 5, True)


def test_an_answer_without_a_version_leaves_no_single_one() -> None:
    sampled = SampledVersions()
    sampled.note(3, None)
    assert (sampled.only, sampled.low, sampled.mixed) == (None, 3, False)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
async def test_what_is_asked_meanwhile_comes_from_the_version_at_the_start(kind: str) -> None:
    async with inference(saying("Old."), version=3) as server, managing(url(server), kind=kind) as manager:
        async with manager.pinned() as pinned:
            await ask(pinned)
            server.policy.publish(4, saying("New."))
            await ask(pinned)
            await ask(manager)
            assert server.policy.held == {3}
        assert (pin_of(pinned).version, pin_of(pinned).sampled.only) == (3, 3)
        assert server.policy.held == set()
    assert manager.pin is None


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_a_version_that_was_lost_makes_the_answers_mixed(kind: str) -> None:
    async with inference(saying("Old."), version=3) as server, managing(url(server), kind=kind) as manager:
        async with manager.pinned() as pinned:
            await ask(pinned)
            server.policy.publish(4, saying("New."))
            server.policy.drop(3)
            await ask(pinned)
        sampled = pin_of(pinned).sampled
    assert (sampled.only, sampled.low, sampled.high, sampled.mixed) == (None, 3, 4, True)


async def test_a_version_that_was_announced_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_pin, "PUBLISH_PAUSE", 0.01)
    async with inference(saying("Old."), version=3) as server, managing(url(server)) as manager:

        async def pinned_version() -> int | None:
            async with manager.pinned(at_least=4) as pinned:
                return pin_of(pinned).version

        pinning = asyncio.create_task(pinned_version())
        await asyncio.sleep(0.1)
        server.policy.publish(4, saying("New."))
        assert await pinning == 4


async def test_weights_that_are_away_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_pin, "PUBLISH_PAUSE", 0.01)
    async with inference(None) as server, managing(url(server)) as manager:
        asyncio.get_running_loop().call_later(0.1, server.policy.publish, 7, saying("New."))
        async with manager.pinned() as pinned:
            assert pin_of(pinned).version == 7


async def test_a_hold_is_renewed_while_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_pin, "HOLD_SECONDS", 0.2)
    monkeypatch.setattr(policy_pin, "RENEW_SECONDS", 0.05)
    async with inference(saying("Old."), version=3) as server, managing(url(server)) as manager, manager.pinned():
        server.policy.publish(4, saying("New."))
        await asyncio.sleep(0.6)
        assert server.policy.held == {3}


async def test_an_engine_that_holds_no_versions_is_only_listened_to() -> None:
    def says_yes(_: Any) -> Tokens:
        return Tokens((5, CHATML.stop_ids[0]))

    async with VLLMServer(says_yes, weights="step-6") as model, managing(model.base_url) as manager:
        async with manager.pinned() as pinned:
            await ask(pinned)
            model.weights = "step-7"
            await ask(pinned)
        pin = pin_of(pinned)
    assert (pin.version, pin.sampled.low, pin.sampled.high, pin.sampled.mixed) == (None, 6, 7, True)


async def test_an_endpoint_that_names_no_version_has_none() -> None:
    async with (
        ScriptedModel(lambda _: Text("Yes.")) as model,
        managing(model.base_url, kind="openai") as manager,
        manager.pinned() as pinned,
    ):
        await ask(pinned)
        pin = pin_of(pinned)
    assert (pin.version, pin.sampled.only, pin.sampled.unknown) == (None, None, True)


async def test_servers_of_different_versions_hold_none() -> None:
    async with (
        inference(saying("Old."), version=3) as one,
        inference(saying("New."), version=4) as other,
        managing(url(one), url(other)) as manager,
        manager.pinned() as pinned,
    ):
        assert pin_of(pinned).version is None
