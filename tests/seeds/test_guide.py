"""The author's guide in detail: its exact commands in a checkout, priorities, fallbacks, metrics, endpoint failures."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.agent.loop import HermesAgentLoop
from tests.seeds.parts import FIXTURES, FailingModel, SeedModel, hermes_rl, openai_flags, python, records
from tests.support.environments import FileEnv, opened

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDE = FIXTURES / "guide_env.py"
QUIET = ("--env.use_wandb", "false")

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The author's file among the bundled ones."""
    shutil.copytree(REPOSITORY / "environments", tmp_path / "environments")
    shutil.copy(GUIDE, tmp_path / "environments" / "my_env.py")
    return tmp_path


async def test_the_commands_of_the_guide_in_a_checkout(model: SeedModel, checkout: Path) -> None:
    file, answers = Path("environments/my_env.py"), openai_flags(model.base_url)
    await python(
        file, "process", "--env.total_steps", "10", "--env.group_size", "1", "--env.use_wandb", "false",
        "--env.data_path_to_save_groups", "output.jsonl", *answers, folder=checkout,
    )  # fmt: skip
    await python(
        file, "evaluate", "--env.eval_size", "20", "--env.data_dir_to_save_evals", "eval_results", *answers,
        folder=checkout,
    )  # fmt: skip
    assert [record["scores"] for record in records(checkout / "output.jsonl")] == [[1.0]] * 10
    assert len(records(checkout / "eval_results" / "samples.jsonl")) == 20


def test_the_file_can_be_imported_to_check_it(checkout: Path) -> None:
    words = [sys.executable, "-c", "from environments.my_env import MyEnv; print('OK')"]
    done = subprocess.run(words, cwd=checkout, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.returncode) == ("OK\n", 0), done.stderr


async def test_flags_override_yaml_and_yaml_overrides_config_init(model: SeedModel, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"env: {{total_steps: 5, group_size: 3, use_wandb: false}}\n"
        f"openai: {{base_url: '{model.base_url}', model_name: yaml}}\n"
    )
    output = tmp_path / "output.jsonl"
    await hermes_rl(
        GUIDE, "process", "--config", str(config), "--env.total_steps", "2", "--openai.model_name", "flag",
        "--env.data_path_to_save_groups", str(output),
    )  # fmt: skip
    # 2 of the flag, not 5; 3 of the file, not 2; the system prompt of config_init.
    assert [len(record["scores"]) for record in records(output)] == [3, 3]
    assert records(output)[0]["messages"][0][0] == {"role": "system", "content": "You have a terminal."}
    assert {body["model"] for body in model.bodies} == {"flag"}


async def test_the_dataset_that_the_configuration_names_is_loaded(model: SeedModel, tmp_path: Path) -> None:
    rows = [{"asked": f"which number is {number}", "question": "", "answer": str(number)} for number in range(100, 130)]
    data, output = tmp_path / "data", tmp_path / "output.jsonl"
    data.mkdir()
    (data / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    await hermes_rl(
        GUIDE, "process", "--env.dataset_name", str(data), "--env.dataset_split", "validation",
        "--env.prompt_field", "asked", "--env.total_steps", "1", "--env.data_path_to_save_groups", str(output),
        *QUIET, *openai_flags(model.base_url),
    )  # fmt: skip
    [record] = records(output)
    assert record["item"] in rows
    assert record["messages"][0][1]["content"].endswith(record["item"]["asked"])


async def test_a_dataset_that_cannot_be_loaded_leaves_the_built_in_samples(model: SeedModel, tmp_path: Path) -> None:
    output = tmp_path / "output.jsonl"
    await hermes_rl(
        GUIDE, "process", "--env.dataset_name", str(tmp_path / "nothing"), "--env.total_steps", "1",
        "--env.data_path_to_save_groups", str(output), *QUIET, *openai_flags(model.base_url),
    )  # fmt: skip
    assert records(output)[0]["item"]["question"].startswith("which number is ")


async def test_a_judge_that_fails_leaves_the_heuristic(tmp_path: Path) -> None:
    output = tmp_path / "output.jsonl"

    def is_for_the_judge(body: dict[str, object]) -> bool:
        return "Reply with JSON" in json.dumps(body["messages"])

    async with FailingModel(is_for_the_judge) as model:
        await hermes_rl(
            GUIDE, "process", "--env.total_steps", "1", "--env.data_path_to_save_groups", str(output), *QUIET,
            *openai_flags(model.base_url), "--openai.max_retries", "0",
        )  # fmt: skip
    assert records(output)[0]["scores"] == [1.0, 1.0]


async def test_the_metrics_of_wandb_log_are_in_the_local_file(model: SeedModel, tmp_path: Path) -> None:
    output = tmp_path / "output.jsonl"
    await hermes_rl(
        GUIDE, "process", "--env.total_steps", "1", "--env.data_path_to_save_groups", str(output), *QUIET,
        *openai_flags(model.base_url),
    )  # fmt: skip
    [metrics] = records(output.with_suffix(".metrics.jsonl"))
    assert (metrics["train/mean_reward"], metrics["train/mean_correctness"]) == (1.0, 1.0)
    assert metrics["train/tool_errors_count"] == 0


async def test_a_hand_written_evaluation_survives_one_failure_of_the_endpoint(tmp_path: Path) -> None:
    left = [True]

    def fails_once(body: dict[str, object]) -> bool:
        return bool(left and left.pop())

    async with FailingModel(fails_once) as model:
        await hermes_rl(
            GUIDE, "evaluate", "--env.data_dir_to_save_evals", str(tmp_path / "results"), *QUIET,
            *openai_flags(model.base_url), "--openai.max_retries", "0",
        )  # fmt: skip
    samples = records(tmp_path / "results" / "samples.jsonl")
    assert [sample["turns"] for sample in samples] == [0, 2]
    assert samples[0]["reward"] < samples[1]["reward"] == 1.0


async def test_a_loop_on_a_dead_endpoint_returns_a_result_of_zero_turns() -> None:
    async with FailingModel(lambda _: True) as model, opened(FileEnv, model) as env:
        tools, names = env._resolve_tools_for_group()
        loop = HermesAgentLoop(server=env.server, tool_schemas=tools, valid_tool_names=names)
        with env.running():
            result = await asyncio.wait_for(loop.run([{"role": "user", "content": "write 1"}]), 20)
    assert (result.turns_used, result.finished_naturally, result.managed_state) == (0, False, None)
    assert result.messages == [{"role": "user", "content": "write 1"}]
