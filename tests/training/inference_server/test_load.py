import asyncio
from collections.abc import Sequence

import pytest

from hermes_rl.inference.token_engines import SamplingRequest
from tests.support.inference import Inference, inference
from tests.support.scripted_sampler import ScriptedSampler

CLIENTS, GROUP = 512, 8


def telling(version: int) -> ScriptedSampler:
    """Weights that say their own version, and the prompt's last token after it."""

    def script(ids: Sequence[int], request: SamplingRequest, _: int) -> Sequence[int]:
        return [version, ids[-1], *request.stop_token_ids[:1]]

    return ScriptedSampler(script, seconds=0.05)


@pytest.mark.timeout(120)
async def test_of_512_at_once_nobody_is_lost_and_every_version_is_right_while_weights_change() -> None:
    async def newer(server: Inference) -> None:
        while True:
            await asyncio.sleep(0.1)
            version = (server.policy.version or 0) + 1
            server.policy.publish(version, telling(version))

    async def three_turns(server: Inference, client: int) -> list[int]:
        versions = []
        for turn in range(3):
            last = 300 + client // GROUP
            body = {"token_ids": [5, turn, last], "sampling_params": {"logprobs": 0}}
            answer = await server.right("/inference/v1/generate", body)
            [choice] = answer["choices"]
            [span] = choice["weight_versions"]
            version, echoed, _ = choice["token_ids"]
            assert (span["version"], answer["policy_version"], echoed) == (str(version), version, last)
            versions.append(version)
        return versions

    async with inference(telling(0), version=0) as server:
        publishing = asyncio.create_task(newer(server))
        seen = await asyncio.gather(*(three_turns(server, client) for client in range(CLIENTS)))
        publishing.cancel()
        _, raw = await server("/metrics")
    assert all(versions == sorted(versions) for versions in seen)
    assert len({version for versions in seen for version in versions}) > 1
    figures = dict(line.rsplit(" ", 1) for line in raw.decode().splitlines() if not line.startswith("#"))
    assert int(figures["hermes_rl_completions_total"]) == 3 * CLIENTS
    assert int(figures["hermes_rl_sampling_calls_total"]) < 3 * CLIENTS
