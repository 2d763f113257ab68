"""A policy cannot decline its score: whatever it breaks, its rollout is scored as a failure, at the first try."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest

from hermes_rl import AgentResult, HermesAgentBaseEnv, Limits, Reward, SandboxSpec, ToolContext, tool
from hermes_rl.core.trajectory import Rollout
from hermes_rl.evaluation.metrics import EvaluationCounts
from hermes_rl.rollout.group import run_group
from hermes_rl.sandbox.protocol import PATH
from hermes_rl.sandbox.spec import AGENT, ROOT
from hermes_rl.tools.faults import BrokenToolError
from tests.redteam import judges
from tests.redteam.declining import DECLINES, DONE, Decline, call, script, shell
from tests.support.environments import opened
from tests.support.sandbox_parts import IMAGE, ContainerServer
from tests.support.scripted_model import Calls, ScriptedModel, Text

ITEM = {"task": "find the answer"}


class AnswerEnv(HermesAgentBaseEnv):
    """The task of the red team's judges, scored by every recipe of theirs."""

    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file", "code_execution")
    user: ClassVar[str] = AGENT

    async def setup(self) -> None:
        self._eval_items = [ITEM]

    def format_prompt(self, item: dict[str, str]) -> str:
        return item["task"]

    def sandbox_spec(self, item: dict[str, str]) -> SandboxSpec:
        files = {"solution.py": "print(0)\n", "answer.txt": "wrong\n", "out/answer.txt": "wrong\n"}
        return SandboxSpec(
            user=self.user,
            files=files,
            limits=Limits(memory_mb=128, processes=64, disk_mb=32),
            # As programs that were installed for one user are found; the policy can put its own there.
            env={"PATH": f"/workspace/.local/bin:{PATH}"},
        )

    async def compute_reward(self, item: dict[str, str], result: AgentResult, ctx: ToolContext) -> float | Reward:
        return judges.every_recipe(cast("judges.Context", ctx))


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take minutes takes seconds."""
    monkeypatch.setattr("hermes_rl.sandbox.protocol.FILE_TIMEOUT", 4.0)
    monkeypatch.setattr("hermes_rl.tools.terminal.HOUSEKEEPING_TIMEOUT", 4.0)


class RootEnv(AnswerEnv):
    """The same for a policy that is root in its container."""

    user = ROOT


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rollout runs. `server` is the fixture of the engine that the backend needs."""

    backend: str
    environment: type[AnswerEnv] = AnswerEnv
    server: str | None = None

    def config(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        if self.server is None:
            return {"terminal_backend": self.backend}
        server: ContainerServer = request.getfixturevalue(self.server)
        settings = {self.backend: {"url": server.url, "image": IMAGE}}
        return {"terminal_backend": self.backend, "sandbox_settings": settings}


BUBBLEWRAP = Place("bubblewrap")
CONTAINERS = {
    "docker": Place("docker", server="docker_daemon"),
    "docker, policy as root": Place("docker", RootEnv, "docker_daemon"),
    "podman": Place("podman", server="podman_service"),
    "podman, policy as root": Place("podman", RootEnv, "podman_service"),
}
# They wait for their deadline more than they compute.
AT_ONCE = 4


async def played(reply: Any, place: Place, config: Mapping[str, Any]) -> Rollout:
    limits: dict[str, Any] = {
        "worker_timeout": 240,
        "rollout_deadline": 12,
        "terminal_timeout": 600,
        "rollout_retries": 1,
    }
    async with ScriptedModel(reply) as model, opened(place.environment, model, **limits, **config) as env:
        (rollout,) = (await run_group(env, ITEM, size=1, split="eval")).rollouts
    return rollout


def honest(request: dict[str, Any]) -> Calls | Text:
    if request["messages"][-1]["role"] == "tool":
        return Text("done")
    solve = "echo 'print(sum(map(int, input().split())))' > solution.py"
    return shell(f"{solve}; echo '{judges.ANSWER}' | tee answer.txt > out/answer.txt")


def tried() -> Iterator[Any]:
    for decline in DECLINES:
        yield pytest.param(decline, id=decline.name, marks=() if decline.gate else (pytest.mark.long,))


def problem(decline: Decline, rollout: Rollout) -> str | None:
    """None if the rollout was scored as a failure at the first try, and the model was told why."""
    if (rollout.score, rollout.failure) != (0.0, None):
        return f"score {rollout.score}, {rollout.failure}"
    if "earlier_failures" in rollout.metadata:
        return f"retried after {rollout.metadata['earlier_failures']}"
    if decline.tells is not None and not any(decline.tells in (use.error or "") for use in rollout.tool_uses):
        return f"{decline.tells!r} is in no tool result: {rollout.tool_uses}"
    return None


async def test_honest_work_passes(request: pytest.FixtureRequest) -> None:
    rollout = await played(honest, BUBBLEWRAP, BUBBLEWRAP.config(request))
    assert (rollout.score, rollout.failure) == (1.0, None)


@pytest.mark.parametrize("decline", list(tried()))
async def test_it_is_scored_as_a_failure_at_the_first_try(decline: Decline, request: pytest.FixtureRequest) -> None:
    assert problem(decline, await played(script(decline), BUBBLEWRAP, BUBBLEWRAP.config(request))) is None


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CONTAINERS)
async def test_in_containers_honest_work_passes_and_every_way_is_scored(
    name: str, request: pytest.FixtureRequest
) -> None:
    place = CONTAINERS[name]
    config, slots = place.config(request), asyncio.Semaphore(AT_ONCE)

    async def rollout_of(reply: Any) -> Rollout:
        async with slots:
            return await played(reply, place, config)

    passed, *failed = await asyncio.gather(rollout_of(honest), *(rollout_of(script(decline)) for decline in DECLINES))
    assert (passed.score, passed.failure) == (1.0, None)
    problems = {decline.name: problem(decline, rollout) for decline, rollout in zip(DECLINES, failed, strict=True)}
    assert {name: found for name, found in problems.items() if found} == {}


class TouchyEnv(AnswerEnv):
    """With a tool of the author's that some arguments crash."""

    default_toolsets = ()

    @tool(sandboxed=False)
    async def look_up(self, page: int) -> str:
        """Look up a page."""
        return ["one", "two"][page]


async def test_a_policy_that_crashes_an_authors_tool_has_failed_and_ends_the_run() -> None:
    """Its rollout cannot be scored, but that is worth a 0, is not tried again, and cannot become a habit."""
    reply = script(Decline("crashed tool", "calls a tool with what crashes it", [call("look_up", page=9), DONE]))
    async with ScriptedModel(reply) as model, opened(TouchyEnv, model, rollout_retries=1) as env:
        group = await run_group(env, ITEM, size=3, split="eval", temperature=1.0)
        with pytest.raises(BrokenToolError):
            env.tools.check()
    assert [str(rollout.failure) for rollout in group.rollouts] == ["environment/tool"] * 3
    assert not any("earlier_failures" in rollout.metadata for rollout in group.rollouts)
    counts = EvaluationCounts([group.item_id], 3, 1.0, 1.0)
    counts.add(group)
    assert counts.metrics(1.0)["eval/mean_reward"] == 0.0


def test_the_family_is_large() -> None:
    assert len(DECLINES) >= 25
    assert len({decline.name for decline in DECLINES}) == len(DECLINES)
