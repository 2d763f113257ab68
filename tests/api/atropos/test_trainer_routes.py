import asyncio
import gzip
import json
from io import BytesIO
from typing import Any

import aiohttp
import pytest

from hermes_rl.api.atropos.batch_response import accepts_gzip
from hermes_rl.store.database.store import Store
from tests.api.atropos.making import make_environment, make_registration, make_scored_data
from tests.store.database.making import make_group, make_rollout, make_sequence
from tests.support.trajectory_api import Caller, calling


async def begun(api: Caller, batch_size: int = 8, **fields: Any) -> int:
    """A trainer and an environment; the latter's number."""
    assert (await api("POST", "/register", json=make_registration(batch_size, **fields)))[0] == 200
    return int((await api("POST", "/register-env", json=make_environment()))[1]["env_id"])


async def filled(api: Caller, environment: int, count: int = 2) -> list[list[float]]:
    made = [make_scored_data(env_id=environment) for _ in range(count)]
    for body in made:
        assert (await api("POST", "/scored_data", json=body))[0] == 200
    return [body["scores"] for body in made]


async def batch(api: Caller) -> list[list[float]] | None:
    status, told = await api("GET", "/batch")
    assert status == 200
    return None if told["batch"] is None else [group["scores"] for group in told["batch"]]


async def step(api: Caller) -> int:
    return int((await api("GET", "/status"))[1]["current_step"])


async def test_without_a_trainer_there_is_no_batch(api: Caller) -> None:
    assert (await api("GET", "/batch"))[1] == {
        "status": "error",
        "message": "Trainer not registered. Call /register first.",
        "batch": [],
    }


async def test_a_queue_that_is_too_short_is_no_batch(api: Caller) -> None:
    await filled(api, await begun(api), 1)
    assert await batch(api) is None


async def test_the_next_question_acknowledges_the_batch_before(api: Caller, store: Store) -> None:
    await filled(api, await begun(api))
    await batch(api)
    before = await store.tallies()
    await batch(api)
    assert (before, [tally.outcome for tally in await store.tallies()]) == ([], ["trained"])


async def test_what_a_trainer_held_returns_when_it_registers_again(api: Caller) -> None:
    posted = await filled(api, await begun(api))
    first = await batch(api)
    await api("POST", "/register", json=make_registration())
    assert first == posted == await batch(api)


async def test_a_step_goes_on_from_where_the_trainer_starts(api: Caller) -> None:
    await filled(api, await begun(api, starting_step=5), 4)
    steps = [await step(api)]
    for _ in range(2):
        await batch(api)
        steps.append(await step(api))
    assert steps == [5, 6, 7]


async def test_a_batch_that_was_sent_half_is_no_step_and_goes_out_again(api: Caller) -> None:
    environment = await begun(api, 16)
    body = make_scored_data(16, 16_384, env_id=environment)
    # A stream, as aiohttp warns of large bodies that are none.
    text = BytesIO(json.dumps(body).encode())
    assert (await api("POST", "/scored_data", data=text))[0] == 200
    async with aiohttp.ClientSession() as trainer:
        url = f"http://127.0.0.1:{api.port}/batch"
        response = await trainer.get(url, headers={"Accept-Encoding": "identity"})
        await response.content.readexactly(1000)
        response.close()
    async with asyncio.timeout(10):
        while (again := await batch(api)) is None:
            assert await step(api) == 0
            await asyncio.sleep(0.05)
    assert (again, await step(api)) == ([body["scores"]], 1)


async def test_a_batch_is_packed_when_the_trainer_asks_for_it(store: Store) -> None:
    async with calling(store, auto_decompress=False) as api:
        posted = await filled(api, await begun(api))
        async with api.session.get("/batch", headers={"Accept-Encoding": "gzip"}) as response:
            told = json.loads(gzip.decompress(await response.read()))
    assert [group["scores"] for group in told["batch"]] == posted


@pytest.mark.parametrize(
    ("header", "packed"),
    [("gzip, deflate", True), ("deflate, GZIP;q=0.5", True), ("identity", False), ("gzip;q=0", False), ("", False)],
)
def test_packing_is_read_off_the_accepted_encodings(header: str, packed: bool) -> None:
    assert accepts_gzip(header) is packed


async def test_a_trainer_of_our_own_may_have_settings_of_its_own(api: Caller) -> None:
    settings = {"starting_step": "first", "max_token_len": None}
    await api.train(name="atropos", settings=settings)
    assert [(await api("GET", path))[0] for path in ("/status", "/info", "/wandb_info")] == [200, 200, 200]


async def test_groups_of_our_own_environments_go_to_an_atropos_trainer(api: Caller) -> None:
    await begun(api, 4)
    await api.post(await api.register(), make_group(4))
    assert await batch(api) == [[0.5] * 4]


async def test_groups_of_several_sequences_a_rollout_do_not(api: Caller, store: Store) -> None:
    await begun(api, 1)
    await api.post(
        await api.register(), make_group(rollouts=(make_rollout(sequences=(make_sequence(), make_sequence())),))
    )
    assert await batch(api) is None
    assert [tally.cause for tally in await store.tallies()] == ["no_one_sequence"]


async def test_a_bad_registration_names_the_field(api: Caller) -> None:
    status, problem = await api("POST", "/register", json=make_registration(0))
    assert (status, problem["field"]) == (422, "batch_size")


async def test_a_reset_empties_the_queue_and_forgets_the_trainer(api: Caller) -> None:
    environment = await begun(api)
    await filled(api, environment)
    assert await api("GET", "/reset_data") == (200, b"Reset successful")
    told = [(await api("GET", path))[1] for path in ("/info", "/wandb_info", "/status")]
    assert told == [
        {"batch_size": -1, "max_token_len": -1},
        {"group": None, "project": None},
        {"current_step": 0, "queue_size": 0},
    ]


async def test_after_a_reset_all_begins_anew(api: Caller) -> None:
    environment = await begun(api)
    await filled(api, environment)
    await batch(api)
    await api("GET", "/reset_data")
    await api("POST", "/register", json=make_registration())
    posted = await filled(api, environment)
    assert (await step(api), await batch(api)) == (0, posted)


async def test_the_trainers_settings_are_told(api: Caller) -> None:
    await begun(api)
    assert [(await api("GET", path))[1] for path in ("/info", "/wandb_info")] == [
        {"batch_size": 8, "max_token_len": 4096},
        {"group": "group", "project": "project"},
    ]


async def test_the_latest_group_is_shown(api: Caller) -> None:
    [_, last] = await filled(api, await begun(api))
    assert (await api("GET", "/latest_example"))[1]["scores"] == last


async def test_without_a_group_the_latest_is_empty(api: Caller) -> None:
    assert set((await api("GET", "/latest_example"))[1]) >= {"tokens", "masks", "scores", "messages"}


async def test_an_environment_of_ours_is_held_back_as_an_environment_of_atropos_would_be(api: Caller) -> None:
    await begun(api, 8)
    path = f"/v1/environments/{await api.register('ours')}/work"
    assert (await api("POST", path, json={"running": 0, "wanted": 1_000}))[1]["granted"] == 4 * 8
