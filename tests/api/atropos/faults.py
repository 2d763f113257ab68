"""What atroposlib's run-api does wrong, each as a check that any server of the protocol can be put to.

A check raises FaultSeenError, with what was seen, on a server that has the fault, and returns on one that has not.
"""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, TypeAlias

import aiohttp

from tests.api.atropos.making import make_environment, make_registration, make_scored_data
from tests.api.atropos.talking import JSON, FaultSeenError, Talk

Check: TypeAlias = Callable[[Talk], Awaitable[None]]
FAULTS: dict[str, tuple[Check, str]] = {}


def seen_as(symptom: str) -> Callable[[Check], Check]:
    """Keep a check with the symptom that run-api shows, a regular expression."""

    def keep(check: Check) -> Check:
        FAULTS[check.__name__] = (check, symptom)
        return check

    return keep


def expect(right: bool, seen: str) -> None:
    if not right:
        raise FaultSeenError(seen)


@seen_as("the last came first")
async def batches_come_in_the_order_of_the_posts(talk: Talk) -> None:
    posted = await talk.fill(await talk.begin(), 8)
    got = [await talk.batch() for _ in range(4)]
    expect(got == [posted[at : at + 2] for at in range(0, 8, 2)], "the last came first")


@seen_as("the step went from 0 to 4 by one batch")
async def a_step_is_a_batch_that_was_handed_out(talk: Talk) -> None:
    await talk.fill(await talk.begin(), 8)
    await talk.batch()
    step = (await talk.call("GET", "/status"))[1]["current_step"]
    expect(step == 1, f"the step went from 0 to {step} by one batch")


@seen_as("Trainer not registered")
async def a_post_before_the_trainer_harms_nobody(talk: Talk) -> None:
    early = [make_scored_data() for _ in range(2)]
    for group in early:
        await talk.post(group)
    await talk.train()
    await talk.batch()


@seen_as("every one of 150 posts was taken")
async def a_queue_that_nobody_reads_fills_up(talk: Talk) -> None:
    environment = await talk.begin()
    for _ in range(150):
        if await talk.post(make_scored_data(env_id=environment)) == 503:
            return
    raise FaultSeenError("every one of 150 posts was taken")


@seen_as("a score that is NaN was taken.*then /batch answered 500")
async def a_score_that_is_no_number_is_refused(talk: Talk) -> None:
    environment = await talk.begin()
    bad = make_scored_data(env_id=environment)
    bad["scores"][1] = float("nan")
    status = await talk.post(bad)
    await talk.fill(environment, 1)
    if status == 200:
        raise FaultSeenError(
            f"a score that is NaN was taken, then /batch answered {(await talk.call('GET', '/batch'))[0]}"
        )


@seen_as("the group is there 2 times")
async def a_post_that_is_made_again_counts_once(talk: Talk) -> None:
    group = make_scored_data(env_id=await talk.begin())
    await talk.post(group)
    await talk.post(group)
    got = await talk.batch() or []
    expect(not got, f"the group is there {got.count(group['scores'])} times")


def _refuses(name: str, change: Callable[[dict[str, Any]], None], symptom: str) -> None:
    async def check(talk: Talk) -> None:
        body = make_scored_data(env_id=await talk.begin())
        change(body)
        status = await talk.post(body)
        expect(400 <= status < 500, f"answered {status}: {symptom}")

    check.__name__ = name
    seen_as(f"answered 200: {symptom}")(check)


_refuses("short_masks_are_refused", lambda body: body["masks"][0].pop(), "a mask shorter than its tokens")
_refuses("missing_masks_are_refused", lambda body: body["masks"].pop(), "a sequence without a mask")
_refuses("missing_scores_are_refused", lambda body: body["scores"].pop(), "a sequence without a score")
_refuses(
    "short_logprobs_are_refused",
    lambda body: body["inference_logprobs"][2].pop(),
    "fewer logprobs than tokens",
)
_refuses("an_unknown_env_id_is_refused", lambda body: body.update(env_id=77), "an environment that never registered")
_refuses("a_negative_env_id_is_refused", lambda body: body.update(env_id=-1), "a negative env_id")
_refuses(
    "tokens_in_quotes_are_refused",
    lambda body: body["tokens"][0].__setitem__(0, str(body["tokens"][0][0])),
    "a token that is a text",
)


@seen_as("no batch ever comes")
async def groups_that_do_not_divide_the_batch_are_handed_out(talk: Talk) -> None:
    posted = await talk.fill(await talk.begin(32, 12), 3, size=12)
    expect(await talk.batch_soon() == posted, "another batch")


@seen_as("the groups of 12 stayed behind")
async def groups_of_two_sizes_are_all_handed_out(talk: Talk) -> None:
    await talk.train(32)
    small, large = await talk.join(12), await talk.join(16)
    posted = await talk.fill(small, 2, size=12) + await talk.fill(large, 4, size=16)
    got: list[list[float]] = []
    while batch := await talk.batch():
        got += batch
    expect(all(scores in got for scores in posted[:2]), "the groups of 12 stayed behind")


@seen_as("no batch ever comes")
async def a_group_of_another_size_than_announced_is_handed_out(talk: Talk) -> None:
    posted = await talk.fill(await talk.begin(6, 4), 2, size=3)
    expect(await talk.batch_soon() == posted, "another batch")


@seen_as("no batch ever comes")
async def a_dead_environment_with_a_minimum_blocks_nobody(talk: Talk) -> None:
    await talk.train()
    await talk.join(min_batch_allocation=0.5)
    posted = await talk.fill(await talk.join(), 2)
    expect(await talk.batch_soon() == posted, "another batch")


@seen_as("nothing is left of 2 groups|Trainer not registered")
async def what_was_posted_outlives_a_crash(talk: Talk) -> None:
    posted = await talk.fill(await talk.begin(), 2)
    await talk.server.crash()
    expect(await talk.batch() == posted, "nothing is left of 2 groups")


@seen_as("500")
async def an_environment_goes_on_after_a_crash(talk: Talk) -> None:
    environment = await talk.begin()
    await talk.server.crash()
    status, _ = await talk.call("GET", "/status-env", json={"env_id": environment})
    expect(status == 200, f"/status-env answered {status}")


@seen_as("the groups of a broken answer are gone")
async def a_batch_that_did_not_arrive_is_handed_out_again(talk: Talk) -> None:
    environment = await talk.begin(16, 16)
    group = make_scored_data(16, 16_384, env_id=environment)
    assert await talk.post(group) == 200
    # Without a pool, so that the connection ends with the answer half read.
    async with aiohttp.ClientSession() as trainer:
        response = await trainer.get(f"{talk.server.url}/batch", headers={"Accept-Encoding": "identity"})
        await response.content.readexactly(1000)
        response.close()
    try:
        got = await talk.batch_soon()
    except FaultSeenError:
        raise FaultSeenError("the groups of a broken answer are gone") from None
    expect(got == [group["scores"]], "another batch")


@seen_as("batch_size is still 8")
async def a_trainer_that_registers_again_is_heard(talk: Talk) -> None:
    await talk.train(8)
    await talk.train(16)
    size = (await talk.call("GET", "/info"))[1]["batch_size"]
    expect(size == 16, f"batch_size is still {size}")


@seen_as("wait for trainer to start")
async def environments_come_in_once_the_trainer_registered(talk: Talk) -> None:
    await talk.call("POST", "/register", json=make_registration())
    told = (await talk.call("POST", "/register-env", json=make_environment()))[1]
    expect(told["status"] == "success", told["status"])


@seen_as("422")
async def an_environment_without_a_name_may_register(talk: Talk) -> None:
    await talk.train()
    status, _ = await talk.call("POST", "/register-env", json=make_environment(desired_name=None))
    expect(status == 200, f"/register-env answered {status}")


@seen_as("500")
async def a_weight_of_nothing_breaks_nothing(talk: Talk) -> None:
    await talk.train()
    environment = await talk.join(weight=0.0)
    status, _ = await talk.call("GET", "/status-env", json={"env_id": environment})
    expect(status == 200, f"/status-env answered {status}")


@seen_as("500")
async def gzip_that_ends_early_is_refused(talk: Talk) -> None:
    packed = gzip.compress(json.dumps(make_scored_data(env_id=await talk.begin())).encode())
    headers = {"Content-Encoding": "gzip", **JSON}
    status, _ = await talk.call("POST", "/scored_data", data=packed[:-20], headers=headers)
    expect(400 <= status < 500, f"answered {status}")


@seen_as("500")
async def an_unknown_environment_is_told_so(talk: Talk) -> None:
    await talk.begin()
    status, _ = await talk.call("GET", "/status-env", json={"env_id": 77})
    expect(400 <= status < 500, f"/status-env answered {status}")


@seen_as("500")
async def after_a_reset_there_is_no_batch(talk: Talk) -> None:
    await talk.begin()
    await talk.call("GET", "/reset_data")
    status, told = await talk.call("GET", "/batch")
    expect(status == 200 and not told["batch"], f"/batch answered {status}")


@seen_as("422")
async def a_message_that_only_calls_tools_is_taken(talk: Talk) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
    messages = [[{"role": "assistant", "tool_calls": [call]}]] * 4
    status = await talk.post(make_scored_data(env_id=await talk.begin(), messages=messages))
    expect(status == 200, f"answered {status}")


@seen_as("was left out")
async def a_field_that_atropos_does_not_know_comes_back(talk: Talk) -> None:
    body = make_scored_data(8, env_id=await talk.begin(8, 8), policy_version=3)
    assert await talk.post(body) == 200
    [group] = (await talk.call("GET", "/batch"))[1]["batch"]
    expect(group.get("policy_version") == 3, "policy_version was left out")


@seen_as(r"/status took \d+ ms while a batch was made")
async def others_are_answered_while_a_batch_is_made(talk: Talk) -> None:
    environment = await talk.begin(64, 16)
    for _ in range(4):
        assert await talk.post(make_scored_data(16, 8192, env_id=environment)) == 200
    asking = asyncio.create_task(_read_batch(talk))
    longest = 0.0
    while not asking.done():
        begin = perf_counter()
        await talk.call("GET", "/status")
        longest = max(longest, perf_counter() - begin)
        await asyncio.sleep(0.005)
    await asking
    expect(longest < 0.5, f"/status took {longest * 1000:.0f} ms while a batch was made")


async def _read_batch(talk: Talk) -> None:
    async with talk.session.get(f"{talk.server.url}/batch", headers={"Accept-Encoding": "identity"}) as response:
        # Its JSON is not read, which would keep this process busy.
        assert len(await response.read()) > 10_000_000
