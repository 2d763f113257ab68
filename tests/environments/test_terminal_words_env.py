"""terminal_words: held-out words and wordings are new, a command is right for one word, and its effect alone scores."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pydantic import ValidationError

from environments.terminal_words_env import (
    EXAMPLE_WORDS,
    FAMILIES,
    HELD_OUT_WORDS,
    WORDS,
    TerminalWordsConfig,
    TerminalWordsEnv,
    files_of,
    number_of,
    solution,
)
from hermes_rl import APIServerConfig, Rollout, Step
from hermes_rl.agent.harnesses.installer import agents_home
from hermes_rl.agent.harnesses.registry import get_agent
from hermes_rl.core.trajectory import StopReason
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import run_script
from hermes_rl.validation.validate import check_environment
from tests.rollout.external.programs import SMALL_AGENT
from tests.support.scripted_model import Calls, ScriptedModel, Text

EVERY = list(FAMILIES)
NOBODY = NO_MODEL.model_copy(update={"health_check": False})
NUMBER = number_of("apple")


@asynccontextmanager
async def opened(endpoint: APIServerConfig = NOBODY, **config: Any) -> AsyncIterator[TerminalWordsEnv]:
    ours, _ = TerminalWordsEnv.config_init()
    settings = TerminalWordsConfig.model_validate({**ours.model_dump(), "families": EVERY, **config})
    env = TerminalWordsEnv(settings, [endpoint])
    async with env.opened():
        yield env


@pytest.fixture
async def env() -> AsyncIterator[TerminalWordsEnv]:
    async with opened() as env:
        yield env


def item_of(family: str, word: str = "apple") -> dict[str, str]:
    return {"family": family, "word": word, "wording": FAMILIES[family].wordings[0]}


def run(command: str) -> Step:
    return "terminal", {"command": command}


async def played(env: TerminalWordsEnv, item: dict[str, str], steps: Sequence[Step]) -> Rollout:
    rollout, _ = await run_script(env, item, steps)
    assert rollout.failure is None
    return rollout


async def test_no_word_and_no_wording_of_an_evaluation_is_trained_on(env: TerminalWordsEnv) -> None:
    train, held_out = env.train_items(), env.eval_items()
    for part in ("word", "wording"):
        assert {item[part] for item in train}.isdisjoint(item[part] for item in held_out)
    assert len(WORDS) >= 60 and len(HELD_OUT_WORDS) >= 40


async def test_the_words_of_worked_examples_are_in_no_item(env: TerminalWordsEnv) -> None:
    assert not {item["word"] for item in (*env.train_items(), *env.eval_items())} & set(EXAMPLE_WORDS)


async def test_every_word_comes_once_in_every_wording(env: TerminalWordsEnv) -> None:
    assert set(Counter(json.dumps(item) for item in env.train_items()).values()) == {1}
    assert len(env.train_items()) == len(WORDS) * sum(len(family.wordings) for family in FAMILIES.values())
    assert len(env.eval_items()) == len(HELD_OUT_WORDS) * sum(len(family.held_out) for family in FAMILIES.values())


async def test_the_first_items_of_an_evaluation_have_all_families_alike(env: TerminalWordsEnv) -> None:
    first = env.eval_items()[: 10 * len(EVERY)]
    assert Counter(item["family"] for item in first) == dict.fromkeys(EVERY, 10)


async def test_one_family_is_the_default_and_a_mix_is_a_setting() -> None:
    async with opened(families=TerminalWordsConfig().families) as env:
        assert {item["family"] for item in env.train_items()} == {"echo"}


@pytest.mark.parametrize("families", [[], ["echo", "sudo"]])
def test_other_families_are_refused(families: list[str]) -> None:
    with pytest.raises(ValidationError, match="families"):
        TerminalWordsConfig.model_validate({"families": families})


@pytest.mark.parametrize("family", EVERY)
async def test_two_worked_examples_stand_before_the_prompt_in_its_own_wording(
    env: TerminalWordsEnv, family: str
) -> None:
    for item in (item_of(family), {**item_of(family), "wording": FAMILIES[family].held_out[1]}):
        asked = [said["content"] for said in env.initial_messages(item) if said["role"] == "user"]
        assert asked == [item["wording"].format(word) for word in (*EXAMPLE_WORDS, "apple")]


async def test_the_worked_example_shows_the_tools_answer_as_it_is(env: TerminalWordsEnv) -> None:
    item = item_of("cat")
    rollout = await played(env, item, solution(item))
    [shown, *_] = [said["content"] for said in env.initial_messages(item) if said["role"] == "tool"]
    [heard] = rollout.tool_uses
    assert shown == heard.result.replace(str(number_of("apple")), str(number_of(EXAMPLE_WORDS[0])))


@pytest.mark.parametrize("family", EVERY)
async def test_the_right_command_scores_under_its_family(env: TerminalWordsEnv, family: str) -> None:
    rollout = await played(env, item_of(family), solution(item_of(family)))
    assert (rollout.score, rollout.components) == (1.0, {family: 1.0})


@pytest.mark.parametrize("family", EVERY)
async def test_only_who_must_answer_has_a_second_turn(env: TerminalWordsEnv, family: str) -> None:
    rollout = await played(env, item_of(family), solution(item_of(family)))
    expected = (2, StopReason.NATURAL) if family == "cat" else (1, StopReason.MAX_TURNS)
    assert (rollout.turns_used, rollout.stop_reason) == expected


@pytest.mark.parametrize(
    ("family", "command"),
    [
        ("echo", "echo apple pie > out.txt"),
        ("echo", "echo apple > out.txt; touch more.txt"),
        ("echo", "echo apple > apple.txt"),
        ("echo", r"printf 'pear\0out.txt\0apple\n' > out.txt"),
        ("mkdir", "mkdir apple pear"),
        ("mkdir", "mkdir -p apple/core"),
        ("mkdir", "touch apple"),
        ("mkdir", "ln -s . apple"),
        ("touch", "mkdir apple"),
        ("touch", "mkfifo apple"),
        ("touch", "echo apple > apple"),
        ("rm", "rm *.txt"),
        ("rm", "mv apple.txt new.txt"),
        ("rm", "echo > apple.txt"),
        ("cp", "mv apple.txt new.txt"),
        ("cp", "touch new.txt"),
        ("cp", "ln -s apple.txt new.txt"),
        ("mv", "cp apple.txt new.txt"),
        ("mv", "rm apple.txt; touch new.txt"),
    ],
)
async def test_another_effect_scores_nothing(env: TerminalWordsEnv, family: str, command: str) -> None:
    assert (await played(env, item_of(family), [run(command)])).score == 0.0


@pytest.mark.parametrize(
    "steps",
    [
        [run("cat apple.txt")],
        [f"It says {NUMBER}."],
        [run("ls"), f"It says {NUMBER}."],
        [run("cat apple.txt"), f"It says {NUMBER + 1}."],
        [run("cat apple.txt"), f"It says {NUMBER} or {NUMBER + 1}."],
        [run("cat apple.txt"), "It says so."],
        [run("cat apple.txt; rm apple.txt"), f"It says {NUMBER}."],
    ],
)
async def test_a_number_that_is_wrong_or_was_not_read_scores_nothing(env: TerminalWordsEnv, steps: list[Step]) -> None:
    assert (await played(env, item_of("cat"), steps)).score == 0.0


def test_the_files_of_an_item_differ_in_what_they_hold() -> None:
    for word in (*WORDS, *HELD_OUT_WORDS):
        assert len(set(files_of(item_of("cat", word)).values())) == 3


@pytest.mark.parametrize("family", EVERY)
async def test_one_command_is_right_for_one_word(env: TerminalWordsEnv, family: str) -> None:
    words = HELD_OUT_WORDS[:8]
    always = solution(item_of(family, words[0]))
    rollouts = await asyncio.gather(*[played(env, item_of(family, word), always) for word in words])
    assert [rollout.score for rollout in rollouts] == [1.0] + [0.0] * 7


async def test_a_model_that_always_writes_one_command_scores_nothing_on_held_out_items() -> None:
    def as_in_the_first_example(request: dict[str, Any]) -> Text:
        said = [message["content"] for message in request["messages"] if message["role"] == "assistant"]
        return Text(str(said[0]))

    async with ScriptedModel(as_in_the_first_example) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0, timeout=20)
        async with opened(endpoint, group_size=1) as env:
            groups = await asyncio.gather(*[env.collect_group(item) for item in env.eval_items()[: 10 * len(EVERY)]])
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert all(rollout.tool_uses for rollout in rollouts)
    assert [rollout.score for rollout in rollouts] == [0.0] * 10 * len(EVERY)


async def test_a_program_of_one_turn_scores_by_what_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is not left in the workspace, and nobody was told what its only call gave."""
    right = Calls([("bash", json.dumps({"command": "echo apple > out.txt"}))])
    with TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        monkeypatch.setenv("HERMES_HOME", home)
        python = agents_home() / get_agent("sdk").folder_name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\nexec python3 "$@"\n')
        python.chmod(0o755)
        async with ScriptedModel(lambda _: right) as model:
            endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0, timeout=20)
            program = {"agent_command": "agent:sdk", "agent_files": {"agent.py": str(SMALL_AGENT)}}
            async with opened(endpoint, group_size=1, **program) as env:
                (rollout,) = (await env.collect_group(item_of("echo"))).rollouts
    assert (rollout.score, rollout.stop_reason, rollout.turns_used) == (1.0, StopReason.MAX_TURNS, 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_idling_and_cheating_score_nothing_in_any_family() -> None:
    for family in EVERY:
        report = check_environment(TerminalWordsEnv, items=1, families=[family])
        assert report.findings == ()
        assert set(report.scores("oracle")) == {1.0}
