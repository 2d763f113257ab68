"""examples/retail_desk_env.py: a policy, tools over a database, and a customer; with a script, and over a socket."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from examples.retail_desk_env import RetailDeskEnv, make_item
from hermes_rl import APIServerConfig, Rollout, ScriptedUser, SimulatedUser, StopReason
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import Step, run_script
from hermes_rl.environment.simulated_user import STOP, User
from hermes_rl.validation.validate import check_environment
from tests.support.scripted_model import ScriptedModel, Text, in_order

CANCEL, RETURN, TOO_LATE, CANCEL_DELIVERED, BOTH = range(5)


async def served(kind: int, steps: Sequence[Step], user: User | None = None, **config: Any) -> Rollout:
    """The rollout of an agent that takes these steps for the first customer with this kind of request."""
    settings = RetailDeskEnv.config_init()[0].model_copy(update=config)
    environment = type("Scripted", (RetailDeskEnv,), {"user": user or ScriptedUser([])})
    env = environment(settings, [NO_MODEL])
    async with env.opened():
        return (await run_script(env, make_item(kind), steps)).rollout


def test_idling_and_cheating_score_nothing_and_the_oracle_scores() -> None:
    report = check_environment(RetailDeskEnv, items=10)
    scores = {agent: set(report.scores(agent)) for agent in report.agents()}
    assert report.findings == ()
    assert scores.pop("oracle") == {1.0}
    assert set().union(*scores.values()) == {0.0}
    assert {"hands over", "cancels and returns everything", "claims success"} < set(scores)


async def test_a_conversation_with_a_scripted_customer() -> None:
    item = make_item(RETURN)
    identify, give_back = item["calls"]
    customer = ScriptedUser([f"{item['email']}, {item['postcode']}", "yes", "and the refund?"])
    steps = ["Your e-mail and postcode?", identify, "Shall I return it?", give_back, "Done.", f"{item['told'][0]}."]
    rollout = await served(RETURN, steps, customer)
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.NATURAL)
    assert [message["content"] for message in rollout.messages if message["role"] == "user"][1:] == [
        f"{item['email']}, {item['postcode']}",
        "yes",
        "and the refund?",
    ]


async def test_a_conversation_with_a_customer_on_an_endpoint() -> None:
    item = make_item(CANCEL)
    async with ScriptedModel(in_order(Text("it is in my mail"), then=Text(STOP))) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="customer", health_check=False)
        steps = ["Your e-mail?", *item["calls"], f"The refund is {item['told'][0]}."]
        customer = RetailDeskEnv.user
        assert isinstance(customer, SimulatedUser)
        rollout = await served(CANCEL, steps, customer, user_endpoint=endpoint)
        heard = json.dumps(model.bodies[-1]["messages"])
    assert (rollout.score, rollout.metadata["user"]["replies"], model.requests) == (1.0, 1, 2)
    assert item["goal"] in heard
    assert "cancel_order" not in heard


@pytest.mark.parametrize(
    ("changed", "components"),
    [
        (lambda calls: calls, {"database": 1.0, "told": 1.0}),
        (lambda calls: calls[1:], {"database": 0.0, "told": 1.0}),
        (lambda calls: calls[:-1], {"database": 0.0, "told": 1.0}),
        (lambda calls: [*calls, ("get_order", {"number": calls[-1][1]["number"]})], {"database": 1.0, "told": 1.0}),
    ],
)
async def test_the_database_decides(changed: Any, components: dict[str, float]) -> None:
    item = make_item(BOTH)
    rollout = await served(BOTH, [*changed(item["calls"]), " and ".join(item["told"])])
    assert rollout.components == components


async def test_an_amount_in_another_amount_was_not_told() -> None:
    item = make_item(CANCEL)
    rollout = await served(CANCEL, [*item["calls"], f"1{item['told'][0]} and {item['told'][0]}5"])
    assert rollout.components == {"database": 1.0, "told": 0.0}


async def test_a_delivered_order_is_not_cancelled_and_the_agent_is_told_why() -> None:
    item = make_item(CANCEL_DELIVERED)
    number = item["calls"][-1][1]["number"]
    rollout = await served(CANCEL_DELIVERED, [("cancel_order", {"number": number, "reason": "no longer needed"}), "no"])
    assert rollout.tool_uses[0].error == f"order {number} is delivered; only a pending order can be cancelled"


async def test_a_transfer_ends_the_conversation() -> None:
    rollout = await served(TOO_LATE, [("transfer_to_human", {"summary": "late"}), "never said"])
    assert (rollout.stop_reason, rollout.metadata["end_reason"], rollout.turns_used) == ("ended", "transferred", 1)


async def test_no_customer_of_an_evaluation_is_trained_on() -> None:
    env = RetailDeskEnv(RetailDeskEnv.config_init()[0], [NO_MODEL])
    await env.setup()
    held = {item["email"] for item in env.eval_items()}
    assert len(held) == 20
    assert not held & {item["email"] for item in env.train_items()}
