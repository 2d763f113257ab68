"""inspect_ai: a task with the built-in react agent, one tool and a scorer, run by `eval()` with its log as record.

Settings as its docs on parallelism and on errors give them for a server of one's own.
"""

import logging
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.agent import react
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log
from inspect_ai.scorer import Score, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import Tool, tool
from inspect_ai.util import store

from benchmarks.peers.work import Job, Kept, Recording, Sandboxes, called

VERSION = version("inspect_ai")
SETTINGS = (
    "eval() with react(submit=False), provider openai-api, max_connections, max_samples and its HTTP pool as many as "
    "rollouts in flight, fail_on_error=False, attempt_timeout as the patience, max_retries 3 (its default has no end), "
    "log_realtime and display off, the .eval log with all samples"
)
SANDBOXES = Sandboxes()


@tool
def run() -> Tool:
    async def execute(command: str) -> str:
        """Run a command and return what it printed.

        Args:
            command: The command.
        """
        SANDBOXES.ensure(store().get("rollout"))
        return called(command)

    return execute


@solver
def named() -> Solver:
    """Let the tool know whose it is."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001
        store().set("rollout", str(state.sample_id))
        return state

    return solve


@scorer(metrics=[mean()])
def right(recording: str) -> Any:
    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001
        return Score(value=Recording.named(recording).score(state.input_text, state.output.completion))

    return score


async def cleanup(state: TaskState) -> None:
    SANDBOXES.close(str(state.sample_id))


def drive(job: Job) -> None:
    logging.disable(logging.WARNING)
    os.environ["INSPECT_HTTP_POOL_CONNECTIONS"] = str(max(1000, job.in_flight))
    samples = [Sample(id=name, input=job.prompt(name)) for name in job.names]
    task = Task(
        dataset=MemoryDataset(samples),
        setup=named(),
        solver=react(tools=[run()], submit=False),
        scorer=right(job.recording),
        cleanup=cleanup,
    )
    inspect_eval(
        task,
        model="openai-api/null/null",
        model_base_url=job.base_url,
        model_args={"api_key": "none"},
        max_samples=job.in_flight,
        max_connections=job.in_flight,
        max_retries=3,
        attempt_timeout=round(job.patience),
        fail_on_error=False,
        log_realtime=False,
        display="none",
        log_dir=job.folder,
        log_level="error",
    )


def kept(job: Job) -> Kept:
    found = Kept(open_sandboxes=len(SANDBOXES.open))
    [log] = Path(job.folder).glob("*.eval")
    for sample in read_eval_log(str(log)).samples or []:
        scores = list((sample.scores or {}).values())
        found.scores[str(sample.id)] = scores[0].as_float() if scores else None
        if sample.error:
            found.causes[str(sample.id)] = sample.error.message
    return found
