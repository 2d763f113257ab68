"""A replay hears the recorded user: its model is not asked, and what the author does with its words happens again."""

from typing import Any, ClassVar

from hermes_rl import AgentResult, HermesAgentBaseEnv, Message, ScriptedUser, SimulatedUser, ToolContext, ToolSession
from hermes_rl.core.trajectory import Group
from hermes_rl.environment.simulated_user import STOP
from hermes_rl.evaluation.rescore import RescoreStats, rescore_groups
from tests.support.environments import opened
from tests.support.scripted_model import ScriptedModel, Text, always, in_order


class Counting(HermesAgentBaseEnv):
    """The state has the words of the user and how often the conversation ended; the reward counts the words."""

    user: ClassVar[Any] = SimulatedUser("You are {name}.")

    def initial_state(self, item: Any) -> Any:
        return {"words": [], "ended": 0}

    def format_prompt(self, item: Any) -> str:
        return "Hello"

    async def next_user_message(
        self, item: Any, messages: list[Message], session: ToolSession | None = None
    ) -> str | None:
        assert session is not None
        text = await super().next_user_message(item, messages)
        session.state["ended"] += text is None
        session.state["words"] += [] if text is None else [f"{session.turn} {text}"]
        return text

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        assert ctx.state["ended"] == 1
        return float(len(ctx.state["words"]))


async def recorded() -> Group:
    words = in_order(Text("one"), Text("two"), then=Text(STOP))
    async with ScriptedModel(words) as user, ScriptedModel(always(Text("and?"))) as model:
        endpoint = {"base_url": user.base_url, "health_check": False}
        async with opened(Counting, model, group_size=1, user_endpoint=endpoint) as env:
            return await env.collect_group({"name": "Ada"})


async def test_a_recorded_user_is_heard_again_and_not_asked() -> None:
    group = await recorded()
    stats, kept = RescoreStats(), list[Group]()
    async with ScriptedModel(always(Text("never asked"))) as model, opened(Counting, model) as env:
        await rescore_groups(env, [group], kept.append, stats)
    assert (group.scores, kept[0].scores, model.requests) == ([2.0], [2.0], 0)
    assert (stats.replayed, stats.calls, stats.calls_that_differ) == (1, 3, 0)


async def test_an_author_who_says_something_else_is_reported() -> None:
    class Changed(Counting):
        async def next_user_message(
            self, item: Any, messages: list[Message], session: ToolSession | None = None
        ) -> str | None:
            text = await super().next_user_message(item, messages, session)
            return "changed" if text == "two" else text

    stats = RescoreStats()
    async with ScriptedModel(always(Text("never asked"))) as model, opened(Changed, model) as env:
        await rescore_groups(env, [await recorded()], lambda group: None, stats)
    assert [(one["call"], one["recorded"], one["replayed"]) for one in stats.drift] == [
        ("next_user_message()", "two", "changed")
    ]


async def test_the_lines_of_a_script_that_changed_are_not_said() -> None:
    class Scripted(Counting):
        user = ScriptedUser(["another line"])

    kept = list[Group]()
    async with ScriptedModel(always(Text("never asked"))) as model, opened(Scripted, model) as env:
        await rescore_groups(env, [await recorded()], kept.append, RescoreStats())
    assert kept[0].scores == [2.0]
