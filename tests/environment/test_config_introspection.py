"""What `hermes_rl.environment.config_introspection` reports of an environment.

tests/orchestration/configuration runs it as a process.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core import fast_json
from hermes_rl.environment.config_introspection import introspect_config

ENVIRONMENT = """
from typing import Any
from pydantic import Field
from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, ToolContext


class Config(HermesAgentEnvConfig):
    level: int = Field(3, ge=1, le=9, description="How hard.")


class WordEnv(HermesAgentBaseEnv):
    name = "word"
    env_config_cls = Config

    @classmethod
    def config_init(cls) -> tuple[Config, list[APIServerConfig]]:
        return Config(level=5), [APIServerConfig(model_name="m", timeout=7, api_key="verysecret")]

    def format_prompt(self, item: Any) -> str:
        return ""

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return 0.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "word_env.py"
    path.write_text(ENVIRONMENT)
    return path


def told(file: Path, **changes: Any) -> dict[str, Any]:
    answer = introspect_config(str(file), json.dumps(changes).encode())
    description: dict[str, Any] = fast_json.loads(fast_json.dumps(answer))["description"]
    return description


def field(description: dict[str, Any], name: str, section: str = "env") -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in description[section] if one["name"] == name)
    return found


def test_a_field_is_told_with_config_inits_value_and_its_range(file: Path) -> None:
    level = field(told(file), "level")
    assert {
        name: level[name]
        for name in ("type", "default", "value", "allowed", "description", "set_by_config_init", "own")
    } == {
        "type": "int",
        "default": 5,
        "value": 5,
        "allowed": "a whole number from 1 to 9",
        "description": "How hard.",
        "set_by_config_init": True,
        "own": True,
    }


def test_changes_are_merged_over_config_init(file: Path) -> None:
    level = field(told(file, env={"level": 7}), "level")
    assert (level["default"], level["value"]) == (5, 7)


def test_defaults_below_count_where_config_init_is_silent(file: Path) -> None:
    description = told(file, defaults_below={"env": {"level": 9, "group_size": 12}})
    assert (field(description, "level")["value"], field(description, "group_size")["value"]) == (5, 12)


def test_an_endpoints_settings_are_told_too(file: Path) -> None:
    description = told(file, openai={"max_retries": 9})
    assert (field(description, "timeout", "openai")["value"], field(description, "max_retries", "openai")["value"]) == (
        7,
        9,
    )


def test_a_literal_secret_is_hidden_and_said_to_be(file: Path) -> None:
    description = told(file)
    assert "verysecret" not in str(description) and not field(description, "api_key", "openai")["readable"]


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        ({"level": 10}, "level", "less than or equal to 9"),
        ({"levle": 1}, "levle", "no such field"),
        ({"terminal_backend": "cellar"}, "terminal_backend", "choose one of auto"),
        ({"tool_call_parser": "nobody"}, "tool_call_parser", "choose one of"),
        ({"distribution": "nothing"}, "distribution", "known: "),
        ({"enabled_toolsets": ["nothing"]}, "enabled_toolsets", "known: "),
    ],
)
def test_a_change_that_does_not_fit_is_a_problem_of_its_field(
    file: Path, change: dict[str, Any], name: str, said: str
) -> None:
    [problem] = told(file, env=change)["problems"]
    assert problem["field"] == name and said in problem["message"]


def test_settings_that_cannot_be_trained_on_are_a_problem(file: Path) -> None:
    [problem] = told(file, env={"agent_temperature": 0}, openai={"server_type": "vllm"})["problems"]
    assert "cannot be trained on" in problem["message"]


def test_a_class_that_cannot_be_made_is_a_problem(file: Path) -> None:
    file.write_text(
        ENVIRONMENT + "\n    def __init__(self, *given: Any) -> None:\n        raise RuntimeError('no dataset')\n"
    )
    [problem] = told(file, openai={"server_type": "vllm"})["problems"]
    assert "WordEnv cannot be constructed: RuntimeError: no dataset" in problem["message"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(4)\n", "exits when it is loaded (exit status 4)"),
        ("1 / 0\n", "ZeroDivisionError"),
        (
            ENVIRONMENT.replace("return Config(level=5)", "return Config(level=50)"),
            "config_init of WordEnv at word_env.py:",
        ),
        ("x = 1\n", "no subclass of HermesAgentBaseEnv"),
    ],
)
def test_an_environment_that_cannot_tell_is_answered_with_why(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    assert said in introspect_config(str(file), b"")["error"]


def test_what_is_asked_must_be_json(file: Path) -> None:
    assert "error" in introspect_config(str(file), b"{")
