"""What a new user meets in the first hour: names that are misspelt, `last`, limits, sizes and exit codes."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from hermes_rl.cli.environment_command import resolve_environment
from hermes_rl.cli.last import GroupsFile, run_reference, targets_with_last
from hermes_rl.cli.run.live import exit_code as run_exit_code
from hermes_rl.cli.run.start_options import add_limits, build_run
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.exit_codes import LIMIT_REACHED
from hermes_rl.environment import command, estimate
from hermes_rl.environment.command import exit_code, limit_fields
from hermes_rl.environment.estimate import Estimate, confirm_if_large
from hermes_rl.environment.last_output import last_output, named_path, note_output
from hermes_rl.environment.resolve_config import Settings
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rollout.config import HermesAgentEnvConfig
from tests.cli.test_command import on_model, writes_the_word
from tests.support.recorded_runs import run_file
from tests.support.scripted_model import ScriptedModel, Text, always

SIZE = Estimate(groups=1000, group_size=4, turns=30, turn_tokens=2048, at_once=32, speed=10.0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return tmp_path


# Names.


def test_a_misspelt_environment_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="no environment is named 'terminal_tst'; did you mean 'terminal_test'"):
        resolve_environment("terminal_tst")


def test_training_without_a_preset_lists_them() -> None:
    with pytest.raises(ConfigError) as caught:
        build_run("terminal_test", preset=None, changes=(), added=(), evaluated=(), trace=None)
    assert re.search(r"(?s)--preset:.*laptop .*CPU.*self-hosted.*tinker .*Hosted", str(caught.value))


def test_last_is_the_newest_output_of_a_kind(home: Path) -> None:
    with pytest.raises(ConfigError, match="`hermes-rl process ENVIRONMENT` writes some"):
        last_output("groups")
    for name in ("one.jsonl", "two.jsonl"):
        (home / name).write_text("{}\n")
        note_output("groups", home / name)
    assert last_output("groups") == home / "two.jsonl"
    assert named_path("other.jsonl", "groups") == Path("other.jsonl")
    assert GroupsFile().convert("last", None, None) == home / "two.jsonl"


def test_last_is_a_file_of_that_name_where_there_is_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (home / "last").touch()
    assert (named_path("last", "groups"), targets_with_last(["last"])) == (Path("last"), ("last",))
    assert run_reference("last") == "last"


def test_view_and_report_take_the_newest_of_all_kinds(home: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to name `last`"):
        targets_with_last(["last"])
    for kind, seconds in (("groups", 10), ("evaluation", 20)):
        (home / kind).touch()
        os.utime(home / kind, (seconds, seconds))
        note_output(kind, home / kind)  # type: ignore[arg-type]
    assert targets_with_last(["last", "x"]) == (str(home / "evaluation"), "x")


# Size.


def test_process_makes_ten_groups_unless_someone_said_how_many() -> None:
    def groups(**fields: Any) -> int:
        settings = Settings(HermesAgentEnvConfig(**fields), ())
        return int(command._with_default_groups(settings).env.total_steps)

    assert (groups(), groups(total_steps=1000), groups(total_steps=3)) == (10, 1000, 3)


def test_an_estimate_names_tokens_and_time() -> None:
    size, tokens, duration, _ = SIZE.lines()
    assert "4,000 rollouts of up to 30 turns" in size
    assert "24,576,000 if they use a tenth of that, 245,760,000 at most" in tokens
    # 245,760,000 tokens / (10 tokens/s x 32 at once) = 768,000 s.
    assert "21.3 hours for a tenth, 8.89 days at most (10 tokens/s measured" in duration


def test_an_estimate_without_a_speed_says_so() -> None:
    assert "time: unknown" in replace(SIZE, speed=None).lines()[2]


def test_a_small_run_is_not_asked_about() -> None:
    confirm_if_large(HermesAgentEnvConfig(total_steps=49, group_size=4), [], 0, confirmed=False)
    confirm_if_large(HermesAgentEnvConfig(total_steps=100, group_size=4), [], 90, confirmed=False)


async def asked(monkeypatch: pytest.MonkeyPatch, *, confirmed: bool) -> list[str]:
    """The questions of a large run at a terminal."""
    questions: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda text, **_: questions.append(text))
    async with ScriptedModel(always(Text("one two three"))) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted")
        config = HermesAgentEnvConfig(total_steps=50, group_size=4)
        await asyncio.to_thread(confirm_if_large, config, [endpoint], 0, confirmed=confirmed)
    return questions


@pytest.mark.parametrize("confirmed", [False, True])
async def test_a_large_run_is_asked_about_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], confirmed: bool
) -> None:
    questions = await asked(monkeypatch, confirmed=confirmed)
    assert (questions == []) is confirmed
    assert re.search(r"at most \([\d.e+]+ tokens/s measured with one request, 32 at once\)", capsys.readouterr().err)


# Limits.


def test_the_short_options_set_fields_of_the_configuration() -> None:
    assert limit_fields(100, 2.5, 3) == {"token_limit": 100, "spend_limit": 2.5, "time_limit": 180}


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"scored": 4, "unscored_share": 0.0}, 0),
        ({"scored": 4, "unscored_share": 0.05}, 0),
        ({"scored": 1, "unscored_share": 0.7}, 1),
        ({"scored": 0}, 1),
        ({"scored": 4, "unscored_share": 0.9, "limit": "token_limit: 3 of 2 tokens"}, 3),
    ],
)
def test_the_exit_code_tells_a_limit_from_a_failure(result: Mapping[str, Any], code: int) -> None:
    assert exit_code({**result, "max_unscored": 0.1}, "process") == code


def test_a_limit_has_one_exit_code_everywhere() -> None:
    stopped = {"status": "stopped", "reason": "limit reached: 2.0 of 2 minutes"}
    assert run_exit_code(stopped) == LIMIT_REACHED == 3
    assert run_exit_code({"status": "stopped", "reason": "stopped by request"}) == 0


def test_the_limits_of_a_run_are_shared_by_its_environments() -> None:
    one = run_file("r1").environments[0]
    two = run_file("r1").model_copy(update={"environments": (one, one)})
    limited = add_limits(two, 1001, None, 5)
    assert [entry.env["token_limit"] for entry in limited.environments] == [500, 500]
    assert limited.max_minutes == 5


def test_a_cost_limit_of_a_run_needs_prices() -> None:
    hosted = run_file("r1").model_copy(update={"engine": None})
    with pytest.raises(ConfigError, match=r"--set openai\.prompt_price"):
        add_limits(hosted, None, 1.0, None)


async def test_a_token_limit_ends_process_with_its_own_exit_code_and_resumes(tmp_path: Path) -> None:
    flags = ["process", "terminal_test", "--groups", "6", "--env.group_size", "1", "--env.max_num_workers", "1"]
    ended = await on_model(writes_the_word, *flags, "--max-tokens-total", "100", "--json", cwd=tmp_path)
    assert ended.returncode == LIMIT_REACHED, ended.stderr
    assert "ended early by token_limit: " in ended.stderr and "continue with --resume" in ended.stderr
    made = json.loads(ended.stdout)["groups"]
    assert 0 < made < 6
    resumed = await on_model(writes_the_word, *flags, "--resume", "--json", cwd=tmp_path)
    assert (resumed.returncode, json.loads(resumed.stdout)["groups"]) == (0, 6)


def test_a_limit_is_set_once() -> None:
    with pytest.raises(ConfigError, match=r"--env\.token_limit is set twice"):
        command._with_short_options({"env__token_limit": "5"}, limit_fields(100, None, None))


def test_the_constants_of_the_help_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
    assert f"{estimate.LARGE} rollouts" in page
