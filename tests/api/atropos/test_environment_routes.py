import gzip
import json
from typing import Any

from hermes_rl.api.config import ApiSettings
from hermes_rl.store.database.store import Store, open_store
from tests.api.atropos.making import make_environment, make_registration, make_scored_data
from tests.store.database.making import make_group
from tests.support.trajectory_api import Caller, calling


async def begun(api: Caller, **fields: Any) -> int:
    assert (await api("POST", "/register", json=make_registration()))[0] == 200
    return int((await api("POST", "/register-env", json=make_environment(**fields)))[1]["env_id"])


async def test_an_environment_waits_for_a_trainer(api: Caller) -> None:
    assert await api("POST", "/register-env", json=make_environment()) == (200, {"status": "wait for trainer to start"})


async def test_a_trainer_of_our_own_will_do(api: Caller) -> None:
    await api.train(16)
    assert (await api("POST", "/register-env", json=make_environment()))[1]["status"] == "success"


async def test_environments_of_one_name_are_numbered(api: Caller) -> None:
    await api("POST", "/register", json=make_registration())
    told = [(await api("POST", "/register-env", json=make_environment()))[1] for _ in range(2)]
    assert [one["wandb_name"] for one in told] == ["words_0", "words_1"]


async def test_a_registration_is_told_the_trainers_settings(api: Caller) -> None:
    await api("POST", "/register", json=make_registration(starting_step=7))
    told = (await api("POST", "/register-env", json=make_environment()))[1]
    del told["env_id"]
    assert told == {
        "status": "success",
        "wandb_name": "words_0",
        "checkpoint_dir": "checkpoints",
        "starting_step": 7,
        "checkpoint_interval": 5,
        "num_steps": 100,
    }


async def test_a_minimum_is_kept_as_one(api: Caller, store: Store) -> None:
    await begun(api, min_batch_allocation=0.25)
    assert [one.minimum for one in await store.environments()] == [0.25]


async def test_an_environment_keeps_its_number_over_a_restart_of_the_api(address: str) -> None:
    async with open_store(address) as store, calling(store) as api:
        environment = await begun(api)
    async with open_store(address) as store, calling(store) as api:
        assert (await api("GET", "/status-env", json={"env_id": environment}))[0] == 200


async def test_what_waits_is_told(api: Caller) -> None:
    environment = await begun(api)
    await api("POST", "/scored_data", json=make_scored_data(env_id=environment))
    told = (await api("GET", "/status-env", json={"env_id": environment}))[1]
    assert (told["queue_size"], told["self_queue_size"]) == (1, 1)


async def test_who_asks_is_connected_again(api: Caller, store: Store) -> None:
    environment = await begun(api)
    await api("GET", "/status-env", json={"env_id": environment})
    assert await api("POST", "/disconnect-env", json={"env_id": environment}) == (200, {"status": "success"})
    left = [one.connected for one in await store.environments()]
    await api("GET", "/status-env", json={"env_id": environment})
    assert (left, [one.connected for one in await store.environments()]) == ([False], [True])


async def test_goodbye_of_somebody_unknown_is_a_failure_with_200(api: Caller) -> None:
    status, told = await api("POST", "/disconnect-env", json={"env_id": 77})
    assert (status, told["status"]) == (200, "failure")


async def test_a_status_without_a_body_is_refused(api: Caller) -> None:
    assert (await api("GET", "/status-env?env_id=1"))[0] == 422


async def test_a_post_without_an_environment_is_kept(api: Caller, store: Store) -> None:
    await begun(api)
    assert (await api("POST", "/scored_data", json=make_scored_data()))[0] == 200
    assert (await store.status()).total.waiting_groups == 1


async def test_a_list_is_kept_whole(api: Caller, store: Store) -> None:
    environment = await begun(api)
    made = [make_scored_data(env_id=environment) for _ in range(3)]
    told = await api("POST", "/scored_data_list", json=made)
    assert (told, (await store.status()).total.waiting_groups) == (
        (200, {"status": "received", "groups_processed": 3}),
        3,
    )


async def test_nothing_of_a_list_with_a_bad_group_is_kept(api: Caller, store: Store) -> None:
    environment = await begun(api)
    made = [make_scored_data(env_id=environment), make_scored_data(env_id=environment, scores=[])]
    status, problem = await api("POST", "/scored_data_list", json=made)
    assert (status, problem["field"], (await store.status()).total.waiting_groups) == (422, "[1].scores", 0)


async def test_an_unknown_environment_is_named(api: Caller) -> None:
    status, problem = await api("POST", "/scored_data", json=make_scored_data(env_id=77))
    assert (status, problem["field"]) == (404, "env_id")


async def test_a_full_queue_says_come_again_in_a_way_that_atroposlib_repeats(store: Store) -> None:
    async with calling(store, ApiSettings(max_queued=4, full_patience=0.0)) as api:
        environment = await begun(api)
        await store.add(environment, make_group(4))
        async with api.session.post("/scored_data", json=make_scored_data(env_id=environment)) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")


async def test_a_small_body_that_unpacks_to_a_large_one_is_refused(api: Caller) -> None:
    bomb = gzip.compress(bytes(200 * 2**20))
    status, _ = await api("POST", "/scored_data", data=bomb, headers={"Content-Encoding": "gzip"})
    assert status == 413


async def test_registrations_may_be_packed_too(api: Caller) -> None:
    packed = gzip.compress(json.dumps(make_registration()).encode())
    assert (await api("POST", "/register", data=packed, headers={"Content-Encoding": "gzip"}))[0] == 200
