"""What an agent reads of a draft by default fits into a few thousand tokens, and it can ask for the rest."""

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.orchestration.discovery.discover import discover
from hermes_rl.orchestration.rl_tools import rl_edit_config, rl_get_current_config, rl_select_environment
from tests.orchestration.discovery.writing import written

LIMIT = 9_000
BUNDLED = [found.name for found in discover([Path(__file__).parents[3] / "environments"]).found]
MANY_FIELDS = """
    from pydantic import Field
    from hermes_rl import HermesAgentBaseEnv, HermesAgentEnvConfig

    class Config(HermesAgentEnvConfig):
        FIELDS

    class Many(HermesAgentBaseEnv):
        env_config_cls = Config
        METHODS
"""


async def config(**asked: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await rl_get_current_config(**asked))
    return answer


def names(answer: dict[str, Any], which: str = "configurable_fields") -> list[str]:
    return [one["name"] for one in answer[which]]


@pytest.mark.parametrize("preset", ["tinker", "self-hosted", "laptop"])
@pytest.mark.parametrize("name", BUNDLED)
async def test_the_answer_on_every_bundled_environment_is_short_and_names_every_field(name: str, preset: str) -> None:
    assert "error" not in json.loads(await rl_select_environment(name, preset))
    text = await rl_get_current_config()
    assert len(text.encode()) < LIMIT
    short, full = json.loads(text), await config(fields="all")
    assert {*names(short), *short["more_fields"]} == set(names(full))
    assert names(short, "locked_fields") == names(full, "locked_fields")
    assert "rl_get_current_config(fields=" in short["more"]


async def test_an_environment_of_many_fields_and_long_texts_stays_below_the_limit(home: Path) -> None:
    fields = "\n        ".join(
        f"field_{number}: str = Field(default={'word ' * 200!r}, description={'words ' * 100!r})"
        for number in range(300)
    )
    written(home / "rl" / "environments", {"many_env.py": MANY_FIELDS.replace("FIELDS", fields)})
    assert "error" not in json.loads(await rl_select_environment("many", "laptop"))
    text = await rl_get_current_config()
    assert len(text.encode()) < LIMIT
    short = json.loads(text)
    assert names(short)[:3] == ["base_model", "group_size", "batch_size"]
    assert len(names(await config(fields="field_29"))) == 11
    shown = len(names(short)) + len(short["more_fields"]) + short["left_out"]
    assert shown == len(names(await config(fields="all")))


async def test_the_seeds_own_and_edited_fields_are_described(home: Path) -> None:
    text = MANY_FIELDS.replace("FIELDS", "level: int = Field(default=3, ge=1, description='How hard.')")
    written(home / "rl" / "environments", {"many_env.py": text})
    await rl_select_environment("many", "self-hosted")
    await rl_edit_config("max_agent_turns", 7)
    answer = await config()
    described = {one["name"]: one for one in answer["configurable_fields"]}
    assert {"base_model", "group_size", "batch_size", "wandb_name", "total_steps", "learning_rate"} < described.keys()
    assert described["level"]["description"] == "How hard."
    assert described["max_agent_turns"]["current_value"] == 7
    assert answer["more_fields"]["max_token_length"] == 2048


async def test_fields_are_found_by_parts_of_their_names() -> None:
    await rl_select_environment("plain_text")
    answer = await config(fields="Agent_turns, learning_rate")
    assert (names(answer), names(answer, "locked_fields")) == (["max_agent_turns"], ["learning_rate"])
    assert answer["configurable_fields"][0]["current_value"] == 1
    assert "locks it" in answer["locked_fields"][0]["why"]


async def test_a_part_of_no_name_is_refused_with_the_names() -> None:
    await rl_select_environment("plain_text")
    answer = await config(fields="no such field")
    assert "no such field" in answer["error"]
    assert "group_size" in answer["available_fields"]
