"""The desk at which one caller works: the session whose draft it edits, and the functions that its tools call.

Always true: nothing is global. Two desks of different sessions see the same runs, and never each other's draft.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.runs.inference_test.testing import run_test as test_inference
from hermes_rl.runs.supervision import resume_run, start_run, stop_run
from hermes_rl.runs.watching.listing import list_runs
from hermes_rl.runs.watching.results import results
from hermes_rl.runs.watching.status import status

Told = Callable[[float, float, str], Awaitable[None]]
"""Is told how much is done, of how much, and in words what is going on."""


async def untold(done: float, total: float, message: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class RunFunctions:
    """What the tools do with runs; other ones stand in where a test needs no real run."""

    start: Callable[..., str] = start_run
    stop: Callable[[str], None] = stop_run
    resume: Callable[[str], None] = resume_run
    status: Callable[..., dict[str, Any]] = status
    results: Callable[[str], dict[str, Any]] = results
    listed: Callable[[], list[dict[str, Any]]] = list_runs
    test_inference: Callable[..., Awaitable[dict[str, Any]]] = test_inference


@dataclass(frozen=True, slots=True)
class Desk:
    session: str = "default"
    runs: RunFunctions = field(default_factory=RunFunctions)
    progress: Told = untold
