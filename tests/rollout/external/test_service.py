"""An agent behind a URL, as a real small service: asked once or polled, scored for what the policy did."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import ValidationError

from hermes_rl import HermesAgentEnvConfig
from hermes_rl.core.trajectory import Rollout, StopReason
from hermes_rl.evaluation.rescore import RescoreStats, rescore_groups
from hermes_rl.rollout.external import run as run_module
from hermes_rl.rollout.external import service as service_module
from hermes_rl.rollout.group import run_group
from tests.rollout.external.programs import ITEM
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text

Agent = Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]
TOOL = {"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {}}}}


def says_the_number(request: dict[str, Any]) -> Text:
    return Text(request["messages"][-1]["content"].split()[-1])


async def ask(task: dict[str, Any]) -> str:
    """One model call, as the agent's own client would make it."""
    body = {"model": task["model"], "messages": task["messages"], "tools": [TOOL]}
    headers = {"Authorization": f"Bearer {task['key']}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{task['base_url']}/chat/completions", json=body) as answer,
    ):
        answer.raise_for_status()
        content: str = (await answer.json())["choices"][0]["message"]["content"]
        return content


async def writes_the_answer(task: dict[str, Any]) -> dict[str, Any]:
    return {"output": "done", "files": {"answer": await ask(task)}}


class SmallService:
    """An agent service: `polled` answers 202 and is asked for the outcome, else the POST waits for it."""

    def __init__(self, agent: Agent, *, polled: bool = False, refusals: int = 0) -> None:
        self.agent, self.polled, self.refusals = agent, polled, refusals
        self.tasks: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.running: list[asyncio.Task[dict[str, Any]]] = []
        self.stopped = 0

    async def start(self, request: web.Request) -> web.Response:
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503)
        self.tokens.append(request.headers.get("Authorization"))
        self.tasks.append(await request.json())
        if not self.polled:
            return web.json_response(await self.agent(self.tasks[-1]))
        self.running.append(asyncio.create_task(self.agent(self.tasks[-1])))
        number = len(self.running) - 1
        return web.json_response({"status_url": f"/tasks/{number}"}, status=202, headers={"Retry-After": "0.05"})

    async def status(self, request: web.Request) -> web.Response:
        task = self.running[int(request.match_info["number"])]
        if not task.done():
            return web.json_response({"status": "running"}, headers={"Retry-After": "0.05"})
        return web.json_response(task.result())

    async def stop(self, request: web.Request) -> web.Response:
        self.stopped += 1
        self.running[int(request.match_info["number"])].cancel()
        return web.Response(status=204)


@asynccontextmanager
async def served(small: SmallService) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/run", small.start)
    app.router.add_get("/tasks/{number}", small.status)
    app.router.add_delete("/tasks/{number}", small.stop)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/run"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def environment_of(small: SmallService, **config: Any) -> AsyncIterator[FileEnv]:
    async with (
        ScriptedModel(says_the_number) as model,
        served(small) as url,
        opened(FileEnv, model, **{"rollout_retries": 0, "agent_url": url, **config}) as env,
    ):
        yield env


async def rollout_of(small: SmallService, **config: Any) -> Rollout:
    async with environment_of(small, **config) as env:
        [rollout] = (await run_group(env, ITEM, size=1)).rollouts
        return rollout


@pytest.mark.parametrize("polled", [False, True])
async def test_a_service_does_the_task_and_is_scored_by_what_it_made(polled: bool) -> None:
    small = SmallService(writes_the_answer, polled=polled)
    rollout = await rollout_of(small)
    assert (rollout.score, rollout.stop_reason, rollout.turns_used) == (1.0, StopReason.NATURAL, 1)
    assert rollout.metadata["program"]["output"] == "done"
    assert rollout.messages[-1] == {"role": "assistant", "content": "7"}
    assert small.stopped == 0


async def test_it_is_sent_the_task_and_its_token_and_nothing_of_the_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOKEN", "sesame")
    small = SmallService(writes_the_answer)
    await rollout_of(small, agent_token="env:AGENT_TOKEN", max_agent_turns=4, system_prompt="Be brief.")
    [task] = small.tasks
    assert small.tokens == ["Bearer sesame"]
    assert task["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "write 7"},
    ]
    assert (task["prompt"], task["model"], task["max_calls"]) == ("Be brief.\n\nwrite 7", "scripted", 4)
    assert task["base_url"] == f"{task['url']}/v1"
    assert set(task) == {
        *("rollout", "prompt", "messages", "base_url", "url", "key", "model", "context_tokens", "max_calls", "seconds")
    }


async def test_the_tools_that_it_offered_are_kept() -> None:
    async with environment_of(SmallService(writes_the_answer)) as env:
        group = await run_group(env, ITEM, size=2)
    assert (group.tools, list(group.tool_schemas)) == (("write",), [TOOL])


async def test_its_key_is_of_no_use_when_it_has_ended() -> None:
    small = SmallService(writes_the_answer)
    async with environment_of(small) as env:
        await run_group(env, ITEM, size=1)
        with pytest.raises(aiohttp.ClientResponseError, match="401"):
            await ask(small.tasks[0])


async def test_another_address_of_the_gateway_is_told() -> None:
    async def silent(task: dict[str, Any]) -> dict[str, Any]:
        return {}

    small = SmallService(silent)
    await rollout_of(small, gateway_url="https://gateway.example/rl/")
    assert small.tasks[0]["base_url"].startswith("https://gateway.example/rl/rollouts/")


async def test_a_busy_service_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "backoff_seconds", lambda *_, **__: 0.01)
    small = SmallService(writes_the_answer, refusals=2)
    assert (await rollout_of(small)).score == 1.0
    assert len(small.tasks) == 1


# --- ends and faults ---


async def never(task: dict[str, Any]) -> dict[str, Any]:
    return {"status": "failed", "output": "no module named agent"}


async def test_an_agent_that_never_asks_has_no_score_and_its_words_are_told() -> None:
    rollout = await rollout_of(SmallService(never))
    assert rollout.failure is not None
    assert str(rollout.failure) == "environment/agent_url"
    assert "no module named agent" in rollout.failure.message


async def test_an_agent_that_fails_after_an_answer_is_scored() -> None:
    async def fails(task: dict[str, Any]) -> dict[str, Any]:
        await ask(task)
        return {"status": "failed", "output": "crashed", "files": {"answer": "7"}}

    rollout = await rollout_of(SmallService(fails))
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.CRASHED)


async def test_a_service_that_is_not_there_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "backoff_seconds", lambda *_, **__: 0.01)
    rollout = await rollout_of(SmallService(never), agent_url="http://127.0.0.1:9/run")
    assert rollout.failure is not None
    assert str(rollout.failure) == "environment/agent_url"
    assert "POST http://127.0.0.1:9/run failed" in rollout.failure.message


@pytest.mark.parametrize("polled", [False, True])
async def test_an_agent_that_goes_on_is_stopped_at_the_policys_deadline_and_told_so(
    polled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "EXIT_GRACE", 0.1)

    async def goes_on(task: dict[str, Any]) -> dict[str, Any]:
        await ask(task)
        await asyncio.sleep(60)
        return {}

    small = SmallService(goes_on, polled=polled)
    rollout = await rollout_of(small, rollout_deadline=0.05)
    assert (rollout.score, rollout.stop_reason, small.stopped) == (0.0, StopReason.DEADLINE, int(polled))


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({"status": "perhaps"}, "must be completed, failed or running"),
        ({"output": 5}, "the agent's output must be text"),
        ({"files": {"a": 5}}, "its files texts by their paths"),
        ({"status": "running"}, "its answer has no status_url"),
        ({"status": "running", "status_url": "http://elsewhere.example/1"}, "is not on the server of agent_url"),
    ],
)
async def test_an_answer_that_is_no_outcome_is_told(answer: dict[str, Any], part: str) -> None:
    async def odd(task: dict[str, Any]) -> dict[str, Any]:
        return answer

    rollout = await rollout_of(SmallService(odd))
    assert rollout.failure is not None
    assert part in rollout.failure.message


async def test_files_of_a_service_can_be_kept_and_scored_again(tmp_path: Any) -> None:
    async with environment_of(SmallService(writes_the_answer), agent_artifacts=["answer"]) as env:
        env.artifacts_folder = tmp_path / "groups.artifacts"
        group = await run_group(env, ITEM, size=1)
    again: list[Any] = []
    async with ScriptedModel(says_the_number) as model, opened(FileEnv, model) as env:
        env.artifacts_folder = tmp_path / "groups.artifacts"
        await rescore_groups(env, [group], again.append, RescoreStats())
    assert (group.scores, again[0].scores) == ([1.0], [1.0])


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"agent_url": "ftp://h"}, "an address starts with http"),
        ({"agent_url": "http://h", "agent_command": "run"}, "mutually exclusive"),
        ({"agent_token": "env:X"}, "agent_token needs an external agent; set agent_url"),
        ({"agent_url": "http://h", "agent_setup": "x"}, "agent_setup needs an external agent; set agent_command"),
        ({"agent_artifacts": ["."]}, "set agent_command or agent_url"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError, match=part):
        HermesAgentEnvConfig(**settings)
