"""An environment of ours as a real BaseEnv, in atroposlib's own `process` and `evaluate`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.trajectory import Sampling
from hermes_rl.core.trajectory import Sequence as TokenSequence
from tests.engines.atropos.programs import ADAPTER, run
from tests.engines.atropos.trainer import Columns, rollouts_of
from tests.engines.atropos.word_model import UNSAMPLED_MASK, WordModel, is_exact
from tests.engines.conftest import TokenEndpoint
from tests.engines.test_vllm_rollouts import MEAN_DIFFERENCE, MOST_DIFFERENCE, engines_own

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.parts, pytest.mark.timeout(600)]

# What somebody's own program does with any subclass of BaseEnv.
PROGRAM = """
import asyncio, json, sys
from atroposlib.envs.base import APIServerConfig, BaseEnv
from hermes_rl.environment.atropos_adapter.adapter import atropos_environment
from hermes_rl.environment.loading.loader import load_environment

async def main(base_url, tokenizer):
    Adapted = atropos_environment(load_environment("terminal_test"))
    assert issubclass(Adapted, BaseEnv)
    config = Adapted.env_config_cls(group_size=2, tokenizer_name=tokenizer, max_agent_turns=1, tool_prompt=False)
    env = Adapted(config, [APIServerConfig(base_url=base_url, model_name="scripted", server_type="vllm")])
    await env.setup()
    groups = [await env.collect_trajectories(item) for item in (await env.get_next_item(), "violin", "castle")]
    await env.close()
    print("groups:", json.dumps([group for group, backlog in groups if group and not backlog]))

asyncio.run(main(*sys.argv[1:]))
"""
PROCESS = [*ADAPTER, "terminal_test", "process", "--env.group_size", "4", "--env.terminal_backend", "bubblewrap"]


def written(folder: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, (folder / "data" / "terminal_test.jsonl").read_text().splitlines()))


async def test_process_writes_groups_with_the_tokens_and_logprobs_that_were_sampled(
    atropos_python: Path, word_model: WordModel, tmp_path: Path
) -> None:
    command = [*PROCESS, "--env.total_steps", "3", *word_model.flags]
    status, said = await run(atropos_python, *command, folder=tmp_path / "run")
    assert status == 0, said
    groups = written(tmp_path / "run")
    assert [len(group["tokens"]) for group in groups] == [4, 4, 4]
    assert all(is_exact(*rollout) for rollout in rollouts_of(groups))
    assert all(messages[-1]["role"] == "tool" for group in groups for messages in group["messages"])
    assert {score for group in groups for score in group["scores"]} == {0.0, 1.0}


async def test_a_real_engine_gives_the_logprobs_that_process_wrote(
    atropos_python: Path, vllm_server: TokenEndpoint, tmp_path: Path
) -> None:
    endpoint = ["--openai.base_url", vllm_server.base_url, "--openai.model_name", vllm_server.model_name]
    flags = [*endpoint, "--openai.server_type", "vllm", "--env.tokenizer_name", str(vllm_server.folder)]
    command = [*PROCESS, "--env.total_steps", "2", *flags]
    status, said = await run(atropos_python, *command, folder=tmp_path / "run")
    assert status == 0, said
    groups = written(tmp_path / "run")
    differences: list[float] = []
    for columns in rollouts_of(groups):
        sequence = as_sequence(columns)
        _, own = await engines_own(vllm_server, sequence)
        kept = [logprob for logprob in sequence.logprobs if logprob is not None]
        differences += [abs(one - other) for one, other in zip(kept, own, strict=True)]
    mean = sum(differences) / len(differences)
    print(f"{len(differences)} sampled tokens: mean difference {mean:.2e}, most {max(differences):.2e}")
    assert mean < MEAN_DIFFERENCE
    assert max(differences) < MOST_DIFFERENCE


def as_sequence(columns: Columns) -> TokenSequence:
    tokens, mask, logprobs, _ = columns
    kept = tuple(int(one != UNSAMPLED_MASK) for one in mask)
    sampled = tuple(logprob if one else None for logprob, one in zip(logprobs, kept, strict=True))
    return TokenSequence(tuple(tokens), kept, sampled, tuple(0 if one else None for one in kept), Sampling(1.0))


async def test_settings_of_both_sides_are_taken_from_the_command_line(
    atropos_python: Path, word_model: WordModel, tmp_path: Path
) -> None:
    lists = ["--env.enabled_toolsets", "terminal,file", "--env.sandbox_settings", "{bubblewrap: {}}"]
    command = [*PROCESS, "--env.total_steps", "1", "--env.num_rollouts_to_keep", "3", *lists, *word_model.flags]
    status, said = await run(atropos_python, *command, folder=tmp_path / "run")
    assert status == 0, said
    assert "enabled_toolsets=['terminal', 'file']" in said
    assert "sandbox_settings={'bubblewrap': {}}" in said
    assert "num_rollouts_to_keep=3" in said


async def test_evaluate_writes_the_report_of_the_environment(
    atropos_python: Path, word_model: WordModel, tmp_path: Path
) -> None:
    command = [*ADAPTER, "terminal_test", "evaluate", "--env.eval_size", "3", "--env.data_dir_to_save_evals", "evals"]
    status, said = await run(atropos_python, *command, *word_model.flags, folder=tmp_path / "run")
    assert status == 0, said
    metrics = json.loads((tmp_path / "run" / "evals" / "metrics.json").read_text())["metrics"]
    assert (metrics["eval/rollouts"], metrics["eval/scored"]) == (3, 3)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--openai.server_type", "openai"], "it does not return the tokens it sampled"),
        (["--openai.base_url", ""], "No inference endpoint is configured"),
        (["--testing", "true"], "there is no mock model"),
    ],
)
async def test_what_cannot_be_trained_on_is_refused_before_the_first_rollout(
    atropos_python: Path, word_model: WordModel, tmp_path: Path, flags: Sequence[str], reason: str
) -> None:
    status, said = await run(atropos_python, *PROCESS, *word_model.flags, *flags, folder=tmp_path / "run")
    assert status == 2
    assert reason in said
    assert "Traceback" not in said
    assert word_model.requests == 0


async def test_process_ends_where_no_group_comes_to_anything(
    atropos_python: Path, word_model: WordModel, tmp_path: Path
) -> None:
    flags = ["--env.max_context_tokens", "64"]
    status, said = await run(atropos_python, *PROCESS, *word_model.flags, *flags, folder=tmp_path / "run")
    assert status == 1
    assert "10 consecutive groups were withheld, by cause: {" in said


async def test_a_program_uses_the_class_as_any_other_base_env(
    atropos_python: Path, word_model: WordModel, tmp_path: Path
) -> None:
    arguments = ["-c", PROGRAM, word_model.base_url, str(word_model.folder)]
    status, said = await run(atropos_python, *arguments, folder=tmp_path / "run")
    assert status == 0, said
    [line] = [line for line in said.splitlines() if line.startswith("groups: ")]
    rollouts = rollouts_of(json.loads(line.removeprefix("groups: ")))
    assert rollouts
    assert all(is_exact(*rollout) for rollout in rollouts)
