"""New weights into a real vLLM while it samples, and a real vLLM that is killed."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import Sampled
from hermes_rl.training.vllm_fleet.fleet import VllmFleet
from hermes_rl.training.vllm_fleet.membership import VllmTimeouts
from scripts.hf_model import model_folder
from tests.engines.conftest import TokenEndpoint, running_vllm
from tests.support.adapters import random_adapter

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]

TIMES = VllmTimeouts(patience=200.0, longest_pause=1.0)
PROMPT = (1, 40, 50, 60)
LONG = 400


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Those of version 1, 2 and so on."""
    home = tmp_path_factory.mktemp("adapters")
    return [random_adapter(model_folder("tiny"), home / f"v{seed}", seed=seed) for seed in (1, 2)]


@pytest.fixture
async def fleet(lora_vllm: TokenEndpoint) -> AsyncIterator[VllmFleet]:
    async with VllmFleet([lora_vllm.root], run="real", timeouts=TIMES) as fleet:
        yield fleet


async def greedy(fleet: VllmFleet, length: int = 12) -> Sampled:
    request = SamplingRequest.from_parameters({"temperature": 0, "max_tokens": length, "ignore_eos": True})
    return (await fleet.sample(PROMPT, request)).completions[0]


async def test_each_version_answers_as_its_own_weights_do(fleet: VllmFleet, adapters: list[Path]) -> None:
    said = []
    for version, folder in enumerate([None, *adapters]):
        await fleet.load(version, folder)
        said.append(await greedy(fleet))
    assert [one.versions for one in said] == [(version,) * 12 for version in range(3)]
    assert len({one.tokens for one in said}) == 3


async def test_a_completion_ends_on_the_weights_it_began_with(fleet: VllmFleet, adapters: list[Path]) -> None:
    # On a busy machine loading can take longer than a completion, and then nothing is shown.
    for version in range(1, 21, 2):
        await fleet.load(version, adapters[0])
        whole = await greedy(fleet, LONG)
        under_way = asyncio.create_task(greedy(fleet, LONG))
        await asyncio.sleep(0.2)
        await fleet.load(version + 1, adapters[1])
        if not under_way.done():
            break
    else:
        pytest.fail("ten times the completion had ended before the new weights were there")
    newer, old = await greedy(fleet), await under_way
    assert (old.tokens, old.versions[-1], newer.versions[0]) == (whole.tokens, version, version + 1)
    assert max(abs(one - other) for one, other in zip(old.logprobs, whole.logprobs, strict=True)) < 1e-4


async def test_scored_tokens_have_the_logprobs_they_were_drawn_with(fleet: VllmFleet, adapters: list[Path]) -> None:
    await fleet.load(1, adapters[0])
    sampled = await greedy(fleet)
    version, logprobs = await fleet.logprobs([*PROMPT, *sampled.tokens])
    assert (version, logprobs[0]) == (1, None)
    assert logprobs[len(PROMPT) :] == pytest.approx(sampled.logprobs, abs=1e-4)


async def test_a_folder_that_is_no_adapter_is_refused_in_words(fleet: VllmFleet, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="No adapter found"):
        await fleet.load(1, tmp_path)


async def test_a_server_that_was_killed_comes_back_with_the_newest_weights(
    lora_vllm: TokenEndpoint, adapters: list[Path], tmp_path: Path
) -> None:
    with running_vllm(model_folder("tiny"), tmp_path / "first.txt", name="tiny", lora=True) as (other, process):
        async with VllmFleet([lora_vllm.root, other.root], run="killed", timeouts=TIMES) as fleet:
            assert await fleet.load(1, adapters[0]) == 2
            whole = await greedy(fleet, LONG)
            asked = [asyncio.create_task(greedy(fleet, LONG)) for _ in range(4)]
            await asyncio.sleep(0.5)
            kill(process)
            assert [one.tokens for one in await asyncio.gather(*asked)] == [whole.tokens] * 4
            assert await fleet.load(2, adapters[1]) == 1
            port = int(other.root.rpartition(":")[2])
            with running_vllm(model_folder("tiny"), tmp_path / "again.txt", name="tiny", port=port, lora=True):
                async with asyncio.timeout(60):
                    while fleet.states()[1].version != 2:
                        await asyncio.sleep(0.1)


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
