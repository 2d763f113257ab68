"""hermes-rl: an environment with one tool of its own, run as `hermes-rl process` runs it, its groups in a JSONL file.

A rollout of its own for each item (`group_size` 1), so that the rollouts in flight are as many as asked. The settings
that are not the defaults are those in `SETTINGS`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers.work import Job, Kept, Recording, Sandboxes, called, name_in
from hermes_rl import HermesAgentBaseEnv, HermesAgentEnvConfig
from hermes_rl.agent.result import AgentResult
from hermes_rl.console.run_command import run_async
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.store.records import read_groups
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import tool

VERSION = version("hermes-rl")
SETTINGS = (
    "`process` with group_size 1; max_num_workers, num_max_requests_at_once and tool_pool_size as many as rollouts in "
    "flight; max_repeated_calls off; timeout as the patience; retries as they are (3 a request, 1 a rollout)"
)
SANDBOXES = Sandboxes()


@asynccontextmanager
async def null_sandbox(name: str) -> AsyncIterator[None]:
    SANDBOXES.ensure(name)
    try:
        yield
    finally:
        SANDBOXES.close(name)


@tool(sandboxed=False)
async def run(session: ToolSession, command: str) -> str:
    """Run a command and return what it printed.

    Args:
        command: The command.
    """
    await session.resource("sandbox", lambda: null_sandbox(session.task_id))
    return called(command)


class PlaybackEnv(HermesAgentBaseEnv):
    name = "playback"
    own_tools = (run,)
    job: Job

    async def setup(self) -> None:
        self.recording = Recording.named(self.job.recording)
        self.waiting = iter(self.job.names)

    async def get_next_item(self) -> dict[str, str] | None:
        name = next(self.waiting, None)
        return None if name is None else {"prompt": self.job.prompt(name)}

    def format_prompt(self, item: Any) -> str:
        return str(item["prompt"])

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return self.recording.score(item["prompt"], result.final_response)


def drive(job: Job) -> None:
    run_async(play(job, (job.base_url,)))


def kept(job: Job) -> Kept:
    found = Kept(open_sandboxes=len(SANDBOXES.open))
    for group in read_groups(records(job)):
        for rollout in group.rollouts:
            name = name_in(group.item["prompt"])
            found.scores[name] = rollout.score
            if rollout.failure is not None:
                found.causes[name] = str(rollout.failure)
    return found


def records(job: Job) -> Path:
    return Path(job.folder) / "groups.jsonl"


async def play(job: Job, base_urls: tuple[str, ...]) -> None:
    """Play the job, over one endpoint or several."""
    config = HermesAgentEnvConfig(
        group_size=1,
        total_steps=job.rollouts,
        max_num_workers=job.in_flight,
        tool_pool_size=job.in_flight,
        max_repeated_calls=None,
        terminal_backend="local",
        ensure_scores_are_not_same=False,
        use_wandb=False,
        worker_timeout=max(600.0, 20 * job.patience),
    )
    endpoints = [
        APIServerConfig(base_url=url, model_name="null", num_max_requests_at_once=job.in_flight, timeout=job.patience)
        for url in base_urls
    ]
    env = PlaybackEnv(config, endpoints)
    env.job = job
    async with env.opened():
        await generate_groups(env, records(job))
