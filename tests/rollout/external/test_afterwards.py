"""What can be done with the record of a program's rollout, and what a script does where a program is the agent."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import AgentResult, SandboxSpec, ToolContext
from hermes_rl.core.trajectory import Group, Rollout, StopReason
from hermes_rl.environment.scripted_policy import run_script
from hermes_rl.evaluation.rescore import RescoreSource, RescoreStats, rescore_groups
from hermes_rl.rollout.group import run_group
from hermes_rl.store.records import group_from_record as group_in
from hermes_rl.store.records import group_to_record
from tests.rollout.external.programs import ITEM, SMALL, group_of, python, writes_the_number
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


async def kept(folder: Path, *names: str, **config: Any) -> Group:
    """A group of one whose agent's files were kept."""
    settings = {"rollout_retries": 0, **SMALL, "agent_artifacts": list(names), **config}
    async with ScriptedModel(writes_the_number) as model, opened(FileEnv, model, **settings) as env:
        env.artifacts_folder = folder / "groups.artifacts"
        return await run_group(env, ITEM, size=1)


async def rescored_files(environment: type[FileEnv], group: Group, folder: Path) -> Rollout:
    groups: list[Group] = []
    async with ScriptedModel(lambda _: Text("never asked")) as model, opened(environment, model) as env:
        env.artifacts_folder = folder / "moved.artifacts"
        await rescore_groups(env, [group], groups.append, RescoreStats())
    return groups[0].rollouts[0]


@pytest.mark.parametrize("name", [".", "answer"])
async def test_files_that_were_kept_are_scored_again(name: str, tmp_path: Path) -> None:
    class Changed(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return 0.5 * float(ctx.read_file("answer")["content"].strip() == "7")

    group = await kept(tmp_path, name)
    assert (group.scores, (await rescored_files(Changed, group, tmp_path)).score) == ([1.0], 0.5)
    note = group.rollouts[0].metadata["artifacts"]
    assert note["bytes"] == (tmp_path / note["file"]).stat().st_size
    assert (tmp_path / note["file"]).stat().st_mode & 0o777 == 0o600


async def test_what_the_agent_removed_and_what_it_made_executable_is_kept_too(tmp_path: Path) -> None:
    class Looks(FileEnv):
        def sandbox_spec(self, item: Any) -> SandboxSpec:
            return SandboxSpec(files={"given": "here"})

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(ctx.terminal("[ ! -e given ] && ./run && bin/run")["exit_code"] == 0)

    made = "printf '#!/bin/sh\\n' > run; chmod +x run; mkdir bin; cp run bin; rm given"
    config = {"agent_command": python(f"ask('hi'); import os; os.system({made!r})"), "agent_files": {}, "agent_env": {}}
    group = await kept(tmp_path, ".", **config)
    assert (await rescored_files(Looks, group, tmp_path)).score == 1.0


async def test_a_file_that_the_agent_did_not_write_is_noted(tmp_path: Path) -> None:
    [rollout] = (await kept(tmp_path, "answer", "report.txt")).rollouts
    assert rollout.metadata["artifacts"]["problems"] == {"report.txt": "artifact report.txt is missing"}
    assert rollout.score == 1.0


async def test_an_archive_that_is_gone_leaves_the_rollout_unscored(tmp_path: Path) -> None:
    group = await kept(tmp_path, ".")
    (tmp_path / group.rollouts[0].metadata["artifacts"]["file"]).unlink()
    failure = (await rescored_files(FileEnv, group, tmp_path)).failure
    assert failure is not None
    assert (str(failure), "belong beside the records" in failure.message) == ("sandbox/program", True)


async def test_a_record_cannot_name_another_file_of_this_machine(tmp_path: Path) -> None:
    group = await kept(tmp_path, ".")
    [rollout] = group.rollouts
    file = tmp_path / rollout.metadata["artifacts"]["file"]
    elsewhere = replace(
        rollout, metadata={**rollout.metadata, "artifacts": {"file": f"../../x/{file.parent.name}/{file.name}"}}
    )
    assert (await rescored_files(FileEnv, replace(group, rollouts=(elsewhere,)), tmp_path)).score == 1.0


async def test_a_script_is_played_with_the_tools_of_our_loop() -> None:
    async with ScriptedModel(lambda _: Text("never asked")) as model, opened(FileEnv, model, **SMALL) as env:
        finished = await run_script(env, ITEM, [("terminal", {"command": "echo 7 > answer"}), "done"])
    assert (finished.rollout.score, finished.rollout.stop_reason) == (1.0, StopReason.NATURAL)
