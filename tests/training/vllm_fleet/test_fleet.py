import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError, ContextFullError, EndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import Sampled
from hermes_rl.training.vllm_fleet.fleet import VllmFleet
from hermes_rl.training.vllm_fleet.membership import VllmTimeouts
from tests.support.lora_server import BASE, LENGTH, LoraServer
from tests.support.scripted_model import Delayed, Garbage, Hang, Reset, Status
from tests.support.token_servers import Asked, TokenReply, Tokens, logprob_of

QUICK = VllmTimeouts(answer=20.0, load=10.0, probe=10.0, patience=10.0, first_pause=0.02, longest_pause=0.05)
IMPATIENT = replace(QUICK, patience=0.1)
PROMPT = tuple(range(1, 200))
ONE = SamplingRequest.from_parameters({})
FOLDER = Path("somewhere")


@pytest.fixture
async def servers() -> AsyncIterator[list[LoraServer]]:
    async with LoraServer() as one, LoraServer() as other:
        yield [one, other]


@pytest.fixture
async def fleet(servers: list[LoraServer]) -> AsyncIterator[VllmFleet]:
    async with VllmFleet([server.root for server in servers], run="words", timeouts=QUICK) as fleet:
        yield fleet


@pytest.fixture
async def alone(servers: list[LoraServer]) -> AsyncIterator[VllmFleet]:
    """A fleet of the first server."""
    async with VllmFleet([servers[0].root], run="words", timeouts=QUICK) as fleet:
        yield fleet


async def drawn(fleet: VllmFleet, request: SamplingRequest = ONE) -> Sampled:
    answer = await fleet.sample(PROMPT, request)
    return answer.completions[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def on_words(reply: TokenReply) -> Callable[[Asked], TokenReply | None]:
    """A fault of real requests; the one token that proves a server is answered."""
    return lambda asked: reply if len(asked.prompt) > 1 else None


def slow(asked: Asked, seconds: float) -> Delayed:
    """What would be answered, later."""
    written: Any = Tokens((int(asked.body["model"].rpartition("v")[2]),))
    return Delayed(seconds, written)


# --- new weights ---


async def test_a_fleet_without_servers_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="vllm_servers"):
        VllmFleet([], run="words")


async def test_there_is_no_version_before_the_first_weights(fleet: VllmFleet) -> None:
    assert fleet.version is None


async def test_whoever_asks_too_early_hears_of_each_server(servers: list[LoraServer]) -> None:
    one, other = (server.root for server in servers)
    async with VllmFleet([one, other], run="words", timeouts=IMPATIENT) as fleet:
        with pytest.raises(EndpointError, match=f"{one}.*{other}") as caught:
            await drawn(fleet)
    assert caught.value.cause == "no_server"


async def test_whoever_asks_early_waits_for_the_first_weights(fleet: VllmFleet) -> None:
    asked = asyncio.create_task(drawn(fleet))
    await asyncio.sleep(0.05)
    await fleet.load(1, FOLDER)
    assert (await asked).versions == (1,) * LENGTH


async def test_every_server_takes_the_weights(fleet: VllmFleet, servers: list[LoraServer]) -> None:
    assert await fleet.load(4, FOLDER) == 2
    assert [server.versions for server in servers] == [{4}, {4}]


async def test_servers_are_told_where_the_folder_lies_from_the_root(
    alone: VllmFleet, servers: list[LoraServer]
) -> None:
    await alone.load(4, FOLDER)
    assert list(servers[0].adapters.values()) == [str(FOLDER.resolve())]


async def test_a_held_version_stays_loaded_and_is_drawn_from(fleet: VllmFleet, servers: list[LoraServer]) -> None:
    await fleet.load(4, FOLDER)
    assert fleet.hold("evaluation", None, 60) == 4
    await fleet.load(5, FOLDER)
    await fleet.load(6, FOLDER)
    assert [server.versions for server in servers] == [{4, 6}, {4, 6}]
    assert (await fleet.sample(PROMPT, ONE, 4)).completions[0].versions == (4,) * LENGTH
    assert (await fleet.sample(PROMPT, ONE, 5)).completions[0].versions == (6,) * LENGTH
    assert fleet.versions_in_use == {4, 6}


async def test_a_version_that_is_let_go_is_unloaded(alone: VllmFleet, servers: list[LoraServer]) -> None:
    await alone.load(4, FOLDER)
    alone.hold("evaluation", 4, 60)
    await alone.load(5, FOLDER)
    alone.hold("evaluation", 4, 0)
    assert (await drawn(alone)).versions == (5,) * LENGTH
    await until(lambda: servers[0].versions == {5})
    assert alone.hold("evaluation", 4, 60) is None


async def test_a_held_version_that_a_restarted_server_lacks_is_the_newest(
    alone: VllmFleet, servers: list[LoraServer]
) -> None:
    await alone.load(4, FOLDER)
    alone.hold("evaluation", 4, 60)
    await alone.load(5, FOLDER)
    servers[0].adapters.clear()
    assert (await alone.sample(PROMPT, ONE, 4)).completions[0].versions == (5,) * LENGTH


async def test_tokens_say_the_version_that_drew_them(fleet: VllmFleet) -> None:
    await fleet.load(4, FOLDER)
    sampled = await drawn(fleet)
    assert (sampled.tokens, sampled.versions) == ((4,) * LENGTH, (4,) * LENGTH)


async def test_the_base_model_is_a_version_too(fleet: VllmFleet, servers: list[LoraServer]) -> None:
    await fleet.load(0, None)
    sampled = await drawn(fleet)
    assert (sampled.tokens[0], sampled.versions[0], servers[0].told) == (BASE, 0, [])


async def test_a_completion_under_way_keeps_its_weights(alone: VllmFleet, servers: list[LoraServer]) -> None:
    await alone.load(1, FOLDER)
    servers[0].fault = lambda asked: slow(asked, 1.0) if asked.body["model"].endswith("v1") else None
    old = asyncio.create_task(drawn(alone))
    await until(lambda: servers[0].open == 1)
    await alone.load(2, FOLDER)
    assert ((await drawn(alone)).versions[0], servers[0].versions) == (2, {1, 2})
    assert (await old).versions == (1,)


async def test_old_weights_are_unloaded_when_their_last_completion_ends(
    alone: VllmFleet, servers: list[LoraServer]
) -> None:
    await alone.load(1, FOLDER)
    servers[0].fault = lambda asked: slow(asked, 1.0) if asked.body["model"].endswith("v1") else None
    old = asyncio.create_task(drawn(alone))
    await until(lambda: servers[0].open == 1)
    await alone.load(2, FOLDER)
    assert alone.versions_in_use == {1, 2}
    await old
    await until(lambda: servers[0].versions == {2})
    assert alone.versions_in_use == {2}


async def test_old_weights_that_nothing_runs_on_go_at_once(fleet: VllmFleet, servers: list[LoraServer]) -> None:
    for version in (1, 2, 3):
        await fleet.load(version, FOLDER)
    assert [server.versions for server in servers] == [{3}, {3}]


async def test_a_version_never_goes_back(fleet: VllmFleet) -> None:
    await fleet.load(2, FOLDER)
    with pytest.raises(ValueError, match="never decrease"):
        await fleet.load(1, FOLDER)


async def test_a_version_that_is_there_is_not_loaded_again(alone: VllmFleet, servers: list[LoraServer]) -> None:
    await alone.load(2, FOLDER)
    assert await alone.load(2, Path("elsewhere")) == 1
    assert len(servers[0].told) == 1


async def test_requests_go_to_the_server_that_has_the_newest_weights(
    fleet: VllmFleet, servers: list[LoraServer]
) -> None:
    await fleet.load(1, FOLDER)
    servers[0].loading.clear()
    loading = asyncio.create_task(fleet.load(2, FOLDER))
    await until(lambda: fleet.version == 2)
    assert {(await drawn(fleet)).versions[0] for _ in range(5)} == {2}
    servers[0].loading.set()
    assert await loading == 2


async def test_adapters_of_the_runs_earlier_life_are_cleared_away(alone: VllmFleet, servers: list[LoraServer]) -> None:
    servers[0].adapters |= {"words@abcdef-v7": "gone", "words-2@abcdef-v7": "another run's", "mine": "somebody's"}
    await alone.load(8, FOLDER)
    assert {"words@abcdef-v7", "words-2@abcdef-v7", "mine"} & servers[0].adapters.keys() == {
        "words-2@abcdef-v7",
        "mine",
    }


# --- servers that fail ---


async def test_a_server_that_refuses_the_weights_leaves(fleet: VllmFleet, servers: list[LoraServer]) -> None:
    await fleet.load(1, FOLDER)
    servers[0].load_fault = Status(500, {"error": {"message": "LoRA rank 64 is greater than max_lora_rank 16."}})
    assert await fleet.load(2, FOLDER) == 1
    assert [(one.version, "max_lora_rank" in one.problem) for one in fleet.states()] == [(None, True), (2, False)]


async def test_it_comes_back_with_the_newest_weights_when_it_takes_them(
    fleet: VllmFleet, servers: list[LoraServer]
) -> None:
    servers[0].load_fault = Status(500)
    await fleet.load(1, FOLDER)
    await fleet.load(2, FOLDER)
    servers[0].load_fault = None
    await until(lambda: [one.version for one in fleet.states()] == [2, 2])
    assert servers[0].versions == {2}


async def test_weights_that_no_server_takes_are_an_error_with_the_next_step(
    fleet: VllmFleet, servers: list[LoraServer]
) -> None:
    for server in servers:
        server.load_fault = Status(404, {"detail": "Not Found"})
    with pytest.raises(EndpointError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        await fleet.load(1, FOLDER)


async def test_a_server_that_is_away_gets_the_weights_when_it_is_there(servers: list[LoraServer]) -> None:
    async with LoraServer() as late:
        port = late.port
    async with VllmFleet([servers[0].root, late.root], run="words", timeouts=QUICK) as fleet:
        assert await fleet.load(1, FOLDER) == 1
        async with LoraServer(port=port) as late:
            await until(lambda: late.versions == {1})
            await until(lambda: fleet.states()[1].version == 1)


async def test_with_all_servers_away_loading_is_no_error(servers: list[LoraServer]) -> None:
    async with LoraServer() as gone:
        root = gone.root
    async with VllmFleet([root], run="words", timeouts=QUICK) as fleet:
        assert await fleet.load(1, FOLDER) == 0


@pytest.mark.parametrize(
    "fault", [Status(500), Status(503), Reset(), Garbage(), Tokens((7,), "abort")], ids=lambda fault: str(fault)[:12]
)
async def test_a_request_that_one_server_fails_is_answered_by_another(
    fleet: VllmFleet, servers: list[LoraServer], fault: TokenReply
) -> None:
    await fleet.load(1, FOLDER)
    servers[0].fault = on_words(fault)
    answers = [await drawn(fleet) for _ in range(4)]
    assert [answer.tokens[0] for answer in answers] == [1] * 4


async def test_a_server_that_was_restarted_is_given_the_weights_again(
    alone: VllmFleet, servers: list[LoraServer]
) -> None:
    await alone.load(3, FOLDER)
    servers[0].adapters.clear()
    assert ((await drawn(alone)).tokens[0], servers[0].versions) == (3, {3})


async def test_a_server_that_hangs_is_out_until_it_samples_a_token(servers: list[LoraServer]) -> None:
    async with VllmFleet([servers[0].root], run="words", timeouts=replace(QUICK, probe=0.3)) as fleet:
        servers[0].fault = lambda _asked: Hang()
        assert await fleet.load(1, FOLDER) == 0
        servers[0].fault = lambda _asked: None
        await fleet.wait_until_ready(10)
        assert fleet.version == 1


async def test_an_answer_that_takes_too_long_is_not_asked_for_again(servers: list[LoraServer]) -> None:
    async with VllmFleet([servers[0].root], run="words", timeouts=replace(QUICK, answer=0.1)) as fleet:
        await fleet.load(1, FOLDER)
        servers[0].fault = on_words(Hang())
        before = servers[0].requests
        with pytest.raises(EndpointError, match=r"within 0\.1 s"):
            await drawn(fleet)
        assert len([one for one in list(servers[0].bodies)[before:] if len(one["token_ids"]) > 1]) == 1


async def test_a_load_whose_answer_was_lost_is_a_load(alone: VllmFleet, servers: list[LoraServer]) -> None:
    await alone.load(1, FOLDER)
    [name] = servers[0].adapters
    servers[0].adapters[name.replace("v1", "v2")] = "loaded"
    assert await alone.load(2, FOLDER) == 1


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(Status(400, {"error": {"message": "top_k must be -1 or more"}}), "http_400"), (Status(429), "http_429")],
)
async def test_what_the_request_is_to_blame_for_goes_to_whoever_asked(
    fleet: VllmFleet, servers: list[LoraServer], fault: TokenReply, cause: str
) -> None:
    await fleet.load(1, FOLDER)
    for server in servers:
        server.fault = on_words(fault)
    with pytest.raises(EndpointError) as caught:
        await drawn(fleet)
    assert (caught.value.cause, [one.version for one in fleet.states()]) == (cause, [1, 1])


async def test_a_prompt_that_fills_the_context_is_told_as_such(fleet: VllmFleet) -> None:
    await fleet.load(1, FOLDER)
    assert fleet.context_tokens == 4096
    with pytest.raises(ContextFullError):
        await fleet.sample(range(5000), ONE)


async def test_failures_that_go_on_are_given_up_on(fleet: VllmFleet, servers: list[LoraServer]) -> None:
    await fleet.load(1, FOLDER)
    for server in servers:
        server.fault = on_words(Status(500, "the engine is dead"))
    with pytest.raises(EndpointError, match="the engine is dead"):
        await drawn(fleet)


async def test_leaving_is_counted(fleet: VllmFleet, servers: list[LoraServer]) -> None:
    await fleet.load(1, FOLDER)
    servers[0].fault = on_words(Status(500))
    servers[0].load_fault = Status(500)
    await asyncio.gather(*(drawn(fleet) for _ in range(8)))
    assert fleet.metrics()["vllm/left"] >= 1


async def test_a_fleet_that_is_left_leaves_no_task_behind(servers: list[LoraServer]) -> None:
    before = asyncio.all_tasks()
    servers[1].load_fault = Status(500)
    async with VllmFleet([server.root for server in servers], run="words", timeouts=QUICK) as fleet:
        await fleet.load(1, FOLDER)
    gc.collect()
    # The servers' own tasks are theirs to end.
    assert not [task for task in asyncio.all_tasks() - before if "vllm_fleet" in repr(task.get_coro())]


# --- scores, and many at once ---


async def test_logprobs_are_of_each_token_but_the_first(fleet: VllmFleet) -> None:
    await fleet.load(3, FOLDER)
    assert await fleet.logprobs([5, 6, 7]) == (3, [None, logprob_of(6), logprob_of(7)])


async def test_an_answer_without_prompt_logprobs_is_no_score(fleet: VllmFleet, servers: list[LoraServer]) -> None:
    await fleet.load(3, FOLDER)
    for server in servers:
        server.fault = on_words(Garbage(b'{"choices": [{"prompt_logprobs": [null]}]}'))
    with pytest.raises(EndpointError, match="no logprobs for 3 prompt tokens"):
        await fleet.logprobs([5, 6, 7])


async def test_every_token_has_its_version_while_weights_change_and_servers_fail(servers: list[LoraServer]) -> None:
    async with AsyncExitStack() as stack:
        third = await stack.enter_async_context(LoraServer())
        addresses = [server.root for server in (*servers, third)]
        fleet = await stack.enter_async_context(VllmFleet(addresses, run="words", timeouts=QUICK))
        await fleet.load(1, FOLDER)
        for number, server in enumerate((*servers, third)):
            server.fault = lambda asked, number=number: (  # type: ignore[misc]
                Status(500) if number == 2 and asked.prompt[-1] % 7 == 0 else slow(asked, 0.02)
            )

        last = 12

        async def ask(worker: int) -> list[Sampled]:
            sampled: list[Sampled] = []
            for number in count(worker):
                answer = await fleet.sample((*PROMPT, number), SamplingRequest.from_parameters({"n": 2}))
                sampled += answer.completions
                if answer.completions[0].versions[0] == last:
                    return sampled
            raise AssertionError("counting ends")

        asked = [asyncio.create_task(ask(worker)) for worker in range(12)]
        for version in range(2, last + 1):
            await asyncio.sleep(0.03)
            await fleet.load(version, FOLDER)
        sampled = [one for answers in await asyncio.gather(*asked) for one in answers]
        assert all(one.tokens == one.versions for one in sampled)
        assert len({one.versions for one in sampled}) > 5
