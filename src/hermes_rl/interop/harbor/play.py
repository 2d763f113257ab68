"""A rollout of a task with [[steps]]: one sandbox, one instruction after the other, a judgement after each.

The agent ends a step by calling `submit_step`; what it runs in the background ends with the step. Under a step's
`min_reward` the rest is not played. When the agent stops early, the steps left are judged as it left them.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hermes_rl.core.errors import SandboxError
from hermes_rl.interop.harbor.machine import WORKSPACE, health_check
from hermes_rl.interop.harbor.task import Task, TaskStep, files_below
from hermes_rl.interop.harbor.verifier import Judgement, collect, judge, verifier_timeout
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.session import ToolSession

SETUP_TIMEOUT = 120.0


@dataclass
class Play:
    """The judgements of a rollout's steps so far."""

    task: Task
    judges: Mapping[str, SandboxSpec]
    judgements: list[Judgement] = field(default_factory=list)
    over: bool = False
    _judging: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def step(self) -> TaskStep:
        """The step that is being played."""
        return self.task.steps[len(self.judgements)]

    async def submit(self, session: ToolSession) -> str:
        """End a step; returns the instruction of the next one, or that there is none."""
        async with self._judging:
            if self.over:
                return "The task is over."
            if await self._judge(session):
                return "The task is over. Answer with a short summary."
            await _prepare(self.step, session)
            return self.task.instruction(self.step)

    async def finish(self, session: ToolSession) -> dict[str, float]:
        """The rewards of the whole rollout."""
        async with self._judging:
            while not (self.over or await self._judge(session)):
                await _prepare(self.step, session)
            rewards = [one.rewards for one in self.judgements]
            return combined(rewards, self.task.config.get("multi_step_reward_strategy", "mean"))

    async def _judge(self, session: ToolSession) -> bool:
        """Judge the current step; whether it was the last."""
        step = self.step
        await collect(self.task, step, session)
        timeout = verifier_timeout(self.task, step)
        judgement = await judge(self.task, step, session, self.judges[step.name], timeout=timeout)
        self.judgements.append(judgement)
        low = any(judgement.rewards.get(name, 0.0) < least for name, least in step.minimum.items())
        self.over = low or len(self.judgements) == len(self.task.steps)
        return self.over


@asynccontextmanager
async def opened_play(task: Task, judges: Mapping[str, SandboxSpec]) -> AsyncIterator[Play]:
    """The play of one session."""
    yield Play(task, judges)


def combined(rewards: Sequence[Mapping[str, float]], strategy: str) -> dict[str, float]:
    """One mapping out of those of the judged steps: the mean of each name, or those of the last step."""
    if strategy == "final":
        return dict(rewards[-1])
    names = {name: None for one in rewards for name in one}
    return {name: sum(one.get(name, 0.0) for one in rewards) / len(rewards) for name in names}


async def _prepare(step: TaskStep, session: ToolSession) -> None:
    """Lay a step's workdir/ into the working directory, run its setup.sh, wait for its health check."""
    sandbox, folder = await session.sandbox(), step.folder / "workdir"
    for path in files_below(folder) if folder.is_dir() else []:
        await sandbox.upload(path, f"{WORKSPACE}/{path.relative_to(folder)}")
    setup = ["bash ./setup.sh"] if (folder / "setup.sh").exists() else []
    script = "\n".join([*setup, *health_check(step.config.get("healthcheck"))])
    if script:
        result = await sandbox.exec(f"set -e\n{script}", timeout=SETUP_TIMEOUT, merge_stderr=True)
        if result.exit_code != 0:
            said = result.stdout.decode(errors="replace")[-1000:]
            raise SandboxError("setup", f"step {step.name} could not be set up: {said}")
