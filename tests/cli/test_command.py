"""The command as a person and as a program meet it: help, errors with the next step, --json, and the four choices."""

import asyncio
import itertools
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.cli.main import GROUPS, listed_commands
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.ask_endpoint import CHOICES, ask_for_endpoint
from hermes_rl.environment.command import MAX_PAGE_SOURCE_BYTES, write_report
from hermes_rl.inference.config import ServerType
from tests.support.scripted_model import ScriptedModel, Status, Text

NO_TERMINAL: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 100}


def hermes_rl(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hermes_rl", *arguments]
    return subprocess.run(command, check=False, **(NO_TERMINAL | options))


async def on_model(script: Any, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command against a scripted model."""
    async with ScriptedModel(script) as model:
        flags = ["--openai.base_url", model.base_url, "--openai.model_name", "scripted", "--openai.max_retries", "0"]
        return await asyncio.to_thread(hermes_rl, *arguments, *flags, **options)


def writes_the_word(request: dict[str, Any]) -> Text:
    word = request["messages"][-1]["content"].split()[1]
    call = {"name": "terminal", "arguments": {"command": f"echo {word} > out.txt"}}
    return Text(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")


def test_help_names_the_verbs() -> None:
    done = hermes_rl("--help")
    assert done.returncode == 0
    assert "process" in done.stdout
    assert "evaluate" in done.stdout


def modules_loaded_by(*commands: list[str]) -> set[str]:
    """What is imported once these commands have run, one after the other in one process."""
    code = (
        "import sys\n"
        "from hermes_rl.cli.main import hermes_rl\n"
        f"for words in {list(commands)!r}:\n"
        "    try:\n"
        "        hermes_rl(words, standalone_mode=False)\n"
        "    except Exception:\n"
        "        pass\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, **NO_TERMINAL)
    return set(done.stdout.splitlines()[-1].split())


def test_help_version_and_a_misspelt_command_load_no_verb() -> None:
    loaded = modules_loaded_by(["--help"], ["--version"], ["prcess"])
    assert "hermes_rl.cli.main" in loaded
    assert loaded.isdisjoint(
        {"aiohttp", "fastapi", "pydantic", "rich", "yaml", "hermes_rl.orchestration", "hermes_rl.environment.base"}
    )


def test_every_command_is_listed_in_a_known_group() -> None:
    assert {command.group for command in listed_commands().values()} == set(GROUPS)
    assert {"process", "evaluate", "serve"} <= set(listed_commands())
    done = hermes_rl("--help", env={**os.environ, "COLUMNS": "100"})
    assert all(f"  {name}  " in done.stdout or f"  {name} " in done.stdout for name in listed_commands())
    assert "…" not in done.stdout
    assert "..." not in done.stdout.partition("COMMAND")[2].partition("\n")[2]


def test_a_misspelt_command_gets_a_suggestion() -> None:
    done = hermes_rl("proces", "terminal_test")
    assert done.returncode == 2
    assert "Did you mean 'process'?" in done.stderr


def test_the_help_of_a_verb_loads_only_what_it_prints() -> None:
    # These list the fields of a pydantic model; the second ones those of an environment's, too.
    described = {"gateway", "trainer"}
    environments = {
        "audit",
        "evaluate",
        "forecast",
        "fork",
        "process",
        "redteam",
        "replay",
        "rescore",
        "serve",
        "validate",
    }
    heavy = {"aiohttp", "fastapi", "numpy", "rich", "hermes_rl.environment.base"}
    assert modules_loaded_by(*([verb, "--help"] for verb in described)).isdisjoint(heavy)
    others = modules_loaded_by(
        *([name, "--help"] for name in sorted(set(listed_commands()) - described - environments))
    )
    assert "hermes_rl.cli.quickstart" in others
    assert others.isdisjoint(heavy | {"pydantic"})


def test_the_help_of_an_environment_shows_its_own_defaults() -> None:
    done = hermes_rl("process", "terminal_test", "--help", env={**os.environ, "COLUMNS": "200"})
    assert "--env.max_agent_turns N" in done.stdout
    assert "Call the model at most this many times per rollout. [1]" in done.stdout
    assert "--openai.base_url" in done.stdout


def test_a_verb_without_an_environment_says_what_to_name() -> None:
    done = hermes_rl("process")
    assert done.returncode == 2
    assert "the first argument must be an environment" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("process", "nowhere"), "no environment is named 'nowhere'; known: "),
        (("process", "terminal_test", "--env.group_size", "none"), "--env.group_size"),
        (("process", "terminal_test", "--env.grup_size", "3"), "No such option"),
        (("process", "terminal_test", "--config", "missing.yaml"), "cannot read --config missing.yaml"),
        (("evaluate", "terminal_test", "--openai.base_url", "http://127.0.0.1:9/v1", "--openai.api_key", "env:NO_SUCH"),
         "NO_SUCH, which is not set"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_told_without_a_traceback(arguments: tuple[str, ...], told: str) -> None:
    done = hermes_rl(*arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_without_an_endpoint_the_four_choices_are_explained() -> None:
    done = hermes_rl("process", "terminal_test")
    assert done.returncode == 2
    assert all(choice.title in done.stderr for choice in CHOICES)
    assert len(CHOICES) == 4


def test_a_person_at_the_terminal_is_asked() -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "hermes_rl", "evaluate", "terminal_test"]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True) as asked:
        os.close(terminal)
        screen = b""
        while b"Which one (1-4)" not in screen:
            screen += os.read(controller, 4096)
        asked.kill()
    os.close(controller)


def test_the_answers_become_an_endpoint() -> None:
    answers = iter(["3", "http://somewhere/v1", "a-model", "env:MY_KEY"])
    endpoint = ask_for_endpoint(lambda text, default: next(answers))
    assert (endpoint.base_url, endpoint.model_name, endpoint.api_key) == (
        "http://somewhere/v1",
        "a-model",
        "env:MY_KEY",
    )
    assert (endpoint.server_type, endpoint.health_check) == (ServerType.OPENAI, False)


def test_an_answer_outside_the_choices_is_refused() -> None:
    with pytest.raises(ConfigError, match="from 1 to 4"):
        ask_for_endpoint(lambda text, default: "5")


async def test_process_writes_a_report_beside_its_groups(tmp_path: Path) -> None:
    done = await on_model(
        writes_the_word, "process", "terminal_test", "--json", "--env.total_steps", "1", "--env.group_size", "2",
        cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(done.stdout)["page"] == "data/terminal_test.html"
    assert "complete, 1 group with 2 rollouts" in (tmp_path / "data" / "terminal_test.html").read_text()


def test_process_does_not_read_a_long_file_again_for_a_page_that_nobody_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    groups = tmp_path / "groups.jsonl"
    with groups.open("wb") as file:
        file.truncate(MAX_PAGE_SOURCE_BYTES + 1)
    assert write_report(groups) is None
    assert [path.name for path in tmp_path.iterdir()] == ["groups.jsonl"]


async def test_process_is_no_failure_where_its_report_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data" / "terminal_test.html").mkdir(parents=True)
    done = await on_model(
        writes_the_word, "process", "terminal_test", "--json", "--env.total_steps", "1", "--env.group_size", "2",
        cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, json.loads(done.stdout)["page"]) == (0, None)
    assert "warning: could not write a page for data/terminal_test.jsonl" in done.stderr


async def test_process_prints_one_json_object_and_keeps_the_rest_apart(tmp_path: Path) -> None:
    done = await on_model(
        writes_the_word, "process", "terminal_test", "--json", "--env.total_steps", "3", "--env.group_size", "2",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["groups"], summary["scored"], summary["mean_score"]) == (3, 6, 1.0)
    assert len((tmp_path / summary["path"]).read_text().splitlines()) == 3
    assert "process 3/3" in done.stderr


async def test_evaluate_prints_a_table_and_json(tmp_path: Path) -> None:
    done = await on_model(
        writes_the_word, "eval", "terminal_test", "--json", "--env.eval_size", "4", "--env.data_dir_to_save_evals",
        str(tmp_path / "evals"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["eval/mean_reward"] == 1.0
    assert "eval/mean_reward" in done.stderr
    assert (tmp_path / "evals" / "samples.jsonl").exists()


async def test_an_evaluation_with_too_many_unscored_rollouts_fails(tmp_path: Path) -> None:
    def fails_once(request: dict[str, Any]) -> Any:
        first = request["messages"][-1]["role"] != "tool" and next(asked) % 4 == 0
        return Status(500) if first else writes_the_word(request)

    asked = itertools.count()
    flags = [
        "eval",
        "terminal_test",
        "--json",
        "--env.eval_size",
        "4",
        "--env.rollout_retries",
        "0",
    ]
    refused = await on_model(fails_once, *flags, "--env.data_dir_to_save_evals", str(tmp_path / "one"))
    assert refused.returncode == 1, refused.stderr
    assert "25% of the rollouts have no score, more than --max-unscored 0.1" in refused.stderr
    told = json.loads(refused.stdout)
    assert (told["unscored_share"], told["max_unscored"], told["metrics"]["eval/pass@1/unscored_as_0"]) == (
        0.25,
        0.1,
        0.75,
    )
    taken = await on_model(
        fails_once, *flags, "--max-unscored", "0.3", "--env.data_dir_to_save_evals", str(tmp_path / "two")
    )
    assert taken.returncode == 0, taken.stderr


async def test_failures_are_counted_by_cause_in_the_summary(tmp_path: Path) -> None:
    done = await on_model(
        lambda _: Status(500, "the GPU is on fire"), "process", "terminal_test", "--env.total_steps", "2", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "not scored: endpoint/http_500" in done.stderr
    assert "the GPU is on fire" in done.stderr


async def test_an_existing_output_is_not_mixed_with_a_new_run(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("{}\n")
    flags = ["process", "terminal_test", "--env.total_steps", "1", "--env.data_path_to_save_groups", "out.jsonl"]
    refused = await on_model(writes_the_word, *flags, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--overwrite" in refused.stderr
    replaced = await on_model(writes_the_word, *flags, "--overwrite", cwd=tmp_path)
    assert replaced.returncode == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


async def test_a_literal_key_is_warned_of_and_never_printed(tmp_path: Path) -> None:
    flags = ["process", "terminal_test", "--env.total_steps", "1", "--json", "--openai.api_key", "sk-very-secret"]
    done = await on_model(writes_the_word, *flags, cwd=tmp_path)
    assert "warning: --openai.api_key holds a literal secret" in done.stderr
    written = "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))
    assert "sk-very-secret" not in done.stderr + done.stdout + written


def test_a_password_in_a_base_url_is_neither_shown_nor_saved(tmp_path: Path) -> None:
    flags = ["--openai.base_url", "http://me:hunter2@127.0.0.1:1/v1", "--openai.model_name", "none"]
    once = ["--env.total_steps", "1", "--openai.health_check", "false", "--openai.max_retries", "0"]
    once += ["--openai.outage_limit", "0"]
    done = hermes_rl("process", "terminal_test", *once, *flags, cwd=tmp_path)
    assert "http://**********@127.0.0.1:1/v1" in done.stderr
    saved = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert saved
    assert "hunter2" not in "".join([done.stderr, done.stdout, *saved])


async def test_a_literal_key_in_a_file_is_not_warned_of(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("openai: {api_key: sk-very-secret}\n")
    done = await on_model(
        writes_the_word, "process", "terminal_test", "--env.total_steps", "1", "--config", "config.yaml", cwd=tmp_path
    )
    assert done.returncode == 0
    assert "literal" not in done.stderr


@pytest.mark.parametrize("value", ["false", "true"])
async def test_flags_of_atropos_that_choose_endpoints_are_taken_only_when_false(tmp_path: Path, value: str) -> None:
    flags = ["process", "terminal_test", "--env.total_steps", "1", "--testing", "false", "--slurm", value]
    done = await on_model(writes_the_word, *flags, cwd=tmp_path)
    assert done.returncode == (0 if value == "false" else 2)
    assert ("--env.engines_file" in done.stderr) is (value == "true")
    assert len(done.stderr.splitlines()) <= 3 or value == "false"


def test_a_dead_endpoint_says_what_to_start() -> None:
    done = hermes_rl(
        "process", "terminal_test", "--openai.base_url", "http://127.0.0.1:9/v1", "--openai.ready_timeout", "1"
    )
    assert done.returncode == 1
    assert "Start the model server, or check --openai.base_url" in done.stderr


def test_an_environments_own_command_line_has_both_modes() -> None:
    done = subprocess.run([sys.executable, "environments/terminal_test_env.py", "--help"], check=False, **NO_TERMINAL)
    assert "process" in done.stdout
    assert "evaluate" in done.stdout
