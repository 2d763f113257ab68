"""Requests that name a policy version: sampled from it while it is held, and from the newest after that."""

import asyncio
from typing import Any

import pytest

from hermes_rl.inference.policy_pin import VERSION_HEADER
from hermes_rl.training.request_batching import Window
from tests.support.inference import USER, Inference, inference, saying

HOLD = "/v1/policy/hold"
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": [5, 6]},
    "/inference/v1/generate": {"token_ids": [5, 6], "sampling_params": {}},
    "/logprobs": {"token_ids": [5, 6]},
}


async def asked(server: Inference, path: str, body: dict[str, Any], version: object) -> tuple[int, Any]:
    return await server(path, body, headers={VERSION_HEADER: str(version)})


async def held(server: Inference, seconds: float = 60, **body: Any) -> Any:
    return (await server.right(HOLD, {"holder": "evaluation", "seconds": seconds, **body}))["policy_version"]


@pytest.mark.parametrize("path", ROUTES)
async def test_every_route_answers_from_the_version_that_is_held(path: str) -> None:
    async with inference(saying("Old."), version=3) as server:
        assert await held(server) == 3
        server.policy.publish(4, saying("New."))
        status, answer = await asked(server, path, ROUTES[path], 3)
        assert (status, answer["policy_version"]) == (200, 3)
        assert (await server.right(path, ROUTES[path]))["policy_version"] == 4


async def test_sglangs_form_names_the_held_version_of_each_token() -> None:
    async with inference(saying("Old."), version=3) as server:
        await held(server)
        server.policy.publish(4, saying("New."))
        _, answer = await asked(server, "/generate", {"input_ids": [5, 6]}, 3)
    assert answer["meta_info"]["weight_version"] == "3"


async def test_a_version_that_is_not_held_is_answered_by_the_newest_which_says_so() -> None:
    async with inference(saying("Old."), version=3) as server:
        server.policy.publish(4, saying("New."))
        _, answer = await asked(server, "/v1/chat/completions", {"messages": [USER]}, 3)
        assert (answer["policy_version"], answer["choices"][0]["message"]["content"]) == (4, "New.")
        assert await held(server, version=3) is None


async def test_a_hold_ends_by_itself() -> None:
    async with inference(saying("Old."), version=3) as server:
        await held(server, seconds=0.05)
        await asyncio.sleep(0.1)
        server.policy.publish(4, saying("New."))
        assert (await asked(server, "/logprobs", {"token_ids": [5, 6]}, 3))[1]["policy_version"] == 4


async def test_nothing_can_be_held_before_there_are_weights() -> None:
    async with inference(None) as server:
        assert (await server(HOLD, {"holder": "evaluation", "seconds": 60}))[0] == 503


async def test_a_header_that_is_no_version_is_refused_by_name() -> None:
    async with inference(saying("Yes.")) as server:
        status, answer = await asked(server, "/v1/chat/completions", {"messages": [USER]}, "newest")
    assert (status, answer["error"]["param"]) == (400, VERSION_HEADER)


async def test_requests_for_different_versions_are_not_merged() -> None:
    async with inference(saying("Old."), version=3, window=Window(idle=0.1, max_wait=0.2)) as server:
        await held(server)
        server.policy.publish(4, saying("New."))
        path, body = "/v1/chat/completions", {"messages": [USER]}
        answers = await asyncio.gather(*(asked(server, path, body, version) for version in (3, 4, 3)))
    assert [answer["policy_version"] for _, answer in answers] == [3, 4, 3]
