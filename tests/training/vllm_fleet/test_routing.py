import aiohttp
import pytest

from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError
from hermes_rl.training.vllm_fleet.fleet import CHUNK_TOKENS, PrefixCacheMap
from hermes_rl.training.vllm_fleet.routing import (
    MAX_EXTRA_LOAD,
    choose_server,
    is_server_fault,
    newest_version,
    unused_versions,
)
from hermes_rl.training.vllm_fleet.server import VllmServer


async def standing(version: int | None, load: int = 0) -> VllmServer:
    async with aiohttp.ClientSession() as session:
        server = VllmServer(Endpoint(APIServerConfig(base_url="http://127.0.0.1:1"), session), "run", "life")
    server.version = version
    server.running[version or 0] += load
    return server


async def test_the_newest_version_is_that_of_any_server() -> None:
    assert newest_version([await standing(1), await standing(3), await standing(None)]) == 3


async def test_a_fleet_that_is_out_has_no_version() -> None:
    assert newest_version([await standing(None)]) is None


async def test_the_least_loaded_of_the_newest_is_asked() -> None:
    idle_but_old, busy, least = await standing(1), await standing(2, 9), await standing(2, 3)
    assert choose_server([idle_but_old, busy, least], 2, None) is least


async def test_whoever_has_the_prompt_is_asked_while_it_has_little_more_to_do() -> None:
    idle, holder = await standing(2), await standing(2, MAX_EXTRA_LOAD)
    assert choose_server([idle, holder], 2, holder) is holder


async def test_a_holder_with_much_to_do_is_passed_over() -> None:
    idle, holder = await standing(2), await standing(2, MAX_EXTRA_LOAD + 1)
    assert choose_server([idle, holder], 2, holder) is idle


async def test_a_holder_that_left_is_not_asked() -> None:
    there, holder = await standing(2, 5), await standing(None)
    assert choose_server([there, holder], 2, holder) is there


@pytest.mark.parametrize(
    ("error", "at_fault"),
    [
        (RetryableEndpointError("http_503", ""), True),
        (RetryableEndpointError("connection", ""), True),
        (EndpointError("http_404", ""), True),
        (EndpointError("timeout", ""), True),
        (RetryableEndpointError("http_429", ""), False),
        (EndpointError("http_400", ""), False),
        (ContextFullError("context_full", ""), False),
    ],
)
def test_what_a_server_is_to_blame_for(error: EndpointError, at_fault: bool) -> None:
    assert is_server_fault(error) is at_fault


async def test_weights_that_something_runs_on_are_no_surplus() -> None:
    server = await standing(3)
    server._names = {1: "one", 2: "two", 3: "three"}
    with server.in_flight(1, 4):
        assert unused_versions(server, ()) == [2]
    assert unused_versions(server, ()) == [1, 2]
    assert unused_versions(server, {2}) == [1]


def test_a_prompt_that_goes_on_is_held_where_it_began() -> None:
    prefixes: PrefixCacheMap[str] = PrefixCacheMap()
    prompt = list(range(10 * CHUNK_TOKENS))
    prefixes.record(1, prompt, "here")
    assert prefixes.holder(1, [*prompt, *range(CHUNK_TOKENS)]) == "here"


def test_a_shared_beginning_alone_holds_no_prompt() -> None:
    prefixes: PrefixCacheMap[str] = PrefixCacheMap()
    system = list(range(5 * CHUNK_TOKENS))
    prefixes.record(1, system, "here")
    assert prefixes.holder(1, [*system, *range(5 * CHUNK_TOKENS)]) is None


def test_caches_of_one_version_are_not_anothers() -> None:
    prefixes: PrefixCacheMap[str] = PrefixCacheMap()
    prompt = list(range(4 * CHUNK_TOKENS))
    prefixes.record(1, prompt, "here")
    assert prefixes.holder(2, prompt) is None


def test_only_the_latest_beginnings_are_remembered() -> None:
    prefixes: PrefixCacheMap[str] = PrefixCacheMap(max_prefixes=4)
    first, second = list(range(4 * CHUNK_TOKENS)), list(range(7, 4 * CHUNK_TOKENS + 7))
    prefixes.record(1, first, "first")
    prefixes.record(1, second, "second")
    assert (prefixes.holder(1, first), prefixes.holder(1, second)) == (None, "second")
