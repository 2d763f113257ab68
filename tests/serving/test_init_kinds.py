"""Each kind of environment that `init` writes works with every command, on a scripted model that solves it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import HermesAgentBaseEnv
from hermes_rl.cli.init import KINDS, render_template
from hermes_rl.cli.replay import _replay, _replay_episode, _StepPrinter
from hermes_rl.core.trajectory import Group
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.evaluation.rescore import RescoreStats, rescore_groups
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.store.database.store import Store
from hermes_rl.store.records import read_groups
from hermes_rl.validation.report import AgentKind
from hermes_rl.validation.validate import check_environment
from tests.serving.counting_env import MODEL
from tests.serving.parts import groups, serving, trainer, until
from tests.support.environments import opened
from tests.support.scripted_model import Calls, ScriptedModel, Text
from tests.support.token_servers import Asked, Tokens, VLLMServer
from tests.viewer.recording import viewing

Player = Callable[[Sequence[str], int], str | tuple[str, dict[str, Any]]]
EXPLANATIONS: dict[str, str] = dict(
    re.findall(r'^    "(\w+)": "(.+)",$', render_template("mine", "judge")["mine_env.py"], re.MULTILINE)
)


def shell(heard: Sequence[str], turn: int) -> str | tuple[str, dict[str, Any]]:
    words = heard[0].rpartition(": ")[2].split()
    return "Done." if turn else ("terminal", {"command": f"echo {len(words)} > answer.txt"})


def tools(heard: Sequence[str], turn: int) -> str | tuple[str, dict[str, Any]]:
    book, reader = re.findall(r"Lend (.+) to (\w+)\.", heard[0])[0]
    if turn == 0:
        return "find_book", {"title": book}
    return ("lend_book", {"book": heard[-1].strip(), "reader": reader}) if turn == 1 else "Done."


def game(heard: Sequence[str], turn: int) -> str:
    low, high = 1, 50
    for hint in heard[1:]:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if "low" in hint else (low, middle - 1)
    return str((low + high) // 2)


def judge(heard: Sequence[str], turn: int) -> str:
    return EXPLANATIONS[re.findall(r"'(\w+)'", heard[0])[0]]


def selfplay(heard: Sequence[str], turn: int) -> str:
    """Leave a multiple of four, else take one: the same winner in every episode."""
    return str(int(re.findall(r"There are (\d+) sticks", heard[-1])[0]) % 4 or 1)


def conversation(heard: Sequence[str], turn: int) -> str | tuple[str, dict[str, Any]]:
    if turn != 1:
        return "It is booked." if turn else "Who, when, and how many?"
    name, people, day = re.findall(r"(\w+), (\d) on (\w+)", heard[1])[0]
    return "book_table", {"name": name, "day": day, "people": int(people)}


def guest(request: dict[str, Any]) -> Text:
    """Plays the user of the conversation: tells what its instructions say, and stops when it is booked."""
    told = re.findall(r"You are (\w+) and want a table for (\d) on (\w+)", request["messages"][0]["content"])[0]
    return Text("###STOP###" if "booked" in request["messages"][-1]["content"] else "{}, {} on {}".format(*told))


PLAYERS: dict[str, Player] = {
    "shell": shell,
    "tools": tools,
    "game": game,
    "conversation": conversation,
    "selfplay": selfplay,
    "judge": judge,
}


@asynccontextmanager
async def written(kind: str, folder: Path) -> AsyncIterator[tuple[type[HermesAgentBaseEnv], dict[str, Any]]]:
    """The environment as `init` writes it, and the settings of its judge or its user, if it has one."""
    for name, text in render_template("mine", kind).items():
        (folder / name).write_text(text)
    environment = load_environment(str(folder / "mine_env.py"))

    def verdict(request: dict[str, Any]) -> Text:
        score = int(any(text in str(request["messages"]) for text in EXPLANATIONS.values()))
        return Text(json.dumps({"reasons": "scripted", "score": score}))

    settings: dict[str, Any] = {}
    async with ScriptedModel(verdict) as judges, ScriptedModel(guest) as guests:
        if kind == "judge":
            settings["judge_url"] = judges.base_url
        if kind == "conversation":
            settings["user_endpoint"] = {"base_url": guests.base_url, "model_name": guests.model_name}
        yield environment, settings


def chatting(player: Player) -> Callable[[dict[str, Any]], Text | Calls]:
    def answer(request: dict[str, Any]) -> Text | Calls:
        messages = request["messages"]
        heard = [str(message["content"]) for message in messages if message["role"] in ("user", "tool")]
        said = player(heard, sum(message["role"] == "assistant" for message in messages))
        return Text(said) if isinstance(said, str) else Calls([(said[0], json.dumps(said[1]))])

    return answer


def in_tokens(player: Player) -> Callable[[Asked], Tokens]:
    """The same player as an engine that is asked for tokens."""

    def answer(asked: Asked) -> Tokens:
        text = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
        turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", text, re.DOTALL)
        heard = [re.sub(r"</?tool_response>", "", said).strip() for role, said in turns if role in ("user", "tool")]
        said = player(heard, sum(role == "assistant" for role, _ in turns))
        if not isinstance(said, str):
            said = f"<tool_call>\n{json.dumps({'name': said[0], 'arguments': said[1]})}\n</tool_call>"
        return Tokens((*MODEL.tokenizer.encode(said, add_special_tokens=False), MODEL.stop_ids[0]))

    return answer


def test_every_kind_is_tried_here() -> None:
    assert set(PLAYERS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_init_writes_is_valid(kind: str, tmp_path: Path) -> None:
    async with written(kind, tmp_path) as (environment, settings):
        report = await asyncio.to_thread(check_environment, environment, items=2, **settings)
    assert report.findings == ()
    assert {trial.score for trial in report.trials if trial.kind is AgentKind.ORACLE} == {1.0}


@pytest.mark.parametrize("kind", KINDS)
async def test_what_init_writes_is_recorded_evaluated_rescored_replayed_and_viewed(kind: str, tmp_path: Path) -> None:
    path, kept, moved = tmp_path / "groups.jsonl", list[Group](), RescoreStats()
    async with written(kind, tmp_path) as (environment, settings), ScriptedModel(chatting(PLAYERS[kind])) as model:
        settings |= {
            "total_steps": 2,
            "group_size": 2,
            "eval_size": 2,
            "data_dir_to_save_evals": str(tmp_path / "eval"),
        }
        async with opened(environment, model, **settings) as env:
            await generate_groups(env, path)
            await env.run_evaluate()
            recorded = list(read_groups(path))
            await rescore_groups(env, recorded, kept.append, moved)
            metrics = env.last_evaluation
        closed = environment(environment.env_config_cls(**settings), [NO_MODEL])
        replay = partial(_replay_episode, closed, path) if closed.seats else partial(_replay, closed)
        first = recorded[0]
        replayed = await replay(first, first.rollouts[0], _StepPrinter(silent=True, wait=False))
    # One of two players wins.
    seats = len(environment.seats) or 1
    assert [max(group.scores for group in recorded if group.draw == draw) for draw in (0, 1)] == [[1.0, 1.0]] * 2
    assert metrics is not None
    assert json.loads((Path(metrics["folder"]) / "metrics.json").read_text())["metrics"]["eval/pass@1"] == 1.0 / seats
    assert (moved.same, moved.failures) == (4 * seats, {})
    assert (replayed["score"], replayed["problem"], replayed["differ"]) == (first.scores[0], None, 0)
    with viewing(path) as asking:
        assert asking(f"/api/s/{asking.whole()}")["counts"]["scored"] == 4 * seats


@pytest.mark.parametrize("kind", KINDS)
async def test_what_init_writes_is_served_with_exact_tokens(kind: str, tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with (
        written(kind, tmp_path) as (environment, settings),
        VLLMServer(in_tokens(PLAYERS[kind]), weights="0") as model,
        serving(api, model.base_url, tmp_path, environment, **settings),
    ):
        await until(lambda: arrived(store, len(environment.seats) or 1))
    first = max(await groups(store), key=lambda group: group.scores)
    assert first.scores == [1.0, 1.0]
    assert all(sum(sequence.mask) for rollout in first.rollouts for sequence in rollout.sequences)


async def arrived(store: Store, count: int) -> bool:
    return len(await groups(store)) >= count
