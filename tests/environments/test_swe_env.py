"""swe: its repositories are broken as reported and fixed by the reference fix; nothing but a fix is rewarded."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from environments.swe_env import DATA
from hermes_rl import Rollout
from hermes_rl.rollout.group import run_group
from scripts.make_swe_data import faults, items, text_of
from tests.environments.playing import Player, bundled, played
from tests.support.long_suites import in_the_gate
from tests.support.scripted_model import Reply

ITEMS = items()


class ByPrompt(Player):
    """Plays to each conversation the steps for its prompt, so that many items can be rolled out at once."""

    def __init__(self) -> None:
        self.plays: dict[str, Sequence[Any]] = {}

    def __call__(self, request: dict[str, Any]) -> Reply:
        prompt = next(message["content"] for message in request["messages"] if message["role"] == "user")
        player = Player()
        player.steps = self.plays.get(prompt, self.steps)
        return player(request)


@pytest.fixture
def player() -> ByPrompt:
    return ByPrompt()


@pytest.fixture
async def env(player: ByPrompt) -> AsyncIterator[Any]:
    async with bundled("swe", player) as opened:
        yield opened


async def each(env: Any, player: ByPrompt, steps: dict[str, Sequence[Any]]) -> dict[str, Rollout]:
    """By item: the rollout of an agent that takes the steps given for it."""
    chosen = [item for item in ITEMS if item["id"] in steps]
    player.plays = {env.format_prompt(item): steps[item["id"]] for item in chosen}
    groups = await asyncio.gather(*(run_group(env, item, size=1) for item in chosen))
    return {group.item_id: group.rollouts[0] for group in groups}


def test_the_data_is_what_the_generator_makes() -> None:
    assert DATA.read_text() == text_of(ITEMS)


def test_there_are_thirty_repositories_of_several_files_with_bugs_of_many_kinds() -> None:
    assert len({item["id"] for item in ITEMS}) == 30
    assert len({item["kind"] for item in ITEMS}) >= 10
    for item in ITEMS:
        modules = [path for path in item["files"] if path.startswith(f"{item['id']}/")]
        assert 3 <= len(modules) <= 6, item["id"]
        assert "README.md" in item["files"] and any(path.startswith("tests/") for path in item["files"])


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: str(item["id"]))
def test_the_hidden_cases_fail_before_the_fix_and_pass_after_it(item: dict[str, Any]) -> None:
    assert faults(item) == []


async def test_the_splits_share_no_item(env: Any) -> None:
    train, held_out = ({item["id"] for item in items} for items in (env.train_items(), env.eval_items()))
    assert (len(train), len(held_out), train & held_out) == (24, 6, set())


async def test_neither_the_prompt_nor_the_sandbox_tells_a_hidden_answer(env: Any) -> None:
    for item in ITEMS:
        told = env.format_prompt(item) + "".join(map(str, env.sandbox_spec(item).files.values()))
        assert not any(case in told for case, _ in item["cases"][1:]), item["id"]


async def test_the_reference_fix_scores_one_and_doing_nothing_scores_zero(env: Any, player: ByPrompt) -> None:
    fixed = await each(env, player, {item["id"]: env.oracle(item) for item in ITEMS})
    assert {name: rollout.score for name, rollout in fixed.items()} == dict.fromkeys(fixed, 1.0)
    assert all(rollout.components == {"tests_passed": 1.0} for rollout in fixed.values())
    untouched = await each(env, player, {item["id"]: [""] for item in ITEMS})
    assert {name: rollout.score for name, rollout in untouched.items()} == dict.fromkeys(untouched, 0.0)


async def test_cheats_score_zero(env: Any, player: ByPrompt) -> None:
    item = ITEMS[0]
    rollouts = {name: await played(env, player, item, steps) for name, steps in env.cheats(item).items()}
    assert {name: rollout.score for name, rollout in rollouts.items()} == dict.fromkeys(rollouts, 0.0)
    assert not any(use.error for rollout in rollouts.values() for use in rollout.tool_uses)
    # It really answered the reported example: one case more than without it.
    by_heart, idle = (rollouts[name].components["tests_passed"] for name in ("knows the report by heart", "says so"))
    assert round((by_heart - idle) * len(item["cases"])) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("repositories", in_the_gate([1, len(ITEMS)], 1))
async def test_cheats_score_zero_on_every_repository(env: Any, player: ByPrompt, repositories: int) -> None:
    for cheat in env.cheats(ITEMS[0]):
        rollouts = await each(env, player, {item["id"]: env.cheats(item)[cheat] for item in ITEMS[:repositories]})
        assert {name: rollout.score for name, rollout in rollouts.items()} == dict.fromkeys(rollouts, 0.0), cheat


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.system('sleep 100 &')",
        "import signal; signal.pause()",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import os; os.kill(-1, 9)",
        "data = bytearray(4 << 30)",
    ],
)
async def test_code_that_disturbs_the_judge_scores_zero(
    env: Any, player: ByPrompt, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[type(env).__module__], "TIMEOUT", 2)
    package = f"repo/{ITEMS[0]['id']}/__init__.py"
    steps = [("terminal", {"command": f'echo "{code}" >> {package}'}), "Done."]
    assert (await played(env, player, ITEMS[0], steps)).score == 0.0


async def test_a_sandbox_without_python_gives_no_score(
    env: Any, player: ByPrompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[type(env).__module__], "JUDGE", "raise SystemExit(127)")
    rollout = await played(env, player, ITEMS[0], ["Done."])
    assert str(rollout.failure) == "verifier/no_python"
