"""What can be done with the record of a program's rollout, and what a script does where a program is the agent."""

import json
from typing import Any

from hermes_rl import AgentResult, ToolContext
from hermes_rl.core.trajectory import Group, StopReason
from hermes_rl.environment.scripted_policy import run_script
from hermes_rl.evaluation.rescore import RescoreSource, RescoreStats, rescore_groups
from hermes_rl.store.records import group_from_record as group_in
from hermes_rl.store.records import group_to_record
from tests.rollout.external.programs import ITEM, SMALL, group_of, writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text


class Talker(FileEnv):
    """Scored by what was said, and by how the program ended."""

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return float(result.final_response == "done" and result.program is not None and result.program.exit_code == 0)


async def rescored(environment: type[FileEnv], group: Group, source: RescoreSource) -> Group:
    kept: list[Group] = []
    async with ScriptedModel(lambda _: Text("never asked")) as model, opened(environment, model) as env:
        await rescore_groups(env, [group], kept.append, RescoreStats(), source=source)
    return kept[0]


async def test_a_record_holds_how_the_program_ended_and_comes_back_as_it_was() -> None:
    group = await group_of(writes_the_number, **SMALL)
    assert group_in(json.loads(json.dumps(group_to_record(group)))) == group


async def test_a_reward_of_the_conversation_can_be_had_again() -> None:
    group = await group_of(writes_the_number, environment=Talker, **SMALL)
    again = await rescored(Talker, group_in(json.loads(json.dumps(group_to_record(group)))), RescoreSource.AUTO)
    assert (group.scores, again.scores) == ([1.0], [1.0])


async def test_the_calls_of_a_program_are_not_carried_out_again_as_ours() -> None:
    group = await group_of(writes_the_number, **SMALL)
    again = await rescored(FileEnv, group, RescoreSource.REPLAY)
    assert [str(rollout.failure) for rollout in again.rollouts] == ["sandbox/program"]


async def test_a_script_is_played_with_the_tools_of_our_loop() -> None:
    async with ScriptedModel(lambda _: Text("never asked")) as model, opened(FileEnv, model, **SMALL) as env:
        finished = await run_script(env, ITEM, [("terminal", {"command": "echo 7 > answer"}), "done"])
    assert (finished.rollout.score, finished.rollout.stop_reason) == (1.0, StopReason.NATURAL)
