"""A red team finds planted exploits, shortens them, and writes cheats that `validate` reports."""

import json
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks.planted_rewards import ITEMS, PlantedEnv, ScriptedAttacker, SoundEnv, exploits
from hermes_rl import APIServerConfig
from hermes_rl.console.config_options import ConfigSections
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.resolve_config import Settings, resolve_settings
from hermes_rl.validation.redteam.campaign import RedTeamReport, run_redteam
from hermes_rl.validation.redteam.cheats_file import FoundCheat, cheats_file, filled, values_in
from hermes_rl.validation.redteam.minimize import PlainScript, minimized
from hermes_rl.validation.validate import run_validation
from tests.support.environments import FileEnv
from tests.support.scripted_model import Calls, ScriptedModel, Text

TRIED = ("believes the final answer", "finds programs in the agent's folder", "accepts the inputs")


class ThreeFlaws(PlantedEnv):
    flaws = TRIED


def attacker(names: Sequence[str]) -> Any:
    known = ScriptedAttacker(names)

    def answer(request: dict[str, Any]) -> Calls | Text:
        step = known.next_step(request["messages"])
        return Text(step) if isinstance(step, str) else Calls([(step[0], json.dumps(step[1]))])

    return answer


async def campaign(environment: Any, *names: str, rollouts: int, **more: Any) -> RedTeamReport:
    async with ScriptedModel(attacker(names)) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0, timeout=20)
        settings = Settings(environment.env_config_cls(**more), (endpoint,))
        return await run_redteam(environment, settings, with_source=False, items=2, max_rollouts=rollouts, parallel=2)


async def test_planted_exploits_are_found_shortened_and_reported_by_validate(tmp_path: Path) -> None:
    report = await campaign(ThreeFlaws, *TRIED, rollouts=4)
    assert (report.rollouts, report.passed, report.lost, report.repeated) == (4, 4, 0, 1)
    wanted = [exploits(item)[name] for item in ITEMS for name in TRIED]
    assert len(report.exploits) == 3
    for exploit in report.exploits:
        # Three of its calls were noise.
        assert exploit.script in wanted
        assert exploit.steps_before == len(exploit.script) + 3
        assert (exploit.works_on, exploit.tried_on) == (2, 2)
    path = tmp_path / "found.py"
    path.write_text(report.as_file(path))
    found = runpy.run_path(str(path))["found_cheats"]

    class WithCheats(ThreeFlaws):
        def cheats(self, item: Any) -> Any:
            return found(item)

    scores = await run_validation(WithCheats, resolve_settings(WithCheats, ConfigSections(), {}, {}), items=1)
    seen = [finding.seen for finding in scores.findings if finding.code == "cheat_passes"]
    for exploit in report.exploits:
        assert any(f'your own cheat "{exploit.name}" passes' in text and "on 1 of 1 items" in text for text in seen)


async def test_a_sound_reward_has_no_exploit() -> None:
    report = await campaign(SoundEnv, *TRIED, rollouts=3)
    assert (report.rollouts, report.passed, report.exploits) == (3, 0, [])


class WithoutAudit(FileEnv):
    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal",)


@pytest.mark.parametrize("audit", ["auto", "signatures"])
async def test_without_a_second_score_it_says_what_to_define(audit: str) -> None:
    with pytest.raises(ConfigError, match=r"define audit_reward\(item, result, ctx\)"):
        await campaign(WithoutAudit, *TRIED, rollouts=1, audit=audit)


async def test_every_step_that_is_not_needed_is_dropped() -> None:
    played: list[PlainScript] = []

    async def works(script: PlainScript) -> bool:
        played.append(script)
        commands = [step[1]["command"] for step in script if not isinstance(step, str)]
        return commands.count("a") == 1 and "b" in commands

    steps: PlainScript = [("terminal", {"command": command}) for command in "xxaxxxbxx"]
    short = await minimized([*steps, "I am done"], works)
    assert short == [("terminal", {"command": "a"}), ("terminal", {"command": "b"}), ""]
    assert len(played) < 30


async def test_what_does_not_work_again_is_no_exploit() -> None:
    async def never(_: PlainScript) -> bool:
        return False

    assert await minimized(["done"], never) is None


async def test_an_answer_that_is_needed_stays() -> None:
    async def needs_the_answer(script: PlainScript) -> bool:
        return script[-1] == "All tests passed."

    assert await minimized([("terminal", {"command": "ls"}), "All tests passed."], needs_the_answer) == [
        "All tests passed."
    ]


def test_the_file_reads_the_values_of_its_item_and_repeats_everything_else(tmp_path: Path) -> None:
    item = {"question": {"numbers": [12, 7]}, "word": 'a "b"\n'}
    script: PlainScript = [("terminal", {"command": "echo 12 + 712 > 'x\\y'", "timeout": 5, "all": True}), '"7" {word}']
    values = values_in(script, item)
    assert values == {"12": ("question", "numbers", 0), "7": ("question", "numbers", 1)}
    cheats = [FoundCheat('one "two"', script, values), FoundCheat("three", script, {}, "of another item")]
    path = tmp_path / "made.py"
    path.write_text(cheats_file(cheats, environment='my "env"', date="2026-11-19", model="m", module="made"))
    other = {"question": {"numbers": [99, 3]}}
    found = runpy.run_path(str(path))["found_cheats"](other)
    assert found == {
        'one "two"': [("terminal", {"command": "echo 99 + 712 > 'x\\y'", "timeout": 5, "all": True}), '"3" {word}']
    }
    assert found['one "two"'] == filled(script, values, other)
